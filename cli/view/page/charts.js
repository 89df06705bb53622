// SPDX-License-Identifier: Apache-2.0
// Plots as SVG, so that each can be saved as it is seen.

import { download, fileName, h, newId, s } from "./dom.js";
import { bytes, count, integer, number, printable, shortened } from "./format.js";

const WIDTH = 760;
// The least room between two labels that stand side by side.
const GAP = 8;
const SMALL = 10.5; // the size of labels of the class "small"
const FONT = 'system-ui, "DejaVu Sans", sans-serif'; // that of style.css
// The width of a plot, if two plots stand side by side.
const NARROW = 500;
// The looks of lines differ in color, in dashes and in marks.
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 4 1 4"];
export const NUM_LOOKS = 6;

// What a file of a plot needs to look the same elsewhere.
const PROPERTIES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight",
  "text-anchor", "opacity", "fill-opacity",
];

// A copy that looks the same without the page and its styles.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, i) => {
    const style = getComputedStyle(original);
    for (const name of PROPERTIES) copies[i].setAttribute(name, style.getPropertyValue(name));
    copies[i].removeAttribute("class");
  });
  for (const link of copy.querySelectorAll("a")) link.replaceWith(...link.childNodes);
  for (const hidden of copy.querySelectorAll("[visibility=hidden]")) hidden.remove();
  return copy;
}

// The file of a plot: its title, its legend in rows, and the plot.
function fileOf(title, svg, legend) {
  const { width, height } = svg.viewBox.baseVal;
  const style = getComputedStyle(document.body);
  const letters = { "font-family": FONT, "font-size": 12, fill: style.color };
  const edge = 10;
  let [x, y] = [edge, 32];
  const parts = [text(edge, 20, fitted(title, width - 2 * edge), { ...letters, "font-weight": 600 })];
  for (const entry of legend?.children ?? []) {
    const icon = standalone(entry.querySelector("svg"));
    const begin = Number(icon.getAttribute("width")) + 6;
    const name = fitted(entry.textContent.trim(), width - 2 * edge - begin);
    const end = begin + widthOf(name);
    if (x > edge && x + end > width - edge) [x, y] = [edge, y + 18];
    icon.setAttribute("x", x);
    icon.setAttribute("y", y);
    parts.push(icon, text(x + begin, y + 10, name, letters));
    x += end + 2 * GAP;
  }
  const top = y + (legend ? 22 : 0);
  const plot = standalone(svg);
  for (const [name, value] of Object.entries({ x: 0, y: top, width, height })) plot.setAttribute(name, value);
  const size = { width, height: height + top };
  const file = s(
    "svg",
    { ...size, viewBox: `0 0 ${size.width} ${size.height}` },
    s("rect", { ...size, fill: style.backgroundColor }),
    parts,
    plot,
  );
  return new XMLSerializer().serializeToString(file);
}

/** A plot with its title, a line below it, and a button that saves it. */
export function figure(title, svg, { note, legend, readout } = {}) {
  const id = newId();
  return h(
    "figure",
    { "aria-labelledby": id },
    h("figcaption", { id }, printable(title)),
    legend,
    svg,
    note && h("p", { class: "note" }, note),
    h(
      "div",
      { class: "below" },
      readout,
      h(
        "button",
        {
          type: "button",
          onclick: () => download(fileName(title, "svg"), "image/svg+xml", fileOf(title, svg, legend)),
        },
        "SVG",
      ),
    ),
  );
}

function canvas(height, label, { interactive = false, width = WIDTH } = {}) {
  return s("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: interactive ? "group" : "img",
    "aria-label": printable(label),
    class: "plot",
  });
}

function text(x, y, content, attributes = {}) {
  return s("text", { x, y, ...attributes }, printable(content));
}

const measure = document.createElement("canvas").getContext("2d");

/** How wide a label is. */
function widthOf(content, size = 12) {
  measure.font = `${size}px ${FONT}`;
  return measure.measureText(printable(content)).width;
}

/** The start and the end of a label, if there is no room for all of it. */
function fitted(content, width, size = 12) {
  const whole = printable(content);
  if (widthOf(whole, size) <= width) return whole;
  let [least, most] = [1, whole.length];
  while (least < most) {
    const letters = Math.ceil((least + most) / 2);
    if (widthOf(shortened(whole, letters), size) <= width) least = letters;
    else most = letters - 1;
  }
  return shortened(whole, least);
}

/** Labels below an axis. One that would stand on another is left out, and none is cut off. */
function axisLabels(svg, marks, px, y, shown) {
  let free = 0;
  for (const value of marks) {
    const label = String(shown(value));
    const width = widthOf(label);
    const begin = Math.max(0, Math.min(px(value) - width / 2, WIDTH - 2 - width));
    if (begin < free) continue;
    free = begin + width + GAP;
    svg.append(text(begin + width / 2, y, label, { "text-anchor": "middle" }));
  }
}

/** About `wanted` round numbers from low to high. */
function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const result = [];
  for (let i = Math.ceil(low / unit); i * unit <= high + unit * 1e-9; i += 1) result.push(i * unit || 0); // no -0
  return result;
}

// Powers of ten, or of two for bytes. Neighbours of those that are left out lie beyond both ends.
function logTicks(low, high, base) {
  const power = (value) => Math.log(value) / Math.log(base);
  const first = Math.floor(power(low) + 1e-9);
  const last = Math.ceil(power(high) - 1e-9);
  const every = Math.max(1, Math.ceil((last - first) / 6));
  const result = [];
  for (let i = first; i < last + every; i += every) result.push(base ** i);
  return result;
}

// Round numbers of bytes are multiples of a power of two.
function byteTicks(high) {
  const unit = 2 ** Math.max(0, Math.ceil(Math.log2(high / 5)));
  const result = [];
  for (let value = 0; value < high + unit; value += unit) result.push(value);
  return result;
}

function axisOf(values, log, isBytes) {
  const usable = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = usable.reduce((least, value) => Math.min(least, value), Infinity);
  let high = usable.reduce((most, value) => Math.max(most, value), -Infinity);
  if (usable.length === 0) [low, high] = log ? [1, 10] : [0, 1];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  let marks;
  if (log) {
    marks = logTicks(low, high, isBytes ? 2 : 10);
  } else if (isBytes) {
    marks = byteTicks(high);
  } else {
    // A little room, so that nothing lies on the frame.
    const room = (high - low) * 0.05;
    [low, high] = [low - room, high + room];
    marks = ticks(low, high, 5);
  }
  if (log || isBytes) [low, high] = [marks[0], marks.at(-1)];
  const scale = log ? Math.log10 : (value) => value;
  const place = (value) => (scale(value) - scale(low)) / (scale(high) - scale(low));
  return { low, high, marks, place };
}

function mark(x, y, look, title) {
  const size = 3.5;
  const attributes = { class: `mark look${look % NUM_LOOKS}` };
  const shapes = [
    () => s("circle", { cx: x, cy: y, r: size, ...attributes }),
    () => s("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...attributes }),
    () => s("path", { d: `M${x} ${y - size - 1}L${x + size + 1} ${y + size}H${x - size - 1}Z`, ...attributes }),
  ];
  const shape = shapes[look % shapes.length]();
  if (title) shape.append(s("title", {}, printable(title)));
  return shape;
}

function star(x, y, title) {
  const points = [];
  for (let i = 0; i < 10; i += 1) {
    const radius = i % 2 === 0 ? 8 : 3.5;
    const angle = (Math.PI * i) / 5 - Math.PI / 2;
    points.push(`${x + radius * Math.cos(angle)},${y + radius * Math.sin(angle)}`);
  }
  return s("polygon", { points: points.join(" "), class: "star" }, s("title", {}, printable(title)));
}

function legendOf(series) {
  return h(
    "ul",
    { class: "legend" },
    series.map((one, i) =>
      h(
        "li",
        {},
        s(
          "svg",
          { viewBox: "0 0 34 12", width: 34, height: 12, "aria-hidden": "true" },
          s("line", {
            x1: 0, y1: 6, x2: 34, y2: 6,
            class: `line look${i % NUM_LOOKS}`,
            "stroke-dasharray": DASHES[i % DASHES.length],
          }),
          mark(17, 6, i),
        ),
        " ",
        printable(shortened(one.name, 60)),
      ),
    ),
  );
}

/**
 * Lines. Each of `series` is {name, points: [{x, y, low, high, title}], best: {x, y, title}}. A band
 * lies between low and high.
 */
export function lineChart(title, { series, xTitle, yTitle, log, isBytes, xText = integer, note }) {
  const [height, left, right, top, bottom] = [300, 78, 16, 14, 44];
  const all = series.flatMap((one) => one.points);
  const yText = isBytes ? bytes : number;
  const y = axisOf(all.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]), log, isBytes);
  const x = axisOf(all.map((point) => point.x), false);
  if (all.length > 0) {
    x.low = Math.min(...all.map((point) => point.x));
    x.high = Math.max(...all.map((point) => point.x));
    x.place = (value) => (x.high === x.low ? 0.5 : (value - x.low) / (x.high - x.low));
    x.marks = ticks(x.low, x.high, 7).filter((value) => Number.isInteger(value));
  }
  const px = (value) => left + x.place(value) * (WIDTH - left - right);
  const py = (value) => height - bottom - y.place(value) * (height - top - bottom);
  const svg = canvas(height, title);
  for (const value of y.marks) {
    if (value < y.low || value > y.high) continue;
    svg.append(
      s("line", { x1: left, x2: WIDTH - right, y1: py(value), y2: py(value), class: "grid" }),
      text(left - 8, py(value) + 4, yText(value), { "text-anchor": "end" }),
    );
  }
  axisLabels(svg, x.marks, px, height - bottom + 18, xText);
  svg.append(
    s("line", { x1: left, x2: WIDTH - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
    s("line", { x1: left, x2: left, y1: top, y2: height - bottom, class: "axis" }),
    text((left + WIDTH - right) / 2, height - 6, xTitle, { "text-anchor": "middle" }),
    text(14, top + (height - top - bottom) / 2, yTitle, {
      "text-anchor": "middle",
      transform: `rotate(-90 14 ${top + (height - top - bottom) / 2})`,
    }),
  );
  const drawable = (value) => Number.isFinite(value) && (!log || value > 0);
  series.forEach((one, i) => {
    const points = one.points.filter((point) => drawable(point.y));
    const banded = points.filter((point) => point.low !== point.high && drawable(point.low));
    if (banded.length > 1) {
      const edge = (side) => (point) => `${px(point.x)},${py(point[side])}`;
      svg.append(
        s("polygon", {
          points: [...banded.map(edge("low")), ...banded.toReversed().map(edge("high"))].join(" "),
          class: `band look${i % NUM_LOOKS}`,
        }),
      );
    }
    svg.append(
      s("polyline", {
        points: points.map((point) => `${px(point.x)},${py(point.y)}`).join(" "),
        class: `line look${i % NUM_LOOKS}`,
        "stroke-dasharray": DASHES[i % DASHES.length],
      }),
    );
    if (points.length <= 60) {
      for (const point of points) svg.append(mark(px(point.x), py(point.y), i, point.title));
    }
  });
  for (const one of series) {
    if (one.best && drawable(one.best.y)) svg.append(star(px(one.best.x), py(one.best.y), one.best.title));
  }
  const readout = follow(svg, series, px, py, drawable);
  return figure(title, svg, { note, legend: series.length > 1 ? legendOf(series) : null, readout });
}

// Says what lies next to the pointer.
function follow(svg, series, px, py, drawable) {
  const readout = h("output", { class: "readout" });
  const points = series.flatMap((one) => one.points.filter((point) => drawable(point.y)));
  const ring = s("circle", { r: 6, class: "ring", visibility: "hidden" });
  svg.append(ring);
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let nearest = null;
    let distance = 40 ** 2;
    for (const point of points) {
      const away = (px(point.x) - at.x) ** 2 + ((py(point.y) - at.y) ** 2) / 4;
      if (away < distance) [nearest, distance] = [point, away];
    }
    readout.textContent = nearest ? printable(nearest.title) : "";
    ring.setAttribute("visibility", nearest ? "visible" : "hidden");
    if (!nearest) return;
    ring.setAttribute("cx", px(nearest.x));
    ring.setAttribute("cy", py(nearest.y));
  });
  svg.addEventListener("pointerleave", () => {
    readout.textContent = "";
    ring.setAttribute("visibility", "hidden");
  });
  return readout;
}

/** Pairs of bars. Each of `rows` is {name, whole, part, text}, where the part is within the whole. */
export function barChart(title, { rows, wholeName, partName, note, href }) {
  const [line, left, right] = [26, 210, 210];
  const height = Math.max(1, rows.length) * line + 8;
  const most = Math.max(...rows.map((row) => Math.max(row.whole, row.part)), 1);
  const svg = canvas(height, title, { interactive: Boolean(href) });
  rows.forEach((row, i) => {
    const y = 6 + i * line;
    const scale = (value) => (value / most) * (WIDTH - left - right);
    const label = text(left - 8, y + 13, fitted(row.name, left - 10), { "text-anchor": "end" });
    svg.append(
      href ? s("a", { href: href(row), "aria-label": printable(row.name) }, label) : label,
      s("rect", { x: left, y, width: Math.max(scale(row.whole), 1), height: 17, class: "bar whole" },
        s("title", {}, `${wholeName}: ${printable(row.text)}`)),
      s("rect", { x: left, y: y + 4, width: scale(row.part), height: 9, class: "bar part" },
        s("title", {}, `${partName}: ${printable(row.text)}`)),
      text(left + scale(Math.max(row.whole, row.part)) + 6, y + 13, row.text),
    );
  });
  const legend = h(
    "ul",
    { class: "legend" },
    [["whole", wholeName], ["part", partName]].map(([look, name]) =>
      h("li", {}, s("svg", { width: 20, height: 12, "aria-hidden": "true" },
        s("rect", { width: 20, height: 12, class: `bar ${look}` })), ` ${name}`)),
  );
  return figure(title, svg, { note, legend });
}

/** How often values lie in each bin. */
export function histogram(title, { low, high, counts, note }) {
  const [height, left, right, top, bottom] = [240, 78, 16, 14, 44];
  const svg = canvas(height, title, { width: NARROW });
  const most = Math.max(...counts, 1);
  const width = (NARROW - left - right) / Math.max(counts.length, 1);
  const py = (value) => height - bottom - (value / most) * (height - top - bottom);
  for (const value of ticks(0, most, 4)) {
    svg.append(
      s("line", { x1: left, x2: NARROW - right, y1: py(value), y2: py(value), class: "grid" }),
      text(left - 8, py(value) + 4, count(value), { "text-anchor": "end" }),
    );
  }
  counts.forEach((value, i) => {
    const from = low + ((high - low) * i) / counts.length;
    const to = low + ((high - low) * (i + 1)) / counts.length;
    svg.append(
      s("rect", { x: left + i * width + 0.5, y: py(value), width: Math.max(width - 1, 0.5),
        height: height - bottom - py(value), class: "bar look0" },
        s("title", {}, `${number(from)} to ${number(to)}: ${value}`)),
    );
  });
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    svg.append(text(left + share * (NARROW - left - right), height - bottom + 18,
      number(low + share * (high - low)), { "text-anchor": anchor }));
  }
  svg.append(
    s("line", { x1: left, x2: NARROW - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
    text((left + NARROW - right) / 2, height - 6, "value", { "text-anchor": "middle" }),
    text(14, (height - bottom + top) / 2, "elements",
      { "text-anchor": "middle", transform: `rotate(-90 14 ${(height - bottom + top) / 2})` }),
  );
  return figure(title, svg, { note });
}

// From blue through white to orange: no kind of color-blindness confuses these.
const COLD = [33, 102, 172];
const WARM = [179, 88, 6];
function shade(value) {
  const end = value < 0 ? COLD : WARM;
  const share = Math.min(Math.abs(value), 1);
  return `rgb(${end.map((channel) => Math.round(247 + (channel - 247) * share)).join(",")})`;
}

/** Cells in rows. Each is a number, or a text where there is none. */
export function heatMap(title, { rows, columns, cells, note }) {
  const values = cells.filter((value) => typeof value === "number");
  const most = values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  const size = Math.max(4, Math.min(18, Math.floor(NARROW / columns)));
  const tall = rows === 1 ? 32 : size;
  const height = rows * tall + 44;
  const svg = canvas(height, title, { width: Math.max(columns * size, NARROW) });
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const value = cells[row * columns + column];
      const known = typeof value === "number";
      svg.append(
        s("rect", { x: column * size, y: row * tall, width: size, height: tall,
          class: known ? null : "unknown",
          fill: known ? shade(most === 0 ? 0 : value / most) : null }),
      );
    }
  }
  const scale = 21;
  for (let i = 0; i < scale; i += 1) {
    svg.append(s("rect", { x: 112 + i * 12, y: height - 30, width: 12, height: 12, fill: shade((2 * i) / (scale - 1) - 1) }));
  }
  svg.append(
    text(104, height - 20, number(-most), { "text-anchor": "end" }),
    text(120 + scale * 12, height - 20, number(most)),
  );
  const readout = h("output", { class: "readout" });
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const [row, column] = [Math.floor(at.y / tall), Math.floor(at.x / size)];
    const value = row < rows && column < columns ? cells[row * columns + column] : undefined;
    readout.textContent = value === undefined ? "" : `row ${row}, column ${column} of the picture: ${number(value)}`;
  });
  return figure(title, svg, { note, readout });
}

/** Small cells in rows, one for each of many things. Each is {share, isNone, title}, with a share from 0 to 1. */
export function strip(title, { cells, noneName, shareName, note }) {
  const [most, tall] = [100, 22];
  const perRow = Math.min(most, cells.length);
  const wide = WIDTH / perRow;
  const height = Math.ceil(cells.length / perRow) * tall;
  const svg = canvas(height, title);
  const look = ({ share, isNone }) => (isNone ? { class: "cell none" } : { class: "cell", "fill-opacity": 0.2 + 0.8 * share });
  cells.forEach((cell, i) => {
    svg.append(s("rect", { x: (i % perRow) * wide, y: Math.floor(i / perRow) * tall, width: wide, height: tall, ...look(cell) },
      s("title", {}, printable(cell.title))));
  });
  const icon = (looks) => s("svg", { width: 14 * looks.length, height: 12, "aria-hidden": "true" },
    looks.map((one, i) => s("rect", { x: 14 * i, width: 14, height: 12, ...look(one) })));
  const legend = h("ul", { class: "legend" },
    h("li", {}, icon([{ isNone: true }]), ` ${noneName}`),
    h("li", {}, icon([0, 0.5, 1].map((share) => ({ share }))), ` ${shareName}`));
  return figure(title, svg, { note, legend });
}

// Cuts a rectangle into parts with the areas of `values`, which fall, so that parts are nearly square.
function squarify(values, box) {
  const total = values.reduce((sum, value) => sum + value, 0);
  const placed = [];
  let { x, y, width, height } = box;
  let i = 0;
  let left = total;
  while (i < values.length) {
    const across = width >= height;
    const side = across ? height : width;
    const unit = left > 0 ? (width * height) / left : 0;
    let end = i;
    let sum = 0;
    let worst = Infinity;
    while (end < values.length) {
      const next = sum + values[end];
      const thick = (next * unit) / side;
      const ratio = Math.max(...[values[i], values[end]].map((value) => {
        const long = (value * unit) / thick;
        return Math.max(long / thick, thick / long);
      }));
      if (end > i && !(ratio < worst)) break;
      [worst, sum, end] = [ratio, next, end + 1];
    }
    const thick = side > 0 ? (sum * unit) / side : 0;
    let along = 0;
    for (; i < end; i += 1) {
      const long = sum > 0 ? (values[i] / sum) * side : 0;
      placed.push(across ? { x, y: y + along, width: thick, height: long } : { x: x + along, y, width: long, height: thick });
      along += long;
    }
    if (across) {
      x += thick;
      width -= thick;
    } else {
      y += thick;
      height -= thick;
    }
    left -= sum;
  }
  return placed;
}

/** Boxes by size. Each is {name, value, look, title, href}. They come by falling value. */
export function treemap(title, { boxes, note, legend }) {
  const height = 340;
  const shown = boxes.filter((box) => box.value > 0);
  const svg = canvas(height, title, { interactive: true });
  squarify(shown.map((box) => box.value), { x: 0, y: 0, width: WIDTH, height }).forEach((place, i) => {
    const box = shown[i];
    const rect = s("rect", { x: place.x + 1, y: place.y + 1, width: Math.max(place.width - 2, 0.5),
      height: Math.max(place.height - 2, 0.5), class: `box ${box.look}` }, s("title", {}, printable(box.title)));
    const room = place.width - 10;
    const parts = [rect];
    if (room >= 21 && place.height > 18) {
      parts.push(text(place.x + 6, place.y + 15, fitted(box.name, room), { class: "in-box" }));
      if (place.height > 36 && box.detail && widthOf(box.detail, SMALL) <= room) {
        parts.push(text(place.x + 6, place.y + 31, box.detail, { class: "in-box small" }));
      }
    }
    svg.append(box.href ? s("a", { href: box.href, "aria-label": printable(box.title) }, parts) : s("g", {}, parts));
  });
  return figure(title, svg, { note, legend });
}

/** Runs as lanes, joined where one was forked from another. */
export function lineage(title, { runs, href, note }) {
  const [lane, left, right, top] = [44, 160, 40, 24];
  const known = runs.filter((run) => run.first);
  const height = top + known.length * lane + 30;
  const steps = known.flatMap((run) => [Number(run.first.step), Number(run.last.step)]);
  const low = Math.min(...steps);
  const high = Math.max(...steps);
  const px = (step) => left + (high === low ? 0.5 : (Number(step) - low) / (high - low)) * (WIDTH - left - right);
  const svg = canvas(height, title, { interactive: true });
  const laneOf = new Map(known.map((run, i) => [run.run, top + i * lane + 16]));
  const marks = ticks(low, high, 7).filter(Number.isInteger);
  for (const value of marks) {
    svg.append(s("line", { x1: px(value), x2: px(value), y1: top - 8, y2: height - 26, class: "grid" }));
  }
  axisLabels(svg, marks, px, height - 10, integer);
  known.forEach((run, i) => {
    const y = laneOf.get(run.run);
    const from = run.forked_from;
    const parent = from ? laneOf.get(from.run) : undefined;
    if (parent !== undefined) {
      const x = px(from.step);
      svg.append(s("path", { d: `M${x} ${parent}C${x} ${(parent + y) / 2} ${px(run.first.step)} ${(parent + y) / 2} ${px(run.first.step)} ${y}`, class: "fork" }));
    }
    svg.append(
      s("line", { x1: px(run.first.step), x2: px(run.last.step), y1: y, y2: y, class: `lane look${i % NUM_LOOKS}` }),
      s("a", { href: href(run.run, run.last.step), "aria-label": printable(`${run.run}, ${run.steps} steps, the newest is ${run.last.step}`) },
        text(left - 12, y + 4, fitted(run.run, left - 14), { "text-anchor": "end" })),
    );
    const ends = run.first.step === run.last.step ? [run.first] : [run.first, run.last];
    for (const end of ends) svg.append(mark(px(end.step), y, i, `${run.run}@${end.step}`));
    labels(svg, run, y, px);
  });
  return figure(title, svg, { note });
}

// Tags above their steps. One that would stand on another is left to the table.
function labels(svg, run, y, px) {
  let free = -Infinity;
  for (const { tag, step } of run.tags) {
    const x = px(step);
    svg.append(s("line", { x1: x, x2: x, y1: y - 7, y2: y + 7, class: "tag" }, s("title", {}, printable(`${tag}: step ${step}`))));
    const short = shortened(printable(tag), 14);
    const width = widthOf(short, SMALL);
    const begin = Math.min(x + 3, WIDTH - 2 - width); // it must not be cut off
    if (begin < free) continue;
    svg.append(text(begin, y - 8, short, { class: "small" }));
    free = begin + width + 5;
  }
}
