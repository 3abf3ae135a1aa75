// Several runs side by side: shared charts, commands on a lane per run, last values and differences
// to one of them. Runs are aligned as they are, at their starts, or at a command of each.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";
import * as api from "../lib/api.js";
import { href, runHref, set } from "../lib/address.js";
import { count, middle, number, text, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { state } from "../lib/state.js";
import { DASH_NAMES, summaryOf } from "../parts/chart.js";
import { markersOf } from "../parts/timeline.js";
import { empty, failed, waiting } from "../parts/words.js";
import { leaves } from "./about.js";
import { item } from "./media.js";
import { stateText } from "./runs.js";

const SHOWN_AT_FIRST = 6;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX";

const ALIGNED = { "": "as they are", start: "at their starts", command: "at a command of each" };
const ACTED = ["▲", "?"];

const dashOf = (at) => DASH_NAMES[at < 8 ? at % 4 : Math.floor(at / 8) % 4];
const toNumber = (value) => (typeof value === "number" ? value : Number.NaN);

const ids = () => (state.route.query.runs ?? "").split(",").filter(Boolean);
const runOf = (id) => loaded(`run ${id}`);

function refresh() {
  ids().forEach((id) => refreshRun(id));
}

async function refreshRun(id) {
  const path = `runs/${encodeURIComponent(id)}`;
  await Promise.all([
    load(`run ${id}`, () => api.get(path)),
    load(`commands ${id}`, () => api.get(`${path}/commands`)),
    load(`metrics ${id}`, () => api.get(`${path}/metrics`)),
  ]);
  refreshCurves(id);
}

function refreshCurves(id) {
  const names = shownNames().filter((name) => metricsOf(id).some((one) => one.name === name));
  if (!names.length) return;
  const { from, to, x } = state.route.query;
  const shift = shiftOf(id) ?? 0;
  const ask = { name: names, from: moved(from, shift), to: moved(to, shift), x, px: 600 };
  load(`curves ${id}`, () => api.get(`runs/${encodeURIComponent(id)}/series`, ask).then((answer) => ({ ...answer, shift })));
}

const moved = (end, shift) => (end === undefined ? undefined : Number(end) + shift);

function again(fields) {
  set(fields);
  ids().forEach(refreshCurves);
}

// Commands ------------------------------------------------------------------------------------

const markers = (id) => markersOf(loaded(`commands ${id}`).value?.commands ?? []).sort((a, b) => a.x - b.x);

// The command at which a run is aligned: the one that was chosen, else its first that acted.
function zeroOf(id) {
  const chosen = (state.route.query.at ?? "").split(",");
  const acted = markers(id).filter((one) => ACTED.includes(one.mark));
  return acted.find((one) => chosen.includes(one.id)) ?? acted[0];
}

function alignAt(id, command) {
  const own = new Set(markers(id).map((one) => one.id));
  const others = (state.route.query.at ?? "").split(",").filter((one) => one && !own.has(one));
  again({ align: "command", at: [...others, command].join(), from: "", to: "" });
}

// What is taken off every x of a run; null where it has nothing to be aligned at.
function shiftOf(id) {
  const { align, x = "step" } = state.route.query;
  const { attempts = [], created_at: began = 0 } = runOf(id).value ?? {};
  if (align === "start") {
    const first = Math.min(...attempts.map((one) => one.first_step ?? Infinity));
    return { step: Number.isFinite(first) ? first : 0, time: 0, wall: began }[x] ?? 0;
  }
  if (align !== "command") return 0;
  const zero = zeroOf(id);
  if (!zero) return null;
  return { step: zero.x, time: zero.at - began, wall: zero.at }[x] ?? 0;
}

// Along the shown axis, of a marker that stands at a step.
function placeOf(id, marker) {
  const { x = "step" } = state.route.query;
  const place = { step: marker.x, time: marker.at - runOf(id).value?.created_at, wall: marker.at }[x];
  return Number.isFinite(place) ? place - (shiftOf(id) ?? 0) : null;
}

function lanes() {
  const { from, to } = state.route.query;
  const placed = ids().map((id) => markers(id).flatMap((one) => {
    const x = placeOf(id, one);
    return x === null ? [] : [{ ...one, x }];
  }));
  if (!placed.some((one) => one.length)) return nothing;
  const ends = [...placed.flat().map((one) => one.x), ...ids().flatMap((id) => curvesOf(id).flatMap((one) => (one.x.length ? [one.x[0], one.x.at(-1)] : [])))];
  const range = { from: from === undefined ? Math.min(...ends) : Number(from), to: to === undefined ? Math.max(...ends) + 1e-9 : Number(to) };
  return html`<section class="timeline" aria-label="Commands"><h2>Commands</h2>
    <p class="quiet">Choose one to align its run there.</p>
    ${ids().map((id, at) => html`<div class="lane"><span title=${nameOf(id)}>${LETTERS[at]}<span class="unseen"> ${nameOf(id)}</span></span>
      ${placed[at].length ? html`<lh-timeline .given=${{ markers: placed[at], ...range }} @choose=${(event) => alignAt(id, event.detail)}></lh-timeline>` : html`<span class="quiet">no command</span>`}</div>`)}
  </section>`;
}

// Curves --------------------------------------------------------------------------------------

// The curves of a run, shifted; those that were asked for with another shift are not drawn.
function curvesOf(id) {
  const answer = loaded(`curves ${id}`).value;
  const shift = shiftOf(id) ?? 0;
  if (!answer || answer.shift !== shift) return [];
  return answer.series.map((one) => (shift ? { ...one, x: one.x.map((x) => x - shift), odd: (one.odd ?? []).map((odd) => ({ ...odd, x: odd.x - shift })) } : one));
}

const metricsOf = (id) => loaded(`metrics ${id}`).value?.metrics ?? [];

function allNames() {
  const counts = new Map();
  for (const id of ids()) for (const { name } of metricsOf(id)) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || /loss/.test(b[0]) - /loss/.test(a[0])).map(([name]) => name);
}

function shownNames() {
  const chosen = state.route.query.metrics;
  if (!chosen) return allNames().slice(0, SHOWN_AT_FIRST);
  return allNames().filter((name) => name.includes(chosen)).slice(0, 24);
}

function zoom(event) {
  const range = event.detail;
  const tidy = (value) => (state.route.query.x ? Number(value.toPrecision(12)) : Math.round(value));
  set(range ? { from: tidy(range.from), to: tidy(range.to) } : { from: "", to: "" }, { replace: false });
  ids().forEach(refreshCurves);
}

const nameOf = (id) => visible(runOf(id).value?.name ?? id.slice(0, 8));

function chart(name) {
  const series = ids().flatMap((id, at) => curvesOf(id).filter((one) => one.name === name && one.kind !== "string").slice(-1).map((one) => ({
    label: `${LETTERS[at]} ${nameOf(id)}`, x: one.x, y: one.y.map(toNumber), odd: one.odd ?? [], color: at, dash: dashOf(at),
  })));
  const { from, to, x = "step", align } = state.route.query;
  const axis = align && x === "wall" ? "time" : x;
  const key = JSON.stringify([from, to, axis, align, ...series.map((one) => [one.label, one.x.length, one.x[0], one.x.at(-1), one.y.at(-1)])]);
  const made = (state.page.data ||= new Map());
  if (made.get(name)?.key !== key) {
    made.set(name, {
      key,
      data: {
        series,
        axis,
        from: from === undefined ? undefined : Number(from),
        to: to === undefined ? undefined : Number(to),
        restarts: align === "command" ? [{ x: 0, text: "the command" }] : [],
        summary: series.map((one) => summaryOf(one.label, one, axis)).join(". "),
      },
    });
  }
  return html`<article class="chart"><header class="line"><h3 title=${visible(name)}>${middle(name, 34)}</h3></header>
    <lh-chart .data=${made.get(name).data} @zoom=${zoom}></lh-chart></article>`;
}

const baseline = () => (ids().includes(state.route.query.base) ? state.route.query.base : ids()[0]);

function difference(last, reference) {
  if (typeof last !== "number" || typeof reference !== "number") return nothing;
  return html` <span class="difference quiet">${last >= reference ? "+" : "−"}${number(Math.abs(last - reference))}</span>`;
}

// Lowest and highest of what the charts show.
function extremes(id, name) {
  const ys = (curvesOf(id).find((one) => one.name === name)?.y ?? []).filter(Number.isFinite);
  return ys.length ? html`<br><span class="quiet">${number(Math.min(...ys))} … ${number(Math.max(...ys))}</span>` : nothing;
}

function values(names) {
  const base = baseline();
  const lastOf = (id, name) => metricsOf(id).find((one) => one.name === name)?.last;
  return html`<section><h2>Last values</h2>
    <p class="quiet">Differences are to ${LETTERS[ids().indexOf(base)]} ${nameOf(base)}; below each, lowest … highest of the range.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Last values"><table class="plain values">
    <thead><tr><th scope="col">Metric</th>${ids().map((id, at) => html`<th scope="col" class="number">${LETTERS[at]}</th>`)}</tr></thead>
    <tbody>${names.map((name) => html`<tr><th scope="row">${visible(name)}</th>${ids().map((id) => html`<td class="number">${number(lastOf(id, name))}${id === base ? nothing : difference(lastOf(id, name), lastOf(base, name))}${extremes(id, name)}</td>`)}</tr>`)}</tbody></table></div></section>`;
}

// Media ---------------------------------------------------------------------------------------

const mediaOf = (id) => loaded(`media ${id}`).value;

// Each run shows what it has at the chosen step, or before it.
async function refreshMedia(id) {
  const path = `runs/${encodeURIComponent(id)}/media`;
  const { name, until } = state.route.query;
  await load(`media ${id}`, async () => {
    const answer = await api.get(path, { name });
    const step = until === undefined ? answer.step : answer.steps.findLast((one) => one <= Number(until));
    if (step === undefined) return { ...answer, step: null, items: [] };
    return step === answer.step ? answer : api.get(path, { name, step });
  });
}

function chooseMedia(fields) {
  set(fields);
  ids().forEach(refreshMedia);
}

function sideBySide() {
  const opened = (event) => event.target.open && !state.page.hasMedia && (state.page.hasMedia = true) && ids().forEach(refreshMedia);
  return html`<details class="group" @toggle=${opened}><summary><h2>Media</h2></summary>${state.page.hasMedia ? mediaView() : nothing}</details>`;
}

function mediaView() {
  const answers = ids().map(mediaOf);
  if (answers.some((one) => !one)) return waiting("Reading the lists of media …");
  const names = [...new Set(answers.flatMap((one) => one.names))].sort();
  if (!names.length) return empty("These runs recorded no media.");
  const steps = [...new Set(answers.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const { name = "", until } = state.route.query;
  return html`<div class="line">
      <label>name <select @change=${(event) => chooseMedia({ name: event.target.value, until: "" })}>
        <option value="" ?selected=${!name}>all</option>
        ${names.map((one) => html`<option value=${one} ?selected=${one === name}>${visible(one)}</option>`)}</select></label>
      <label>up to step <select @change=${(event) => chooseMedia({ until: event.target.value })}>
        <option value="" ?selected=${until === undefined}>newest of each</option>
        ${steps.map((one) => html`<option value=${one} ?selected=${String(one) === until}>${count(one)}</option>`)}</select></label>
    </div>
    ${ids().map((id, at) => html`<section aria-label=${`Media of ${nameOf(id)}`}><h3>${LETTERS[at]} ${nameOf(id)}</h3>
      ${answers[at].items.length ? html`<div class="media">${answers[at].items.map((one) => item({ ...one, run: id }))}</div>` : html`<p class="quiet">nothing up to this step</p>`}</section>`)}`;
}

function differences() {
  const configs = ids().map((id) => new Map(leaves(runOf(id).value?.config ?? {}).map(([path, value]) => [path, text(value)])));
  const paths = [...new Set(configs.flatMap((one) => [...one.keys()]))];
  const differing = paths.filter((path) => new Set(configs.map((one) => one.get(path))).size > 1);
  const base = configs[ids().indexOf(baseline())];
  return html`<section><h2>Differences of configuration</h2>${differing.length
    ? html`<div class="scroll" tabindex="0" role="region" aria-label="Differences of configuration"><table class="plain">
      <thead><tr><th scope="col">Field</th>${ids().map((id, at) => html`<th scope="col">${LETTERS[at]}</th>`)}</tr></thead>
      <tbody>${differing.map((path) => html`<tr><th scope="row">${visible(path)}</th>${configs.map((one) => html`<td class=${one.get(path) === base.get(path) ? "" : "differs"}>${one.get(path) ?? "–"}</td>`)}</tr>`)}</tbody></table></div>`
    : html`<p class="quiet">None.</p>`}</section>`;
}

function tools() {
  const { query } = state.route;
  const choice = (label, name, choices, change) => html`<label>${label}
    <select @change=${(event) => change(event.target.value)}>
      ${choices.map(([value, words]) => html`<option value=${value} ?selected=${value === name}>${words}</option>`)}</select></label>`;
  const axes = [...new Set(["step", "time", "wall", ...ids().flatMap((id) => metricsOf(id).flatMap((one) => one.axes ?? []))])];
  const runs = ids().map((id, at) => [id, `${LETTERS[at]} ${middle(nameOf(id), 24)}`]);
  return html`<div class="line">
    ${choice("baseline", baseline(), runs, (base) => set({ base: base === ids()[0] ? "" : base }))}
    ${choice("x", query.x ?? "step", axes.map((one) => [one, one]), (x) => again({ x: x === "step" ? "" : x, from: "", to: "" }))}
    ${choice("align", query.align ?? "", Object.entries(ALIGNED), (align) => again({ align, at: "", from: "", to: "" }))}
    <label>metrics <input type="search" data-search .value=${query.metrics ?? ""} spellcheck="false"
      @input=${(event) => again({ metrics: event.target.value })}></label>
    ${query.from !== undefined || query.to !== undefined ? html`<button type="button" @click=${() => zoom({ detail: null })}>Whole range</button>` : nothing}
  </div>`;
}

export default {
  title: () => "Compare",
  same: (before, after) => before.query.runs === after.query.runs,
  open: refresh,
  watched: ids,
  change: ({ run }) => ids().includes(run) && refreshRun(run),
  view() {
    if (ids().length < 2) {
      return html`<h1 tabindex="-1">Compare</h1>${empty("Choose two runs or more.", html`<p>Tick them in the <a href=${href("/")}>list of runs</a> (<kbd>x</kbd>), then Compare (<kbd>c</kbd>).</p>`)}`;
    }
    const names = shownNames();
    const errors = ids().flatMap((id) => runOf(id).error ?? []);
    return html`<h1 tabindex="-1">Compare ${ids().length} runs</h1>
      <ul class="legend">${ids().map((id, at) => html`<li><span class="swatch" data-series=${at % 8} data-dash=${dashOf(at)} aria-hidden="true"></span>
        ${LETTERS[at]} <a href=${runHref(id)}>${nameOf(id)}</a> ${runOf(id).value ? stateText(runOf(id).value) : nothing}
        ${shiftOf(id) === null && loaded(`commands ${id}`).value ? html`<span class="quiet">no command acted; it stands as it is</span>` : nothing}</li>`)}</ul>
      ${errors.map((error) => failed(error))}
      ${tools()}
      ${names.length ? html`<div class="charts">${repeat(names, (name) => name, chart)}</div>${lanes()}${values(names)}`
        : ids().some((id) => loaded(`metrics ${id}`).loading) ? waiting("Reading the runs …") : empty("These runs have no metric.")}
      ${differences()}
      ${sideBySide()}`;
  },
};
