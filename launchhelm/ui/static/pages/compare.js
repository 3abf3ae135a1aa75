// Several runs side by side: shared charts, last values, differences of configuration.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";
import * as api from "../lib/api.js";
import { href, runHref, set } from "../lib/address.js";
import { middle, number, text, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { state } from "../lib/state.js";
import { summaryOf } from "../parts/chart.js";
import { empty, failed, waiting } from "../parts/words.js";
import { leaves } from "./about.js";
import { stateText } from "./runs.js";

const DASHES = ["solid", "dashed", "dotted", "mixed"];
const SHOWN_AT_FIRST = 6;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWX";

const ids = () => (state.route.query.runs ?? "").split(",").filter(Boolean);
const runOf = (id) => loaded(`run ${id}`);

function refresh() {
  ids().forEach((id) => refreshRun(id));
}

async function refreshRun(id) {
  const path = `runs/${encodeURIComponent(id)}`;
  load(`run ${id}`, () => api.get(path));
  await load(`metrics ${id}`, () => api.get(`${path}/metrics`));
  refreshCurves(id);
}

function refreshCurves(id) {
  const names = shownNames().filter((name) => metricsOf(id).some((one) => one.name === name));
  if (!names.length) return;
  const { from, to, x } = state.route.query;
  load(`curves ${id}`, () => api.get(`runs/${encodeURIComponent(id)}/series`, { name: names, from, to, x, px: 600 }));
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
  set(range ? { from: Math.round(range.from), to: Math.round(range.to) } : { from: "", to: "" }, { replace: false });
  ids().forEach(refreshCurves);
}

const nameOf = (id) => visible(runOf(id).value?.name ?? id.slice(0, 8));

function chart(name) {
  const series = ids().flatMap((id, at) => {
    const answer = loaded(`curves ${id}`).value;
    const own = (answer?.series ?? []).filter((one) => one.name === name);
    return own.slice(-1).map((one) => ({
      label: `${LETTERS[at]} ${nameOf(id)}`,
      x: one.x,
      y: one.y.map((value) => (typeof value === "number" ? value : Number.NaN)),
      odd: one.odd ?? [],
      color: at,
      dash: DASHES[at < 8 ? at % 4 : Math.floor(at / 8) % 4],
    }));
  });
  const { from, to, x = "step" } = state.route.query;
  const key = JSON.stringify([from, to, x, ...series.map((one) => [one.label, one.x.length, one.x.at(-1), one.y.at(-1)])]);
  const made = (state.page.data ||= new Map());
  if (made.get(name)?.key !== key) {
    made.set(name, {
      key,
      data: {
        series,
        axis: x,
        from: from === undefined ? undefined : Number(from),
        to: to === undefined ? undefined : Number(to),
        summary: series.map((one) => summaryOf(one.label, one, x)).join(". "),
      },
    });
  }
  return html`<article class="chart"><header class="line"><h3 title=${visible(name)}>${middle(name, 34)}</h3></header>
    <lh-chart .data=${made.get(name).data} @zoom=${zoom}></lh-chart></article>`;
}

function values(names) {
  const [base] = ids();
  const lastOf = (id, name) => metricsOf(id).find((one) => one.name === name)?.last;
  return html`<section><h2>Last values</h2><div class="scroll" tabindex="0" role="region" aria-label="Last values"><table class="plain">
    <thead><tr><th scope="col">Metric</th>${ids().map((id, at) => html`<th scope="col" class="number">${LETTERS[at]}</th>`)}</tr></thead>
    <tbody>${names.map((name) => html`<tr><th scope="row">${visible(name)}</th>${ids().map((id) => {
      const [last, reference] = [lastOf(id, name), lastOf(base, name)];
      const differs = id !== base && typeof last === "number" && typeof reference === "number";
      return html`<td class="number">${number(last)}${differs ? html` <span class="quiet">${last >= reference ? "+" : "−"}${number(Math.abs(last - reference))}</span>` : nothing}</td>`;
    })}</tr>`)}</tbody></table></div></section>`;
}

function differences() {
  const configs = ids().map((id) => new Map(leaves(runOf(id).value?.config ?? {}).map(([path, value]) => [path, text(value)])));
  const paths = [...new Set(configs.flatMap((one) => [...one.keys()]))];
  const differing = paths.filter((path) => new Set(configs.map((one) => one.get(path))).size > 1);
  return html`<section><h2>Differences of configuration</h2>${differing.length
    ? html`<div class="scroll" tabindex="0" role="region" aria-label="Differences of configuration"><table class="plain">
      <thead><tr><th scope="col">Field</th>${ids().map((id, at) => html`<th scope="col">${LETTERS[at]}</th>`)}</tr></thead>
      <tbody>${differing.map((path) => html`<tr><th scope="row">${visible(path)}</th>${configs.map((one) => html`<td>${one.get(path) ?? "–"}</td>`)}</tr>`)}</tbody></table></div>`
    : html`<p class="quiet">None.</p>`}</section>`;
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
      <ul class="legend">${ids().map((id, at) => html`<li><span class="swatch" data-series=${at % 8} data-dash=${DASHES[at < 8 ? at % 4 : Math.floor(at / 8) % 4]} aria-hidden="true"></span>
        ${LETTERS[at]} <a href=${runHref(id)}>${nameOf(id)}</a> ${runOf(id).value ? stateText(runOf(id).value) : nothing}</li>`)}</ul>
      ${errors.map((error) => failed(error))}
      <div class="line"><label>metrics <input type="search" data-search .value=${state.route.query.metrics ?? ""} spellcheck="false"
        @input=${(event) => { set({ metrics: event.target.value }); ids().forEach(refreshCurves); }}></label></div>
      ${names.length ? html`<div class="charts">${repeat(names, (name) => name, chart)}</div>${values(names)}`
        : ids().some((id) => loaded(`metrics ${id}`).loading) ? waiting("Reading the runs …") : empty("These runs have no metric.")}
      ${differences()}`;
  },
};
