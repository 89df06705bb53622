// SPDX-License-Identifier: Apache-2.0
// Numbers and times for people, as the command prints them.

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
  return `${value < 99.95 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** Whole numbers with a separator that no language reads as a decimal point. */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** Six significant digits. */
export function number(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value; // NaN, Infinity, or an integer of many digits
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const rounded = Number(value.toPrecision(6));
  return Math.abs(rounded) < 1e-4 && rounded !== 0 ? rounded.toExponential() : String(rounded);
}

/** "1 step", "2 steps". */
export function countOf(value, what) {
  return `${count(value)} ${what}${Number(value) === 1 ? "" : "s"}`;
}

export function share(part, whole) {
  return Number(whole) > 0 ? `${((100 * Number(part)) / Number(whole)).toFixed(1)} %` : "-";
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
