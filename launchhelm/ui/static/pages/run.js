// One run: its header, what is the matter with it, and its tabs.

import { html, nothing } from "../vendor/lit-html.js";
import * as api from "../lib/api.js";
import { TABS, go, href, runHref, set } from "../lib/address.js";
import { ago, count, duration, fullTime, middle, plural, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { say, state } from "../lib/state.js";
import { failed, waiting } from "../parts/words.js";
import about from "./about.js";
import charts from "./charts.js";
import consolePage from "./console.js";
import controls from "./controls.js";
import files from "./files.js";
import media from "./media.js";
import processes from "./processes.js";
import { stateText } from "./runs.js";

const pages = { charts, processes, controls, console: consolePage, media, files, about };
const TITLES = ["Charts", "Processes", "Controls", "Console", "Media", "Files", "About"];

const tabOf = () => pages[state.route.tab];
let headline = "";

async function refresh() {
  const { id } = state.route;
  await load("run", () => api.get(`runs/${encodeURIComponent(id)}`));
  const { value } = loaded("run");
  if (!value || state.route.id !== id) return;
  state.run = value;
  if (value.id !== id) {
    const tab = state.route.tab;
    go(runHref(value.id, tab, state.route.query), { replace: true });
  }
  const text = (value.headline ?? []).map((one) => one.text).join(" ");
  if (text && text !== headline) say(text, true);
  headline = text;
}

// What is no fault, as a slow rank, is told by its word.
function lesser(value) {
  const one = (value.headline ?? []).find((each) => each.tab === "processes" && each.weight !== "bad");
  return one ? html` <span class="mark unknown">${one.mark} ${visible((one.rule ?? "").replaceAll("_", " "))}</span>` : nothing;
}

const toneOf = (one) => (one.mark === "?" || (one.weight && one.weight !== "bad") ? "unknown" : "bad");

function tabs(value) {
  const bad = value.tabs ?? {};
  const badge = {
    processes: bad.processes ? html` <span class="mark bad">▼${bad.processes}<span class="unseen"> processes not well</span></span>` : lesser(value),
    controls: html`${bad.controls_unknown ? html` <span class="mark unknown">?${bad.controls_unknown}<span class="unseen"> unknown outcomes</span></span>` : nothing}
      ${bad.controls_waiting ? html` <span class="mark">◆${bad.controls_waiting}<span class="unseen"> waiting</span></span>` : nothing}`,
  };
  return html`<nav class="tabs" aria-label="Parts of this run">
    ${TABS.map((tab, at) => html`<a href=${runHref(value.id, tab)} aria-current=${tab === state.route.tab ? "page" : nothing}>
      <span class="quiet" aria-hidden="true">${at + 1}</span> ${TITLES[at]}${badge[tab] ?? nothing}</a>`)}
  </nav>`;
}

function attempts(value) {
  const all = value.attempts ?? [];
  if (all.length < 2) return all.length ? html`<span class="quiet">attempt ${value.attempt ?? 1}</span>` : nothing;
  return html`<label>attempt
    <select @change=${(event) => { set({ attempt: event.target.value }); tabOf().open(state.route); }}>
      <option value="">newest of ${all.length}</option>
      ${all.map((one) => html`<option value=${one.number} ?selected=${String(one.number) === state.route.query.attempt}>
        ${one.number}${one.resumed_from ? ` from step ${count(one.resumed_from)}` : ""}</option>`)}
    </select></label>`;
}

function facts(value) {
  const said = [
    value.step === null || value.step === undefined ? "" : `step ${count(value.step)}`,
    value.world_size > 1 ? plural(value.world_size, "process", "processes") : "",
    value.step_time_s ? `${duration(value.step_time_s)} per step` : "",
    value.ends ?? "",
    value.created_at ? `started ${ago(value.created_at)}` : "",
  ];
  return said.filter(Boolean).join(" · ");
}

function header(value) {
  return html`
    <div class="line">
      <p class="crumbs"><a href=${href("/")}>Runs</a> /</p>
      <h1 tabindex="-1" title=${visible(value.name)}>${middle(value.name, 60)}</h1>
      <code class="quiet">${value.id.slice(0, 8)}</code>
      ${attempts(value)}
      ${value.path ? html`<span class="quiet owner" title=${visible(value.path)}>${visible(value.owner)} · ${middle(value.path, 44)}</span>` : nothing}
    </div>
    <p class="facts" title=${fullTime(value.created_at)}>${stateText(value)} <span class="quiet">· ${facts(value)}</span></p>
    ${(value.headline ?? []).map((one) => html`<p class="finding"><span class=${`mark ${toneOf(one)}`} aria-hidden="true">${one.mark}</span>
      <span>${visible(one.text)}</span> ${one.tab ? html`<a href=${runHref(value.id, one.tab)}>${TITLES[TABS.indexOf(one.tab)] ?? one.tab}</a>` : nothing}</p>`)}
    ${(value.banners ?? []).map((one) => html`<p class="banner" data-level=${one.level}>
      <span aria-hidden="true">${one.level === "bad" ? "✕" : "!"}</span> <span>${visible(one.text)} <span class="quiet">${visible(one.remedy)}</span></span></p>`)}
    ${tabs(value)}`;
}

export default {
  title: () => (loaded("run").value ? loaded("run").value.name : "Run"),
  same: (before, after) => before.page === after.page && (before.id === after.id || after.id.startsWith(before.id)),
  open(route, same) {
    const tab = pages[route.tab];
    if (same && state.page.tab !== tab) state.page.tab?.close?.();
    state.page.tab = tab;
    if (!same) headline = "";
    if (!same || !loaded("run").value) refresh();
    tab.open(route);
  },
  close: () => {
    state.page.tab?.close?.();
    state.run = null;
  },
  watched: (route) => [route.id],
  change(change) {
    if (change.run && change.run !== loaded("run").value?.id) return;
    refresh();
    tabOf().change?.(change);
  },
  keys: () => ({
    ...Object.fromEntries(TABS.map((tab, at) => [String(at + 1), () => go(runHref(state.route.id, tab))])),
    ...(tabOf().keys?.() ?? {}),
  }),
  view() {
    const { value, error } = loaded("run");
    if (!value && error) {
      return html`<h1 tabindex="-1">This run cannot be shown</h1>${failed(error, error.status === 404 ? null : refresh)}
        <p><a href=${href("/")}>All runs</a></p>`;
    }
    if (!value) return html`<h1 tabindex="-1">Run</h1>${waiting("Reading the run …")}`;
    return html`${header(value)}${error ? failed(error, refresh) : nothing}
      <section aria-label=${TITLES[TABS.indexOf(state.route.tab)]}>${tabOf().view(value)}</section>`;
  },
};
