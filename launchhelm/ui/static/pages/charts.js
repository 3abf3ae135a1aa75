// Charts of a run. Only charts on screen are asked for, in the resolution of the screen.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";
import * as api from "../lib/api.js";
import { go, runHref, set } from "../lib/address.js";
import { count, middle, number, plural, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { settings, state, update } from "../lib/state.js";
import { DASH_NAMES, axisText, summaryOf } from "../parts/chart.js";
import { inputText, markersOf, step } from "../parts/timeline.js";
import { copyButton, download, empty, shown } from "../parts/words.js";

const MOST_NAMES = 24;
const MANY_CHARTS = 200;
const SMOOTH = ["", "0.3", "0.6", "0.9", "0.97"];
const TABLE_ROWS = 300;

const path = (rest) => `runs/${encodeURIComponent(state.route.id)}/${rest}`;
const seen = () => (state.page.seen ||= new Set());
const curves = () => (state.page.curves ||= new Map());
const shownAs = () => (state.page.tables ||= new Set());

function refreshIndex() {
  load("metrics", () => api.get(path("metrics"))).then(refreshCurves);
}

function refreshCommands() {
  load("ledger", () => api.get(path("commands")));
}

let wanted = 0;

function refreshCurves() {
  clearTimeout(wanted);
  wanted = setTimeout(() => {
    if (state.route?.tab !== "charts") return;
    const names = [...seen()].filter((name) => byName().has(name));
    for (let at = 0; at < names.length; at += MOST_NAMES) ask(names.slice(at, at + MOST_NAMES));
  }, 30);
}

const byName = () => new Map((loaded("metrics").value?.metrics ?? []).map((one) => [one.name, one]));

function settingsOfCurves() {
  const { x, from, to, smooth } = state.route.query;
  const attempt = state.route.query.attempt ?? (state.run?.attempts?.length > 1 ? "all" : "");
  const px = Math.min(2000, Math.max(200, Math.round(document.querySelector("lh-chart")?.clientWidth || 600)));
  return { x, from, to, px, smooth, attempt, rank: shownRank() };
}

function ask(names) {
  const query = settingsOfCurves();
  return load(`series ${names[0]}`, async () => {
    const answer = await api.get(path("series"), { name: names, ...query });
    // Meanwhile other settings may have been chosen, and their answer may be here already.
    if (JSON.stringify(query) !== JSON.stringify(settingsOfCurves())) return refreshCurves();
    const kept = curves();
    for (const name of names) {
      kept.set(name, { answer, series: answer.series.filter((one) => one.name === name) });
    }
    state.page.data = new Map();
    return true;
  });
}

const markers = () => markersOf(loaded("ledger").value?.commands ?? []);

// Where each attempt after the first begins, along the axis that is shown.
function restarts(x) {
  const { attempts = [], created_at: began } = state.run ?? {};
  const place = { step: (one) => fromStep(one), wall: (one) => one.started_at, time: (one) => one.started_at - began }[x];
  if (!place || state.route.query.attempt) return [];
  return attempts.slice(1).map((one) => ({ x: place(one), text: `attempt ${one.number} from step ${count(fromStep(one))}` }));
}

const fromStep = (one) => one.resumed_from ?? one.first_step ?? 0;

const touches = (marker, name) => marker.tone === "unknown" || name.includes(marker.name) || /loss/.test(name);

// The newest attempt is drawn strong, older ones faint; raw values are faint under a smoothed line.
function chartData(name) {
  const kept = curves().get(name);
  if (!kept) return null;
  const made = (state.page.data ||= new Map());
  const { x = "step", from, to, y } = state.route.query;
  const withMarks = state.route.query.marks !== "0" && x === "step";
  const version = JSON.stringify([y, withMarks, withMarks ? markers().map((one) => [one.x, one.mark]) : 0, state.run?.attempts?.length]);
  const before = made.get(name);
  if (before?.version === version) return before.data;
  const series = kept.series.flatMap((one, at) => lines(one, at, kept.series.length, name));
  const first = series.find((one) => !one.faint && !one.edge) ?? series[0];
  const data = {
    series,
    axis: x,
    log: y === "log",
    from: from === undefined ? undefined : Number(from),
    to: to === undefined ? undefined : Number(to),
    markers: withMarks ? markers().filter((one) => touches(one, name)) : [],
    restarts: restarts(x),
    summary: first ? said(name, x, { ...first, odd: series.flatMap((one) => one.odd ?? []) }) : `${visible(name)}: no points in this range`,
    empty: !series.some((one) => one.x.length || one.odd?.length),
    texts: kept.series[0]?.kind === "string" || kept.answer.kind === "string",
  };
  made.set(name, { version, data });
  return data;
}

// Ranks are brought together along the steps; along other axes their points do not meet.
const shownRank = () => (state.route.query.rank === "mean" && state.route.query.x ? "" : state.route.query.rank);

const toNumber = (value) => (typeof value === "number" ? value : Number.NaN);

// What is drawn of one answer: a mean with its band, a line, or one that is smoothed over its raw
// values. Attempts that a newer one has replaced are faint.
function lines(one, at, amount, name) {
  const isOld = one.attempt !== "newest" && !state.route.query.attempt;
  const isRank = state.route.query.rank === "all";
  const label = isOld ? `attempt ${one.attempt}` : one.band ? meanText(one) : isRank ? `rank ${one.rank}` : visible(name);
  const line = { label, x: one.x, y: one.y.map(toNumber), odd: one.odd ?? [], jumps: one.jumps ?? [], faint: isOld,
    color: isRank ? at : 0, dash: isRank ? DASH_NAMES[Math.floor(at / 8) % DASH_NAMES.length] : "solid" };
  const edges = one.band ? [{ ...line, odd: [], jumps: [], y: one.band.high, edge: true }, { ...line, odd: [], jumps: [], y: one.band.low, edge: true, isBand: true }] : [];
  if (!one.smooth) return [...edges, line];
  const smooth = { ...line, odd: [], jumps: [], x: one.smooth.x, y: one.smooth.y.map(toNumber) };
  return [...edges, { ...line, faint: true }, smooth];
}

const meanText = ({ ranks, of }) => (ranks === of ? `mean of ${plural(ranks, "rank")}` : `mean of ${count(ranks)} of ${count(of)} ranks`);

function said(name, x, first) {
  const { series } = curves().get(name);
  const texts = [summaryOf(visible(name), first, x)];
  for (const one of series.filter(({ band }) => band)) texts.push(`${meanText(one)}, from lowest to highest as a band`);
  for (const one of restarts(x)) texts.push(one.text);
  for (const jump of series.flatMap((one) => one.jumps ?? [])) texts.push(`jumps at step ${count(jump.x)} from ${number(jump.old)} to ${number(jump.new)}, no command or restart there`);
  return texts.join("; ");
}

function zoom(event) {
  const range = event.detail;
  set(range ? { from: tidy(range.from), to: tidy(range.to) } : { from: "", to: "" }, { replace: false });
  state.page.data = new Map();
  refreshCurves();
}

const tidy = (value) => (state.route.query.x ? Number(value.toPrecision(8)) : Math.round(value));

function pins(metrics) {
  const { pin } = state.route.query;
  if (pin !== undefined) return pin === "-" ? [] : pin.split(",");
  const kept = settings.get("pins", null);
  if (kept?.some((name) => metrics.some((one) => one.name === name))) return kept;
  const find = (test) => metrics.find((one) => test.test(one.name))?.name;
  return [...new Set([find(/(^|\/)loss$/) ?? find(/loss/), find(/(^|[/_])(lr|learning_rate)([/_]|$)/), find(/step_time/)])].filter(Boolean);
}

function togglePin(name) {
  const now = pins(loaded("metrics").value.metrics);
  const next = now.includes(name) ? now.filter((one) => one !== name) : [...now, name];
  settings.set("pins", next);
  set({ pin: next.join(",") || "-" });
}

function onSeen(name, isSeen) {
  if (isSeen === seen().has(name)) return;
  if (isSeen) seen().add(name);
  else seen().delete(name);
  if (isSeen) refreshCurves();
}

function chart(metric) {
  const { name } = metric;
  const data = chartData(name);
  const full = state.route.query.full === name;
  const asTable = () => {
    if (!shownAs().delete(name)) shownAs().add(name);
    update();
  };
  const fill = () => set({ full: full ? "" : name });
  const pinned = pins(loaded("metrics").value.metrics).includes(name);
  return html`<article class=${full ? "chart full" : "chart"} aria-label=${visible(name)}>
    <header class="line">
      <h3 title=${visible(name)}>${middle(name, 34)}</h3>
      ${meanOf(name)}<span class="value" title=${String(metric.last)}>${number(metric.last)}${metric.unit ? ` ${visible(metric.unit)}` : ""}</span>
      <span class="tools">
        <button type="button" class="small" aria-pressed=${pinned} @click=${() => togglePin(name)} title="keep on top">pin<span class="unseen"> ${visible(name)}</span></button>
        <button type="button" class="small" aria-pressed=${shownAs().has(name)} @click=${asTable} title="as table (t)">table<span class="unseen"> of ${visible(name)}</span></button>
        <button type="button" class="small" aria-pressed=${full} @click=${fill} title="full screen (f)">full<span class="unseen"> ${visible(name)}</span></button>
      </span>
    </header>
    <lh-chart class=${full ? "full" : ""} .data=${data?.texts ? null : data} @seen=${(event) => onSeen(name, event.detail)} @zoom=${zoom}
      @full=${fill} @astable=${asTable}></lh-chart>
    ${data?.empty ? html`<p class="quiet">No points in this range.</p>` : nothing}
    ${shownAs().has(name) || data?.texts ? pointsTable(name, data) : nothing}
  </article>`;
}

function meanOf(name) {
  const one = curves().get(name)?.series.find(({ band }) => band);
  return one ? html`<span class="quiet nowrap">${meanText(one)}</span>` : nothing;
}

function pointsTable(name, data) {
  if (!data) return html`<p class="waiting">Reading points …</p>`;
  const [series] = curves().get(name).series;
  if (!series) return nothing;
  const { band } = series;
  const heads = band ? ["mean", "lowest", "highest", "ranks"] : ["value"];
  const rows = [
    ...series.x.map((x, at) => [x, series.y[at], ...(band ? [band.low[at], band.high[at], band.ranks[at]] : [])]),
    ...(series.odd ?? []).map((odd) => [odd.x, odd.nan ? "NaN" : odd.inf ? "Infinity" : "-Infinity"]),
  ].sort((a, b) => a[0] - b[0]);
  const csv = () => download(`${name.replaceAll("/", "_")}.csv`, `${[data.axis, ...heads].join()}\n${rows.map((row) => row.join()).join("\n")}\n`, "text/csv");
  return html`<p>${data.texts ? "" : data.summary}</p>
    <p class="line"><button type="button" class="small" @click=${csv}>save as CSV</button>
      ${copyButton(location.href, "copy link", `to ${name}`)}
      <span class="quiet">${series.exact === false ? `thinned from ${plural(series.points, "point")}` : plural(rows.length, "point")}</span></p>
    <div class="scroll short" tabindex="0" role="region" aria-label=${`points of ${visible(name)}`}><table>
      <thead><tr><th scope="col" class="number">${data.axis}</th>${heads.map((head) => html`<th scope="col" class="number">${head}</th>`)}</tr></thead>
      <tbody>${rows.slice(-TABLE_ROWS).map(([x, ...ys]) => html`<tr><td class="number">${axisText(data.axis, x)}</td>${ys.map((y) => html`<td class="number" title=${String(y)}>${number(y)}</td>`)}</tr>`)}</tbody>
    </table></div>`;
}

function tools(metrics) {
  const { query } = state.route;
  const again = (fields) => {
    set(fields);
    state.page.data = new Map();
    refreshCurves();
  };
  const axes = [...new Set(["step", "time", "wall", ...metrics.flatMap((one) => one.axes ?? [])])];
  const choice = (name, label, values, texts = values) => html`<label>${label}
    <select @change=${(event) => again(name === "x" ? { x: event.target.value, from: "", to: "" } : { [name]: event.target.value })}>
      ${values.map((value, at) => html`<option value=${value} ?selected=${value === (query[name] ?? "")}>${texts[at]}</option>`)}
    </select></label>`;
  return html`<div class="line tools-line">
    ${choice("x", "x", ["", ...axes.filter((one) => one !== "step")], ["step", ...axes.filter((one) => one !== "step")])}
    ${choice("smooth", "smooth", SMOOTH, SMOOTH.map((one) => one || "off"))}
    ${choice("y", "y", ["", "log"], ["linear", "log"])}
    <label>metrics <input type="search" data-search .value=${query.metrics ?? ""} placeholder="loss|lr" spellcheck="false"
      @input=${(event) => set({ metrics: event.target.value })}></label>
    <label><input type="checkbox" .checked=${query.marks !== "0"} @change=${(event) => again({ marks: event.target.checked ? "" : "0" })}> commands</label>
    ${state.run?.world_size > 1 || query.rank ? choice("rank", "ranks", ...rankChoices(query)) : nothing}
    ${query.from !== undefined || query.to !== undefined
      ? html`<button type="button" @click=${() => zoom({ detail: null })}>Whole range <kbd>0</kbd></button>` : nothing}
    <button type="button" aria-pressed=${state.paused} @click=${pause}>${state.paused ? `Paused${state.missed ? `, ${state.missed} new` : ""}` : "Pause"}</button>
  </div>`;
}

function rankChoices({ rank, x }) {
  const one = rank && rank !== "all" && rank !== "mean" ? [rank] : [];
  const mean = x ? [] : ["mean"];
  return [["", ...mean, "all", ...one], ["coordinator", ...mean.map(() => "mean and band"), "each rank", ...one.map((text) => `rank ${text}`)]];
}

function pause() {
  const paused = !state.paused;
  update({ paused, missed: 0 });
  if (!paused) refreshIndex();
}

function expression(text) {
  try {
    return new RegExp(text, "i");
  } catch {
    return null;
  }
}

// What is no valid expression is looked for as it stands.
function fits(text) {
  if (!text) return () => true;
  const pattern = expression(text);
  if (pattern) return (name) => pattern.test(name);
  return (name) => name.toLowerCase().includes(text.toLowerCase());
}

function noneFits(text) {
  if (expression(text)) return empty("No metric fits this filter.");
  return empty("The filter is no valid expression.", html`<p>A name or a part of it is enough; <code>loss|lr</code> finds both.</p>`);
}

const groupOf = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "");

function groups(metrics) {
  const made = new Map();
  for (const one of metrics) {
    const group = one.group || groupOf(one.name);
    if (!made.has(group)) made.set(group, []);
    made.get(group).push(one);
  }
  return [...made];
}

const isOpen = (group, at) => (state.page.open ||= new Map()).get(group) ?? (at === 0 || Boolean(state.route.query.metrics));

function grid(metrics) {
  return html`<div class="charts">${repeat(metrics, (one) => one.name, chart)}</div>`;
}

function timeline() {
  const all = markers();
  const { x, from, to } = state.route.query;
  if (!all.length || x) return nothing;
  const ends = [...curves().values()].flatMap(({ series }) => series.flatMap((one) => (one.x.length ? [one.x[0], one.x.at(-1)] : [])));
  const range = {
    markers: all,
    from: from === undefined ? Math.min(0, ...ends) : Number(from),
    to: to === undefined ? Math.max(1, ...ends, ...all.map((one) => one.x)) : Number(to),
  };
  return html`<section class="timeline" aria-label="Commands"><h2>Commands</h2>
    <lh-timeline .given=${range} @choose=${(event) => go(runHref(state.route.id, "controls", { cmd: event.detail }))}></lh-timeline>
  </section>`;
}

function noMetrics(run) {
  const since = run.state === "starting" || run.state === "running" ? html`<p>${visible(run.state_text)}. The first step is not finished.</p>` : html`<p>The run ${visible(run.state_text)}; it recorded no number.</p>`;
  return empty("No metrics yet.", html`${since}<p><code>run.log({"train/loss": loss}, step=step)</code> records one.</p>`);
}

function view({ metrics }) {
  const run = state.run ?? {};
  if (!metrics.length) return noMetrics(run);
  const fit = fits(state.route.query.metrics);
  const shownMetrics = metrics.filter((one) => fit(one.name));
  const onTop = pins(metrics).flatMap((name) => shownMetrics.find((one) => one.name === name) ?? []);
  const rest = groups(shownMetrics.filter((one) => !onTop.includes(one)));
  const indexing = [...curves().values()].find(({ answer }) => answer.indexing)?.answer.indexing;
  const wide = state.route.query.full && shownMetrics.find((one) => one.name === state.route.query.full);
  const toggled = (group) => (event) => {
    state.page.open.set(group, event.target.open);
    update();
  };
  return html`${tools(metrics)}
    ${indexing ? html`<p class="quiet">indexing ${Math.round(indexing * 100)} %; the rest of the points follows</p>` : nothing}
    ${wide ? grid([wide]) : html`
      ${grid(onTop)}
      ${timeline()}
      ${rest.map(([group, list], at) => html`<details class="group" ?open=${isOpen(group, at)} @toggle=${toggled(group)}>
        <summary><h2>${visible(group) || "other"} <span class="quiet">(${list.length})</span></h2></summary>
        ${isOpen(group, at) ? manyOrGrid(group, list) : nothing}
      </details>`)}
      ${shownMetrics.length ? nothing : noneFits(state.route.query.metrics)}`}`;
}

function manyOrGrid(group, list) {
  const all = (state.page.all ||= new Set());
  if (list.length <= MANY_CHARTS || all.has(group)) return grid(list);
  return html`${grid(list.slice(0, 24))}<p><button type="button" @click=${() => { all.add(group); update(); }}>
    Show all ${count(list.length)} charts</button></p>`;
}

export default {
  open() {
    state.page.data = new Map();
    refreshIndex();
    refreshCommands();
  },
  close() {
    state.page.seen = new Set();
    update({ paused: false, missed: 0 });
  },
  change({ what }) {
    if (what.includes("points") || what.includes("attempts")) refreshIndex();
    if (what.includes("commands")) refreshCommands();
  },
  keys: () => ({
    space: pause,
    "[": () => step(-1),
    "]": () => step(1),
    0: () => zoom({ detail: null }),
  }),
  view: () => shown(loaded("metrics"), "Reading the list of metrics …", view, refreshIndex),
};

export { inputText };
