// Images, sounds, texts, tables and histograms, by name and step.

import { html, nothing } from "../vendor/lit-html.js";
import * as api from "../lib/api.js";
import { set } from "../lib/address.js";
import { bytes, count, number, text, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { say, state, update } from "../lib/state.js";
import "../parts/chart.js";
import "../parts/picture.js";
import { download, empty, shown } from "../parts/words.js";

const LARGE = 5_000_000;
const MOST_ROWS = 200;

function refresh() {
  const { name, step } = state.route.query;
  load("media", () => api.get(`runs/${encodeURIComponent(state.route.id)}/media`, { name, step }));
}

function change(fields) {
  set(fields);
  refresh();
}

// One recorded value; `run` tells whose it is where that is not the run of the page.
export function item(one) {
  const title = html`<figcaption>${visible(one.caption || one.name)} <span class="quiet">${one.step < 0 ? "no step" : `step ${count(one.step)}`}${one.rank ? ` · rank ${one.rank}` : ""}</span></figcaption>`;
  return html`<figure data-type=${one.type}>${body(one)}${title}</figure>`;
}

function body(one) {
  if (one.missing) {
    return html`<p class="missing">${one.address ? html`lies elsewhere: <code>${visible(one.address)}</code>` : html`not on this disk <code>${visible(one.digest?.slice(0, 19))}</code>`}</p>`;
  }
  if (one.table) return tableView(one);
  if (one.histogram) return histogramView(one);
  if (one.text !== null && one.text !== undefined) return html`<pre class="text" tabindex="0">${visible(one.text)}</pre>`;
  if (!one.digest) return html`<p class="missing">no bytes were recorded</p>`;
  const wanted = (state.page.wanted ||= new Set());
  if (one.size > LARGE && !wanted.has(one.digest)) {
    return html`<button type="button" @click=${() => { wanted.add(one.digest); update(); }}>show ${visible(one.type)}, ${bytes(one.size)}</button>`;
  }
  return html`<lh-picture .given=${one}></lh-picture>`;
}

function tableView(one) {
  const { rows = [], total = rows.length } = one.table;
  const columns = (one.table.columns ?? []).map((column) => column.name ?? column);
  const csv = () => download(`${one.name.replaceAll("/", "_")}.csv`, [columns, ...rows].map((row) => row.map((cell) => JSON.stringify(cell ?? "")).join()).join("\n"), "text/csv");
  return html`<div class="scroll short" tabindex="0" role="region" aria-label=${`table ${visible(one.name)}`}><table class="plain">
      <thead><tr>${columns.map((name) => html`<th scope="col">${visible(name)}</th>`)}</tr></thead>
      <tbody>${rows.slice(0, MOST_ROWS).map((row) => html`<tr>${row.map((cell) => html`<td class=${typeof cell === "number" ? "number" : ""}>${text(cell)}</td>`)}</tr>`)}</tbody>
    </table></div>
    <p class="line"><span class="quiet">${count(total)} × ${count(columns.length)}</span><button type="button" class="small" @click=${csv}>save as CSV</button></p>`;
}

// As bars for one step; as curves over steps, the newest strong, where there are several.
function histogramView({ name, run = "", histogram, history = [] }) {
  const { edges = [], counts = [], min, max } = histogram;
  const several = history.length > 1;
  const most = Math.max(1, ...counts);
  return html`${several ? html`<lh-chart .data=${overSteps(name, run, history)}></lh-chart>`
    : html`<lh-bars .given=${counts.map((amount) => amount / most)} role="img"
        aria-label=${`${counts.length} bins from ${number(edges[0])} to ${number(edges.at(-1))}, fullest with ${count(most)}`}></lh-bars>
      <p class="line quiet"><span>${number(min ?? edges[0])}</span><span class="grow"></span><span>${number(max ?? edges.at(-1))}</span></p>`}
    ${several ? stepsTable(history) : nothing}
    <details><summary>bins as table</summary><div class="scroll short" tabindex="0" role="region" aria-label=${`bins of ${visible(name)}`}><table class="plain"><thead><tr><th scope="col">from</th><th scope="col">to</th><th scope="col">count</th></tr></thead>
      <tbody>${counts.map((amount, at) => html`<tr><td class="number">${number(edges[at])}</td><td class="number">${number(edges[at + 1])}</td><td class="number">${count(amount)}</td></tr>`)}</tbody></table></div></details>`;
}

const sum = (values) => values.reduce((total, one) => total + one, 0);

// The share of all values per unit of the axis, so that bins of any width compare.
function densities({ edges, counts }) {
  const total = sum(counts) || 1;
  return counts.map((amount, at) => amount / total / (edges[at + 1] - edges[at] || 1));
}

function overSteps(name, run, history) {
  const slot = `${run} ${name}`;
  const key = JSON.stringify(history.map((one) => [one.step, sum(one.counts)]));
  const made = (state.page.histories ||= new Map());
  if (made.get(slot)?.key !== key) {
    const series = history.map((one, at) => ({
      label: `step ${count(one.step)}`,
      x: one.counts.map((_, bin) => (one.edges[bin] + one.edges[bin + 1]) / 2),
      y: densities(one),
      color: 0,
      faint: at < history.length - 1,
    }));
    const newest = history.at(-1);
    const summary = `${visible(name)}: distributions at ${history.length} steps, the newest, ${count(newest.step)}, from ${number(newest.edges[0])} to ${number(newest.edges.at(-1))}, most around ${number(mode(newest))}`;
    made.set(slot, { key, data: { series, axis: "value", summary } });
  }
  return made.get(slot).data;
}

function mode({ edges, counts }) {
  const fullest = counts.indexOf(Math.max(...counts));
  return (edges[fullest] + edges[fullest + 1]) / 2;
}

function stepsTable(history) {
  return html`<details><summary>steps as table</summary><div class="scroll short" tabindex="0" role="region" aria-label="distributions over steps"><table class="plain">
    <thead><tr>${["step", "values", "from", "most at", "to"].map((head) => html`<th scope="col" class="number">${head}</th>`)}</tr></thead>
    <tbody>${history.map((one) => html`<tr><th scope="row" class="number">${count(one.step)}</th><td class="number">${count(sum(one.counts))}</td>
      <td class="number">${number(one.edges[0])}</td><td class="number">${number(mode(one))}</td><td class="number">${number(one.edges.at(-1))}</td></tr>`)}</tbody></table></div></details>`;
}

function move(by) {
  const { value } = loaded("media");
  if (!value?.steps.length) return;
  const at = value.steps.indexOf(current(value));
  const next = value.steps[Math.min(value.steps.length - 1, Math.max(0, at + by))];
  change({ step: next });
  say(`step ${count(next)}`, true);
}

const current = ({ steps }) => {
  const given = Number(state.route.query.step);
  return steps.includes(given) ? given : steps.at(-1);
};

function view(value) {
  if (!value.names.length) {
    return empty("This run recorded no media.", html`<p><code>run.log({"samples": launchhelm.Image(array)}, step=step)</code> records an image; Audio, Video, Text, Table and Histogram likewise.</p>`);
  }
  const { steps } = value;
  const step = current(value);
  return html`<div class="line">
      <label>name <select @change=${(event) => change({ name: event.target.value, step: "" })}>
        <option value="" ?selected=${!state.route.query.name}>all</option>
        ${value.names.map((name) => html`<option value=${name} ?selected=${name === state.route.query.name}>${visible(name)}</option>`)}</select></label>
      ${steps.length ? html`<span class="line">
        <button type="button" aria-label="earlier step" ?disabled=${step === steps[0]} @click=${() => move(-1)}>◀</button>
        <label>step <input type="range" min="0" max=${steps.length - 1} .value=${String(steps.indexOf(step))}
          aria-valuetext=${`step ${count(step)}`} @change=${(event) => change({ step: steps[Number(event.target.value)] })}></label>
        <output>${count(step)}</output>
        <button type="button" aria-label="later step" ?disabled=${step === steps.at(-1)} @click=${() => move(1)}>▶</button>
        <span class="quiet">${count(steps[0])} … ${count(steps.at(-1))}, ${steps.length} steps</span></span>` : nothing}
    </div>
    ${value.items.length ? html`<div class="media">${value.items.map(item)}</div>` : empty("Nothing at this step.")}`;
}

export default {
  open: refresh,
  change({ what }) {
    if (what.includes("media")) refresh();
  },
  keys: () => ({ ArrowLeft: () => move(-1), ArrowRight: () => move(1) }),
  view: () => shown(loaded("media"), "Reading the list of media …", view, refresh),
};
