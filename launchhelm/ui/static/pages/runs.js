// All runs: one row each, from records and last values only.

import { html, nothing } from "../vendor/lit-html.js";
import * as api from "../lib/api.js";
import { go, href, runHref, set } from "../lib/address.js";
import { ago, blocks, count, duration, fullTime, middle, number, plural, visible } from "../lib/format.js";
import { currentRow } from "../lib/keys.js";
import { load, loaded } from "../lib/load.js";
import { state, update } from "../lib/state.js";
import { table, parseSort } from "../parts/table.js";
import { empty, failed, waiting } from "../parts/words.js";

const LIMIT = 50;
const MOST_COMPARED = 24;
const TYPING_MS = 250;
const READING_MS = 1000;

let typing = 0;

function refresh() {
  const { q, sort, after } = state.route.query;
  load("runs", () => api.get("runs", { q, sort, after, limit: LIMIT })).then(readOn);
}

// While the first listing is still being made, the page asks for what has been read meanwhile.
function readOn() {
  const { value } = loaded("runs");
  if (state.route.page === "runs" && value && value.scanned < value.expected) setTimeout(refresh, READING_MS);
}

const chosen = () => (state.page.chosen ||= new Set());

function choose(id) {
  const ids = chosen();
  if (!ids.delete(id) && ids.size < MOST_COMPARED) ids.add(id);
  update();
}

const compareHref = () => href("/compare", { runs: [...chosen()].join() });

function search(event) {
  clearTimeout(typing);
  const q = event.target.value;
  typing = setTimeout(() => {
    set({ q, after: "" });
    refresh();
  }, TYPING_MS);
}

function sortBy(sort) {
  set({ sort, after: "" });
  refresh();
}

const bad = (row) => (row.ranks_bad ? html` <span class="mark bad">▼${row.ranks_bad}<span class="unseen"> not well</span></span>` : nothing);

function pending(row) {
  const unknown = row.unknown ? html`<span class="mark unknown">? ${plural(row.unknown, "unknown outcome")}</span> ` : nothing;
  return html`${unknown}${(row.pending ?? []).map((one) => html`<span class="mark" title=${visible(one.text)}>◆ ${middle(one.name || one.text, 28)}</span> `)}`;
}

function trendText({ trend }) {
  const known = trend.filter((value) => value !== null);
  return `from ${number(known[0])} to ${number(known.at(-1))}, lowest ${number(Math.min(...known))}, highest ${number(Math.max(...known))}`;
}

const synced = ({ sync }) => (sync?.problem
  ? html`<span class="mark unknown" title=${visible(sync.problem)}>! ${visible(sync.text)}<span class="unseen">: ${visible(sync.problem)}</span></span>`
  : visible(sync?.text ?? ""));

const DOTS = { running: "●", starting: "…", finished: "■", failed: "✕", stopped: "■", copy: "□", "no news": "◐", unreadable: "✕" };

export const stateText = (row) => html`<span class="state" data-state=${row.state}>
  <span aria-hidden="true">${DOTS[row.state] ?? "·"}</span> ${row.state_text || row.state}</span>`;

function columns() {
  return [
    {
      id: "name",
      head: "Run",
      cell: (row) => html`<input type="checkbox" aria-label=${`select ${visible(row.name)}`}
          .checked=${chosen().has(row.id)} @change=${() => choose(row.id)}>
        <a href=${runHref(row.id)} title=${visible(row.name)}>${middle(row.name)}</a>
        ${(row.tags ?? []).map((tag) => html`<span class="tag">${middle(tag, 20)}</span> `)}`,
    },
    { id: "state", head: "State", cell: stateText },
    { id: "step", head: "Step", number: true, cell: (row) => count(row.step) },
    { id: "ranks", head: "Ranks", number: true, cell: (row) => html`${count(row.ranks)}${bad(row)}` },
    {
      id: "last",
      head: "Last value",
      number: true,
      cell: (row) => row.last
        ? html`<span title=${`${visible(row.last.name)} = ${row.last.value}`}><span class="quiet">${middle(row.last.name, 18)}</span> ${number(row.last.value)}</span>`
        : "–",
    },
    {
      id: "trend",
      head: "Trend",
      sorts: false,
      cell: (row) => (row.trend?.length ? html`<span class="blocks" role="img" aria-label=${trendText(row)}>${blocks(row.trend)}</span>` : ""),
    },
    {
      id: "started_at",
      head: "Started",
      number: true,
      cell: (row) => html`<span title=${fullTime(row.started_at)}>${row.started_at ? ago(row.started_at) : row.age_s ? `${duration(row.age_s)} ago` : "–"}</span>`,
    },
    { id: "pending", head: "Pending", sorts: false, cell: pending },
    { id: "sync", head: "Sync", sorts: false, cell: synced },
  ];
}

const whole = (value) => Object.values(value.counts).reduce((sum, amount) => sum + amount, 0);

function counts(value) {
  const texts = Object.entries(value.counts).filter(([, amount]) => amount).map(([word, amount]) => `${count(amount)} ${word}`);
  if (value.unknown) texts.push(plural(value.unknown, "unknown outcome"));
  return texts.join(" · ") || `${count(value.total)} runs`;
}

function unreadable(list) {
  if (!list?.length) return nothing;
  return html`<details ?open=${list.length < 4}>
    <summary>${plural(list.length, "directory looks", "directories look")} like a run but cannot be read</summary>
    <ul>${list.map((one) => html`<li><code>${visible(one.path)}</code>: ${visible(one.reason)}</li>`)}</ul>
  </details>`;
}

function noRuns(value) {
  const roots = state.info.roots.map(visible).join(", ");
  if (value.scanned < value.expected) return waiting(`Read ${count(value.scanned)} of ${count(value.expected)} directories …`);
  if (state.route.query.q) return empty("No run fits this search.", html`<p>It takes words of a name, an id or a tag; <code>state:running</code>,
    <code>project:llm</code>, <code>group:base</code>, <code>host:gpu-0</code>, <code>tag:base</code>; <code>lr&gt;1e-4</code> of the
    configuration or the summary; <code>after:2026-11-01</code>. A <code>-</code> before a term leaves out what fits it.</p>
    <p><button type="button" @click=${clear}>Show all runs</button></p>`);
  return empty(`No runs in ${roots}.`, html`
    <p>These lines make one:</p>
    <pre tabindex="0">import launchhelm

with launchhelm.init("first") as run:
    run.log({"train/loss": 1.0}, step=1)</pre>
    <p>Runs somewhere else? <code>launchhelm ui DIRECTORY</code> looks there.</p>`);
}

function clear() {
  set({ q: "", after: "" });
  refresh();
}

function grouped(value, sort) {
  const by = state.route.query.group;
  const make = (rows, caption) => table({
    caption,
    columns: columns(),
    rows,
    key: (row) => row.id,
    sort,
    onSort: sortBy,
    onOpen: (row) => go(runHref(row.id)),
    rowClass: (row) => (chosen().has(row.id) ? "chosen" : ""),
  });
  if (!by) return make(value.runs, "Runs");
  const groups = Map.groupBy ? Map.groupBy(value.runs, (row) => row[by] || "none") : new Map([["all", value.runs]]);
  return [...groups].map(([name, rows]) => html`<details open><summary>${by} ${visible(name)} (${rows.length})</summary>${make(rows, `Runs of ${by} ${visible(name)}`)}</details>`);
}

export default {
  title: () => "Runs",
  same: () => true,
  open: refresh,
  watched: () => [],
  change(change) {
    if (change.what.includes("runs") || change.run) refresh();
  },
  keys: () => ({
    Enter: () => currentRow() && go(runHref(currentRow().dataset.row)),
    x: () => currentRow() && choose(currentRow().dataset.row),
    c: () => chosen().size > 1 && go(compareHref()),
  }),
  view() {
    const slot = loaded("runs");
    const { value, error } = slot;
    const { query } = state.route;
    const sort = parseSort(query.sort);
    return html`
      <div class="line">
        <h1 tabindex="-1">Runs</h1>
        <label class="grow">Search
          <input type="search" data-search .value=${query.q ?? ""} @input=${search}
            placeholder="state:running lr>1e-4" spellcheck="false" aria-describedby="search-problem">
        </label>
        <label>Group by
          <select @change=${(event) => set({ group: event.target.value })}>
            ${["", "project", "group", "state", "owner"].map((name) => html`<option value=${name} ?selected=${name === (query.group ?? "")}>${name || "none"}</option>`)}
          </select>
        </label>
        ${chosen().size > 1
          ? html`<a class="button main" href=${compareHref()}>Compare ${chosen().size} selected</a>`
          : nothing}
      </div>
      <div id="search-problem">${error ? failed(error, error.status === 0 ? refresh : null) : nothing}</div>
      ${value
        ? html`<p class="quiet">${counts(value)}${value.scanned < value.expected && value.runs.length ? ` · read ${count(value.scanned)} of ${count(value.expected)}` : ""}</p>
            ${value.runs.length ? grouped(value, sort) : noRuns(value)}
            ${unreadable(value.unreadable)}
            <p class="line">
              ${query.after ? html`<button type="button" @click=${() => { set({ after: "" }); refresh(); }}>First</button>` : nothing}
              <span class="quiet">${plural(value.runs.length, "run")} shown of ${count(value.total)}${query.q ? ` that fit, ${count(whole(value))} in all` : ""}</span>
              ${value.after ? html`<button type="button" @click=${() => { set({ after: value.after }); refresh(); }}>Next ${LIMIT}</button>` : nothing}
            </p>`
        : error ? nothing : waiting("Reading the runs …")}`;
  },
};
