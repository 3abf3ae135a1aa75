// Single keys. They are ignored in fields and in dialogs, with modifiers, and can be switched off.

import { settings } from "./state.js";

const CHORD_MS = 1200;
let chord = "";
let chordAt = 0;

export const HELP = [
  ["/", "search"],
  ["1 – 7", "tabs of a run"],
  ["j k", "next, previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["c", "compare what is selected"],
  ["[ ]", "previous, next command"],
  ["f t", "chart: full screen, table"],
  ["+ - 0", "chart: zoom, reset"],
  ["← →", "chart and strip: move the cursor"],
  ["space", "pause the charts"],
  ["g r, g s", "runs, sync"],
  ["?", "this table"],
];

// `find(key)` returns what the key does here, or nothing.
export function listen(find) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
    if (!settings.get("keys", true)) return;
    const at = event.target;
    if (at.closest?.("input, textarea, select, dialog, [contenteditable]")) return;
    if ((event.key === " " || event.key === "Enter") && at.closest?.("a, button, summary")) return;
    const now = Date.now();
    const key = chord && now - chordAt < CHORD_MS ? `${chord} ${event.key}` : event.key;
    chord = event.key === "g" ? "g" : "";
    chordAt = now;
    const action = find(key === " " ? "space" : key);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// Moves the focus among the rows of the page's main table.
export function moveRow(by) {
  const rows = [...document.querySelectorAll("main [data-row]")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement.closest?.("[data-row]"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

export const currentRow = () => document.activeElement.closest?.("main [data-row]");
