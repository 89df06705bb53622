// SPDX-License-Identifier: Apache-2.0
// Tables that the server sorts and cuts into pages, and their CSV.

import { noteTable, readTable } from "./address.js";
import { download, fileName, h, replace } from "./dom.js";
import { count, printable } from "./format.js";

// Rows of one question for a CSV of all rows.
const CSV_ROWS = 200;

const NUMBER = /^-(\d+|Infinity)$/;

function csvCell(value) {
  let text = value === null || value === undefined ? "" : String(value);
  // A spreadsheet would run a name that starts like a formula. Numbers that JSON cannot hold come as text.
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text) && !NUMBER.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv(columns, rows) {
  const lines = [columns.map((column) => csvCell(column.title))];
  for (const row of rows) lines.push(columns.map((column) => csvCell(column.value(row))));
  return `${lines.map((line) => line.join(",")).join("\r\n")}\r\n`;
}

function headCell(column, options) {
  const attributes = { scope: "col", class: column.right ? "right" : null };
  if (!column.sort || !options.onSort) return h("th", attributes, column.title);
  const isSorted = options.sort === column.sort;
  const down = isSorted && options.order === "down";
  if (isSorted) attributes["aria-sort"] = down ? "descending" : "ascending";
  const next = isSorted && !down ? "down" : isSorted ? "up" : column.first ?? "down";
  return h(
    "th",
    attributes,
    h(
      "button",
      { type: "button", class: "sort", "data-key": column.sort, onclick: () => options.onSort(column.sort, next) },
      column.title,
      h("span", { "aria-hidden": "true" }, isSorted ? (down ? " \u25be" : " \u25b4") : ""),
    ),
  );
}

function cell(column, row, isHead) {
  const shown = column.show ? column.show(row) : column.value(row);
  const content = typeof shown === "string" ? printable(shown) : shown;
  const attributes = { class: [column.right && "right", column.wide && "wide", column.wide === "name" && "tensor-name"].filter(Boolean).join(" ") || null };
  return isHead ? h("th", { scope: "row", ...attributes }, content) : h("td", attributes, content);
}

// A writer may add rows between two pages, which then lie elsewhere.
async function allRows(options, button) {
  const rows = [];
  let page = await options.load(0, CSV_ROWS);
  const { total } = page;
  while (page.rows.length > 0) {
    rows.push(...page.rows);
    button.textContent = `CSV: ${count(rows.length)} of ${count(total)}`;
    page = await options.load(rows.length, CSV_ROWS);
  }
  const [first] = (await options.load(0, 1)).rows;
  const isSame = JSON.stringify(first) === JSON.stringify(rows[0]);
  if (rows.length !== total || page.total !== total || !isSame) {
    throw new Error("the table has changed meanwhile. Ask again.");
  }
  return rows;
}

function csvButtons(options) {
  const name = fileName(options.caption, "csv");
  const save = (rows) => download(name, "text/csv", toCsv(options.columns, rows));
  const buttons = [
    h("button", { type: "button", onclick: () => save(options.rows) }, "CSV of these rows"),
  ];
  if (options.load && options.total > options.rows.length) {
    const all = h("button", { type: "button" }, "CSV of all rows");
    all.addEventListener("click", async () => {
      all.disabled = true;
      try {
        save(await allRows(options, all));
        all.textContent = "CSV of all rows";
      } catch (error) {
        all.textContent = `CSV: ${error.message}`;
      }
      all.disabled = false;
    });
    buttons.push(all);
  }
  return buttons;
}

function pager(options) {
  const { offset, limit, total, onPage } = options;
  if (total === undefined) {
    const rows = options.rows.length;
    return h("span", {}, `${count(rows)} ${rows === 1 ? "row" : "rows"}`);
  }
  if (total === 0) return h("span", {}, "no rows");
  const last = offset + options.rows.length;
  const text = h("span", {}, `${count(offset + 1)} to ${count(last)} of ${count(total)}`);
  if (!onPage || total <= options.rows.length) return text;
  const go = (title, to, enabled) =>
    h("button", { type: "button", "data-key": title, disabled: !enabled, onclick: () => onPage(to) }, title);
  const end = Math.floor((total - 1) / limit) * limit;
  return [
    go("First", 0, offset > 0),
    go("Previous", Math.max(0, offset - limit), offset > 0),
    text,
    go("Next", offset + limit, last < total),
    go("Last", end, last < total),
  ];
}

/**
 * A table. Each of `columns` has a title and value(row), which goes into the CSV, and may have
 * show(row) for what is seen, `right`, and `sort`, the server's word for it. With `load(offset,
 * limit)` all rows can be had as CSV.
 */
export function table(options) {
  const { caption, columns, rows } = options;
  return h(
    "section",
    { class: "table" },
    h(
      "div",
      // It scrolls, so the keyboard must reach it.
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h(
        "table",
        {},
        h("caption", {}, caption),
        h("thead", {}, h("tr", {}, columns.map((column) => headCell(column, options)))),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h("tr", {}, columns.map((column, i) => cell(column, row, i === (options.head ?? 0)))),
          ),
        ),
      ),
    ),
    h("div", { class: "below" }, pager(options), csvButtons(options)),
  );
}

// The keyboard goes on where it was. At the first and the last page it goes on at the table.
function focusOn(place, key) {
  const again = place.querySelector(`[data-key="${CSS.escape(key)}"]:not(:disabled)`);
  (again ?? place.querySelector(".scroll")).focus();
}

/**
 * A table of which one page after the other is asked for. The address of the view says which page is shown, in which
 * order. `key` names the table where a view has two.
 */
export async function pagedTable(options) {
  const place = h("div", {});
  const { key = "", limit = 50 } = options;
  const noted = readTable(key);
  const state = { limit, offset: noted.offset, sort: noted.sort ?? options.sort, order: noted.order ?? options.order };
  const load = (offset, limit) =>
    options.ask({ offset, limit, sort: state.sort, order: state.order });
  async function show() {
    place.setAttribute("aria-busy", "true");
    let answer = await load(state.offset, limit);
    if (answer.rows.length === 0 && answer.total > 0) {  // rows that a link names are gone
      state.offset = Math.floor((answer.total - 1) / limit) * limit;
      answer = await load(state.offset, limit);
    }
    const go = async (change) => {
      Object.assign(state, change);
      noteTable(key, state);
      const pressed = place.contains(document.activeElement) && document.activeElement.dataset.key;
      try {
        await show();
        if (pressed) focusOn(place, pressed);
      } catch (error) {
        if (error.name !== "AbortError") replace(place, h("p", { class: "error" }, error.message));
      }
    };
    replace(
      place,
      options.above?.(answer),
      table({
        ...options,
        ...state,
        rows: answer.rows,
        total: answer.total,
        load,
        onPage: (offset) => go({ offset }),
        onSort: (sort, order) => go({ sort, order, offset: 0 }),
      }),
    );
    place.removeAttribute("aria-busy");
  }
  await show();
  return place;
}

/** Names and values. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) =>
        h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "string" ? printable(value) : value)),
      ),
  );
}
