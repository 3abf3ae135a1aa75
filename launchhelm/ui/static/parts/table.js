// Tables that sort by their headings; on narrow pages each row becomes a card by its labels. Of long
// tables only the rows near the screen exist; <lh-room> is the room of the others.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";
import { update } from "../lib/state.js";

const LONG = 120;
const AROUND = 24; // Rows beyond the edges of the screen, for keys and for quick hands.
const ROW_PX = 28;
const narrow = matchMedia("(max-width: 640px)");

class Room extends HTMLElement {
  set rows([amount, height]) {
    this.style.height = `${amount * height}px`;
  }
}

customElements.define("lh-room", Room);

const moved = () => document.querySelector("table.long") && update();
addEventListener("scroll", moved, { passive: true });
addEventListener("resize", moved, { passive: true });

// From which row to which one a long table has to exist, and how high a row is.
function nearScreen(caption, amount) {
  if (amount < LONG || narrow.matches) return { from: 0, to: amount, height: 0 };
  const body = [...document.querySelectorAll("table.long")].find((one) => one.caption.textContent === caption)?.tBodies[0];
  const height = body?.querySelector("[data-row]")?.getBoundingClientRect().height || ROW_PX;
  const above = Math.floor(-(body?.getBoundingClientRect().top ?? 0) / height);
  const from = Math.min(Math.max(0, above - AROUND), Math.max(0, amount - 1));
  return { from, to: Math.min(amount, Math.max(above, 0) + Math.ceil(innerHeight / height) + AROUND), height };
}

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
  const { from, to, height } = nearScreen(caption, rows.length);
  const room = (amount) => (amount ? html`<tr class="room" aria-hidden="true"><td colspan=${columns.length}><lh-room .rows=${[amount, height]}></lh-room></td></tr>` : nothing);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table class=${height ? "long" : ""} aria-rowcount=${height ? rows.length + 1 : nothing}>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map(heading)}</tr></thead>
      <tbody>
        ${room(from)}
        ${repeat(rows.slice(from, to), key, (row, at) => html`<tr class=${rowClass?.(row) ?? ""} data-row=${key(row)}
          aria-rowindex=${height ? from + at + 2 : nothing}
          tabindex=${onOpen ? 0 : nothing} @keydown=${onOpen ? opens(row) : nothing}>
          ${columns.map((column, at) => at
            ? html`<td data-head=${column.head} class=${column.number ? "number" : ""}>${column.cell(row)}</td>`
            : html`<th scope="row" data-head=${column.head} class=${column.number ? "number" : ""}>${column.cell(row)}</th>`)}
        </tr>`)}
        ${room(rows.length - to)}
      </tbody>
      ${foot ? html`<tfoot><tr><td colspan=${columns.length}>${foot}</td></tr></tfoot>` : nothing}
    </table>
  </div>`;
}

export function parseSort(text, otherwise = "") {
  const given = text || otherwise;
  return given.startsWith("-") ? { id: given.slice(1), down: true } : { id: given, down: false };
}
