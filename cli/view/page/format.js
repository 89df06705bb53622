// SPDX-License-Identifier: Apache-2.0
// Numbers and times for people, as the command prints them.

// printf rounds the middle between two numbers to the even one, and toFixed and toExponential do not.
const isMiddle = (rest) => /^50*$/.test(rest);
const isEven = (digits) => /[02468]$/.test(digits);
const EXACT = 40; // more digits than such a middle has

/** As "%.1f", or with another number of decimals. */
function fixed(value, decimals = 1) {
  const exact = value.toFixed(decimals + EXACT);
  const cut = exact.slice(0, -EXACT).replace(/\.$/, "");
  return isMiddle(exact.slice(-EXACT)) && isEven(cut) ? cut : value.toFixed(decimals);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** "1023 B", "1.0 KiB", "1.2 GiB", "340 MiB". */
export function bytes(count) {
  let value = Number(count);
  if (value < 1024) return `${Math.round(value)} B`;
  value /= 1024;
  let unit = 1;
  // Otherwise 1023.95 would be shown as 1024.0.
  while (value >= 1023.95 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${fixed(value, value < 99.95 ? 1 : 0)} ${UNITS[unit]}`;
}

/** Whole numbers with a separator that no language reads as a decimal point. */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

// The six digits of a finite number that is not 0, and their power of ten.
function sixDigits(value) {
  const [exact, exactPower] = value.toExponential(5 + EXACT).split("e");
  const cut = exact.slice(0, -EXACT);
  const [rounded, power] = isMiddle(exact.slice(-EXACT)) && isEven(cut) ? [cut, exactPower] : value.toExponential(5).split("e");
  return [rounded.replace(".", ""), Number(power)];
}

const withoutZeros = (text) => text.replace(/\.?0+$/, "");
const NOT_FINITE = { NaN: "nan", Infinity: "inf", "-Infinity": "-inf" };

/** As "%g": six significant digits. A text is an integer of many digits, or not finite. */
export function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return NOT_FINITE[value] ?? value;
  if (!Number.isFinite(value)) return NOT_FINITE[value];
  if (value < 0 || Object.is(value, -0)) return `-${number(-value)}`;
  if (value === 0) return "0";
  const [digits, power] = sixDigits(value);
  if (power < -4 || power >= 6) {
    const shown = withoutZeros(`${digits[0]}.${digits.slice(1)}`);
    return `${shown}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  if (power < 0) return withoutZeros(`0.${"0".repeat(-power - 1)}${digits}`);
  const whole = digits.slice(0, power + 1);
  return power === 5 ? whole : withoutZeros(`${whole}.${digits.slice(power + 1)}`);
}

/** A number of which no digit may be missing, such as a step. */
export function integer(value) {
  return value === null || value === undefined ? "" : String(value);
}

/** How elements of a type are shown. */
export function elementText(dtype) {
  return /^[IU]\d|^BOOL/.test(dtype) ? integer : number;
}

/** "1 step", "2 steps". */
export function countOf(value, what) {
  return `${count(value)} ${what}${Number(value) === 1 ? "" : "s"}`;
}

export function share(part, whole) {
  return Number(whole) > 0 ? `${fixed((100 * Number(part)) / Number(whole))} %` : "-";
}

/** Local time with its zone. */
export function time(iso) {
  if (!iso) return "";
  const date = new Date(iso);
  const two = (value) => String(value).padStart(2, "0");
  const offset = -date.getTimezoneOffset();
  const zone = Math.abs(offset);
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())} ` +
    `${offset < 0 ? "-" : "+"}${two(Math.floor(zone / 60))}${two(zone % 60)}`
  );
}

export function shape(axes) {
  return `[${axes.join(", ")}]`;
}

export function metrics(values) {
  return Object.entries(values)
    .map(([name, value]) => `${name}=${number(value)}`)
    .join(" ");
}

/** A step of any run, as the command takes it. */
export function stepName(id) {
  return `${id.run}@${id.step}`;
}

/** The start and the end of a name that is too long. */
export function shortened(text, length) {
  if (text.length <= length) return text;
  const half = Math.floor((length - 1) / 2);
  return `${text.slice(0, half)}\u2026${text.slice(text.length - half)}`;
}

/** Control characters and those that turn the writing direction become visible escapes. */
export function printable(text) {
  return String(text).replace(
    // eslint-disable-next-line no-control-regex
    /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (character) => {
      const code = character.codePointAt(0);
      return code < 256
        ? `\\x${code.toString(16).padStart(2, "0")}`
        : `\\u${code.toString(16).padStart(4, "0")}`;
    },
  );
}
