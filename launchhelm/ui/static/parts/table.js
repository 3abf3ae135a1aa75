// Tables that sort by their headings; on narrow pages each row becomes a card by its labels.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";

// Sorted copy: stable, what is not known comes last whichever way.
export function sorted(rows, value, down) {
  const known = rows.filter((row) => value(row) !== null && value(row) !== undefined && value(row) !== "");
  const unknown = rows.filter((row) => !known.includes(row));
  known.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return down ? -order : order;
  });
  return [...known, ...unknown];
}

// columns: {id, head, cell(row), number, sorts}; sort: {id, down}; onSort(text) as in addresses.
export function table({ caption, columns, rows, key, sort = {}, onSort, rowClass, onOpen, foot }) {
  const heading = (column) => {
    const now = sort.id === column.id;
    const next = now && !sort.down ? `-${column.id}` : column.id;
    return html`<th scope="col" class=${column.number ? "number" : ""}
      aria-sort=${now ? (sort.down ? "descending" : "ascending") : nothing}>
      ${onSort && column.sorts !== false
        ? html`<button type="button" class="head" @click=${() => onSort(next)}>${column.head}${now ? (sort.down ? " ↓" : " ↑") : ""}</button>`
        : column.head}
    </th>`;
  };
  const opens = (row) => (event) => {
    if (event.key === "Enter" && event.target === event.currentTarget) onOpen(row);
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map(heading)}</tr></thead>
      <tbody>
        ${repeat(rows, key, (row) => html`<tr class=${rowClass?.(row) ?? ""} data-row=${key(row)}
          tabindex=${onOpen ? 0 : nothing} @keydown=${onOpen ? opens(row) : nothing}>
          ${columns.map((column, at) => at
            ? html`<td data-head=${column.head} class=${column.number ? "number" : ""}>${column.cell(row)}</td>`
            : html`<th scope="row" data-head=${column.head} class=${column.number ? "number" : ""}>${column.cell(row)}</th>`)}
        </tr>`)}
      </tbody>
      ${foot ? html`<tfoot><tr><td colspan=${columns.length}>${foot}</td></tr></tfoot>` : nothing}
    </table>
  </div>`;
}

export function parseSort(text, otherwise = "") {
  const given = text || otherwise;
  return given.startsWith("-") ? { id: given.slice(1), down: true } : { id: given, down: false };
}
