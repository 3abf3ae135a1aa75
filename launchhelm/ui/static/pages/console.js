// What the ranks printed, by line number; only lines near the view exist in the page.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";
import * as api from "../lib/api.js";
import { set } from "../lib/address.js";
import { count, plural, time, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { settings, state } from "../lib/state.js";
import { empty, shown } from "../parts/words.js";

const PAGE = 500;
const TYPING_MS = 300;
const COLOR = /\u001b\[([\d;]*)m/g;
const OTHER_ESCAPES = /\u001b(?:\[[\d;?]*[A-Za-ln-z]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[()][A-Z0-9])/g;

let typing = 0;

const fields = () => {
  const { rank = "0", stream, find, at } = state.route.query;
  return { rank, stream, find, from: at };
};

function refresh() {
  const { at } = state.route.query;
  const query = { ...fields(), count: PAGE };
  load("console", () => api.get(`runs/${encodeURIComponent(state.route.id)}/console`, query)).then(() => {
    if (at === undefined && state.page.follow !== false) toEnd();
  });
}

function toEnd() {
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const log = document.querySelector(".log");
    if (log) log.scrollTop = log.scrollHeight;
  }));
}

function change(given) {
  set(given);
  refresh();
}

// A bar that rewrites its line shows the last state of it.
const lastState = (text) => text.slice(text.replace(/\r+$/, "").lastIndexOf("\r") + 1).replace(/\r+$/, "");

// Colours of the terminal become classes of our palette; every other escape is dropped.
function colored(given) {
  const text = lastState(given).replace(OTHER_ESCAPES, "");
  const pieces = [];
  let names = new Set();
  let from = 0;
  for (const match of text.matchAll(COLOR)) {
    if (match.index > from) pieces.push([text.slice(from, match.index), [...names].join(" ")]);
    for (const code of (match[1] || "0").split(";").map(Number)) {
      if (code === 0) names = new Set();
      else if (code === 1) names.add("ansi-bold");
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
        names = new Set([...names].filter((name) => name === "ansi-bold"));
        names.add(`ansi-${code % 10}`);
      } else if (code === 39) names = new Set([...names].filter((name) => name === "ansi-bold"));
    }
    from = match.index + match[0].length;
  }
  pieces.push([text.slice(from), [...names].join(" ")]);
  return pieces.map(([piece, classes]) => (classes ? html`<span class=${classes}>${visible(piece)}</span>` : visible(piece)));
}

function lineView(line, many) {
  const isError = line.stream === "stderr" || line.stream === "err";
  return html`<div class="log-line" data-stream=${line.stream}>
    <span class="quiet number">${count(line.n + 1)}</span>
    ${many ? html`<span class="quiet">r${line.rank}</span>` : nothing}
    <span class="quiet">${time(line.at)}</span>
    <span aria-hidden="true">${isError ? "!" : ""}</span>${isError ? html`<span class="unseen">stderr</span>` : nothing}
    <span class="log-text">${colored(line.text)}</span>
  </div>`;
}

function tools(value) {
  const { query } = state.route;
  const ranks = [...new Set([0, ...value.ranks])];
  const wrap = settings.get("wrap", true);
  const find = (event) => {
    clearTimeout(typing);
    const text = event.target.value;
    typing = setTimeout(() => change({ find: text, at: "" }), TYPING_MS);
  };
  const rank = query.rank ?? "0";
  return html`<div class="line">
    <label>rank <select @change=${(event) => change({ rank: event.target.value === "0" ? "" : event.target.value, at: "" })}>
      ${ranks.map((one) => html`<option value=${one} ?selected=${String(one) === rank}>${one}</option>`)}
      <option value="all" ?selected=${rank === "all"}>merged</option></select></label>
    <label>stream <select @change=${(event) => change({ stream: event.target.value, at: "" })}>
      ${[["", "out + err"], ["out", "out"], ["err", "err"]].map(([one, text]) => html`<option value=${one} ?selected=${one === (query.stream ?? "")}>${text}</option>`)}</select></label>
    <label>find <input type="search" data-search .value=${query.find ?? ""} placeholder="nccl" spellcheck="false" @input=${find}></label>
    ${query.find ? html`<span class="quiet">${plural((value.hits ?? []).length, "hit")}${value.stopped_early ? ", the search stopped early" : ""}</span>
      ${(value.hits ?? []).slice(0, 12).map((hit) => html`<button type="button" class="small" @click=${() => change({ at: Math.max(0, hit - 20) })}>${count(hit + 1)}</button>`)}` : nothing}
    <label><input type="checkbox" .checked=${query.at === undefined && state.page.follow !== false}
      @change=${(event) => { state.page.follow = event.target.checked; change({ at: event.target.checked ? "" : value.lines[0]?.n ?? 0 }); }}> follow</label>
    <label><input type="checkbox" .checked=${wrap} @change=${(event) => settings.set("wrap", event.target.checked)}> wrap</label>
  </div>`;
}

// Following stops when the person scrolls up.
function onScroll(event) {
  const { scrollTop, scrollHeight, clientHeight } = event.target;
  state.page.follow = scrollHeight - scrollTop - clientHeight < 40;
}

function view(value) {
  const { lines, total } = value;
  const { query } = state.route;
  if (!total && !query.stream) {
    return html`${tools(value)}${empty("This rank printed nothing, or its console is not recorded.", html`<p><code>run.capture_console()</code> records what is printed, <code>run.console(text)</code> a line.</p>`)}`;
  }
  const first = lines[0]?.n ?? 0; // Lines are counted from 0, and shown from 1 on.
  const last = lines.at(-1)?.n ?? -1;
  const many = query.rank === "all";
  return html`${tools(value)}
    <div class="line">
      ${first > 0 ? html`<button type="button" class="small" @click=${() => change({ at: Math.max(0, first - PAGE) })}>earlier</button>` : nothing}
      <span class="quiet">lines ${count(first + 1)}–${count(last + 1)} of ${count(total)}${value.forgotten ? `, and ${count(value.forgotten)} older ones in the files` : ""}</span>
      ${last + 1 < total ? html`<button type="button" class="small" @click=${() => change({ at: last + 1 })}>later</button>
        <button type="button" class="small" @click=${() => { state.page.follow = true; change({ at: "" }); }}>end</button>` : nothing}
    </div>
    <div class=${settings.get("wrap", true) ? "log wrap" : "log"} tabindex="0" role="log" aria-live="off" aria-label="Console" @scroll=${onScroll}>
      ${repeat(lines, (line) => `${line.rank} ${line.n}`, (line) => lineView(line, many))}
    </div>
    <p class="quiet">${last + 1 >= total && query.at === undefined ? (["running", "starting"].includes(state.run?.state) ? "end · following" : "end") : ""}</p>`;
}

export default {
  open: refresh,
  change({ what }) {
    if (what.includes("console") && state.route.query.at === undefined) refresh();
  },
  view: () => shown(loaded("console"), "Reading the console …", view, refresh),
};
