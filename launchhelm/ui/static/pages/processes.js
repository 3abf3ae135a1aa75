// Every rank: who holds the run up, a strip of the past, and a table that folds what is well.

import { html, nothing } from "../vendor/lit-html.js";
import * as api from "../lib/api.js";
import { go, runHref, set } from "../lib/address.js";
import { count, duration, middle, number, plural, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { state, update } from "../lib/state.js";
import "../parts/strip.js";
import { parseSort, sorted, table } from "../parts/table.js";
import { copyButton, empty, shown } from "../parts/words.js";

const MARKS = { ok: "", starting: "…", busy: "▣", behind: "▼", late: "◐", silent: "✕", ended: "■", missing: "?", gone: "✕" };
const WELL = new Set(["ok", "ended"]);
const MEASURES = { late: "late by", step: "step time", behind: "steps behind", gap: "between beats" };
const FEW = 16;
const MOST_ROWS = 4096;

const path = (rest) => `runs/${encodeURIComponent(state.route.id)}/${rest}`;

function refresh() {
  const { attempt } = state.route.query;
  load("processes", () => api.get(path("processes"), { attempt }));
}

function refreshStrip() {
  if (state.run && state.run.world_size <= 1) return;
  const { measure } = state.route.query;
  load("skew", () => api.get(path("skew"), { measure, columns: 240, rows: 320 }));
}

function objects({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]])));
}

function findings(list) {
  if (!list.length) return html`<p class="finding well">No process stands out.</p>`;
  return html`<ul class="findings">${list.map((one) => html`<li data-weight=${one.weight} data-rule=${one.rule}>
    <p><span class=${`mark ${one.weight === "bad" ? "bad" : "unknown"}`} aria-hidden="true">${one.weight === "bad" ? "▼" : "·"}</span> ${visible(one.text)}</p>
    ${(one.look_at ?? []).length ? html`<p class="quiet">Look at: ${one.look_at.map((line, at) => html`${at ? "; " : ""}<code>${visible(line)}</code>`)}
      ${copyButton(one.look_at.join("\n"), "copy", "what to look at")}</p>` : nothing}
  </li>`)}</ul>`;
}

function strip() {
  const slot = loaded("skew");
  if (!slot.value) return slot.error && slot.error.status !== 404 ? html`<p class="quiet">No strip: ${slot.error.message}</p>` : nothing;
  const given = slot.value;
  if (!given.cells || !given.rows || !given.columns) return html`<p class="quiet">The strip of the past begins with the second step.</p>`;
  const measures = given.measures ?? [];
  return html`<section aria-label="Strip of the past">
    <div class="line">
      ${measures.length ? html`<label>measure <select @change=${(event) => { set({ measure: event.target.value }); refreshStrip(); }}>
        ${measures.map((one) => html`<option value=${one} ?selected=${one === given.measure}>${MEASURES[one] ?? one}</option>`)}</select></label>` : html`<strong>${visible(given.measure)}</strong>`}
      <span class="quiet">steps ${count(given.from)}–${count(given.to)} · worst in each cell</span>
    </div>
    <lh-strip .given=${given} @choose=${(event) => go(runHref(state.route.id, "charts", { rank: event.detail }))}></lh-strip>
    ${(given.worst ?? []).length ? html`<details><summary>the ${given.worst.length} worst cells</summary>
      <table class="plain"><thead><tr><th scope="col">Rank</th><th scope="col">Steps</th><th scope="col">Value</th></tr></thead>
      <tbody>${given.worst.map((one) => html`<tr><th scope="row">${one.rank}</th><td>${count(one.from)}–${count(one.to)}</td><td>${number(one.value)} ${given.unit}</td></tr>`)}</tbody></table></details>` : nothing}
  </section>`;
}

const phaseText = (row) => (row.phase ? `${visible(row.phase)}${row.phase_s === null || row.phase_s === undefined ? "" : ` ${duration(row.phase_s)}`}` : "");
const ms = (value) => (value === null || value === undefined ? "" : duration(value / 1000));

function columns(value) {
  const has = (name) => value.columns.includes(name) && !(value.not_reported ?? []).includes(name);
  const all = [
    { id: "rank", head: "Rank", number: true, cell: (row) => row.rank },
    { id: "host", head: "Host", cell: (row) => middle(row.host, 24) },
    { id: "local_rank", head: "Local", number: true, cell: (row) => row.local_rank ?? "" },
    { id: "pid", head: "Pid", number: true, cell: (row) => row.pid ?? "" },
    { id: "state", head: "State", cell: (row) => html`<span class=${WELL.has(row.state) ? "" : "state"} data-state=${row.state}><span aria-hidden="true">${MARKS[row.state] ?? ""}</span> ${row.state}</span>` },
    { id: "step", head: "Step", number: true, cell: (row) => count(row.step) },
    { id: "phase", head: "Phase", cell: phaseText },
    { id: "beat_s", head: "Beat", number: true, cell: (row) => (row.beat_s === null || row.beat_s === undefined ? "" : duration(row.beat_s)) },
    { id: "step_ms", head: "Step time", number: true, cell: (row) => ms(row.step_ms) },
    { id: "wait_ms", head: "Wait", number: true, cell: (row) => ms(row.wait_ms) },
    { id: "dropped", head: "Lost", number: true, cell: (row) => (row.dropped ? count(row.dropped) : "") },
    { id: "controls", head: "Controls", cell: (row) => visible(row.controls ?? "") },
  ];
  return all.filter((column) => has(column.id));
}

// Words match any column; `state:silent host:gpu-0*` match theirs.
function filtered(rows, text) {
  const tests = text.split(/\s+/).filter(Boolean).map((word) => {
    const [, name, wanted] = /^(\w+):(.*)$/.exec(word) ?? [null, "", word];
    const pattern = new RegExp(wanted.replace(/[.+?^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*"), "i");
    return (row) => (name ? [row[name]] : Object.values(row)).some((value) => pattern.test(String(value ?? "")));
  });
  return rows.filter((row) => tests.every((test) => test(row)));
}

function folded(well) {
  const hosts = new Set(well.map((row) => row.host));
  const steps = well.map((row) => row.step).filter((step) => step !== null && step !== undefined);
  const beats = well.map((row) => row.beat_s).filter((beat) => beat !== null && beat !== undefined);
  const words = [...new Set(well.map((row) => row.state))].join(" or ");
  return html`${plural(hosts.size, "host")}, ${plural(well.length, "rank")}: ${words}${steps.length ? html`, step ${count(Math.min(...steps))}${Math.min(...steps) === Math.max(...steps) ? "" : `–${count(Math.max(...steps))}`}` : nothing}${beats.length ? `, beat ≤ ${duration(Math.max(...beats))}` : ""}
    <button type="button" class="small" @click=${() => set({ only: "all" })}>show</button>`;
}

function rowsView(value) {
  const { sort: sortText, only, host } = state.route.query;
  const all = filtered(objects(value), host ?? "");
  const sort = parseSort(sortText, "rank");
  const few = all.length <= FEW;
  const showsAll = few || only === "all";
  const exceptions = all.filter((row) => !WELL.has(row.state) || (row.controls && row.controls !== "same"));
  const rows = sorted(showsAll ? all : exceptions, (row) => row[sort.id], sort.down);
  const limit = state.page.more ?? MOST_ROWS;
  const well = all.filter((row) => !exceptions.includes(row));
  const foot = !showsAll && well.length ? folded(well)
    : rows.length > limit ? html`${count(limit)} of ${count(rows.length)} <button type="button" class="small" @click=${() => update((state.page.more = limit + MOST_ROWS, {}))}>show more</button>`
    : nothing;
  return html`<div class="line">
      <label>ranks <select ?disabled=${few} @change=${(event) => set({ only: event.target.value })}>
        <option value="" ?selected=${!showsAll}>only exceptions</option><option value="all" ?selected=${showsAll}>all</option></select></label>
      <label>filter <input type="search" data-search .value=${host ?? ""} placeholder="state:silent host:gpu-0*" spellcheck="false" @input=${(event) => set({ host: event.target.value })}></label>
      ${copyButton([value.columns.join("\t"), ...rows.map((row) => value.columns.map((name) => row[name] ?? "").join("\t"))].join("\n"), "copy as text")}
      ${(value.not_reported ?? []).length ? html`<span class="quiet">not reported: ${value.not_reported.join(", ")}</span>` : nothing}
    </div>
    ${table({
      caption: "Processes",
      columns: columns(value),
      rows: rows.slice(0, limit),
      key: (row) => row.rank,
      sort,
      onSort: (next) => set({ sort: next }),
      rowClass: (row) => (WELL.has(row.state) ? "" : "exception"),
      onOpen: (row) => go(runHref(state.route.id, "charts", { rank: row.rank })),
      foot: foot === nothing ? null : foot,
    })}
    <p class="quiet">${value.world_size ? `world size ${count(value.world_size)} · ` : ""}attempt ${value.attempt} · front ${count(value.front)}${value.pace_s ? ` · ${duration(value.pace_s)} per step` : ""}
      · late after ${duration(value.late_s)}, or ${duration(value.awaited_s)} when no other rank gets further · silent after ${duration(value.silent_s)}${value.clock_spread_s ? ` · clocks of hosts differ by up to ${duration(value.clock_spread_s)}` : ""}${agesText(value)}</p>`;
}

function agesText({ watched_s }) {
  if (state.info?.mode === "server") return " · ages since the server last heard of a process";
  return watched_s !== undefined && watched_s < 15 ? " · ages by the host's clock until watched for 15 s" : "";
}

export default {
  open() {
    refresh();
    refreshStrip();
  },
  change({ what }) {
    if (what.includes("beats") || what.includes("attempts") || what.includes("points")) refresh();
    if (what.includes("beats")) refreshStrip();
  },
  view: () => shown(loaded("processes"), "Reading the processes …", (value) => (value.rows.length
    ? html`${findings(value.findings ?? [])}${value.rows.length > 1 ? strip() : nothing}${rowsView(value)}`
    : empty("No process has been seen yet.", html`<p>Each rank shows here as soon as it opens the run.</p>`)), refresh),
};
