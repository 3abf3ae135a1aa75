// What the run is: configuration, origin, attempts, losses, limits in use.

import { html, nothing } from "../vendor/lit-html.js";
import { set } from "../lib/address.js";
import { count, duration, fullTime, text, time, visible } from "../lib/format.js";
import { state } from "../lib/state.js";
import { copyButton, empty } from "../parts/words.js";

// Leaves of a tree as [path, value].
export function leaves(tree, path = "") {
  if (tree === null || typeof tree !== "object") return path ? [[path, tree]] : [];
  const entries = Object.entries(tree);
  if (!entries.length) return path ? [[path, Array.isArray(tree) ? "[]" : "{}"]] : [];
  return entries.flatMap(([name, value]) => leaves(value, path ? `${path}.${name}` : name));
}

function list(title, tree, needle) {
  const all = leaves(tree ?? {});
  const found = needle ? all.filter(([path, value]) => `${path} ${text(value)}`.toLowerCase().includes(needle)) : all;
  if (!all.length) return nothing;
  return html`<section><h2>${title}</h2>
    ${found.length ? html`<table class="plain facts-table"><caption class="unseen">${title}</caption><tbody>
      ${found.map(([path, value]) => html`<tr><th scope="row">${visible(path)}</th><td title=${String(value)}>${text(value)}</td></tr>`)}</tbody></table>`
      : html`<p class="quiet">Nothing here fits the search.</p>`}</section>`;
}

function attempts(all) {
  if (!all?.length) return nothing;
  return html`<section><h2>Attempts</h2><div class="scroll" tabindex="0" role="region" aria-label="Attempts"><table class="plain">
    <thead><tr><th scope="col">Attempt</th><th scope="col">Started</th><th scope="col">World size</th><th scope="col">From step</th><th scope="col">Last step</th><th scope="col">End</th></tr></thead>
    <tbody>${all.map((one) => html`<tr><th scope="row">${one.number}</th><td title=${fullTime(one.started_at)}>${time(one.started_at)}</td>
      <td class="number">${count(one.world_size)}</td><td class="number">${count(one.resumed_from)}</td><td class="number">${count(one.last_step)}</td>
      <td>${visible(one.text || one.reason || one.end || "")}</td></tr>`)}</tbody></table></div></section>`;
}

export default {
  open() {},
  view(run) {
    const needle = (state.route.query.q ?? "").toLowerCase();
    const { thresholds = {}, version } = state.info ?? {};
    const basics = {
      id: run.id,
      project: run.project,
      group: run.group,
      tags: (run.tags ?? []).join(", "),
      owner: run.owner,
      "created at": time(run.created_at),
      host: run.host,
      python: run.python,
      command: Array.isArray(run.argv) ? run.argv.join(" ") : run.argv,
    };
    const known = Object.fromEntries(Object.entries(basics).filter(([, value]) => value));
    return html`<div class="line">
        <label>search <input type="search" data-search .value=${state.route.query.q ?? ""} spellcheck="false" @input=${(event) => set({ q: event.target.value })}></label>
        ${copyButton(run.id, "copy id")} ${run.path ? copyButton(run.path, "copy path") : nothing}
      </div>
      ${run.notes ? html`<p class="notes">${visible(run.notes)}</p>` : nothing}
      ${list("Run", known, needle)}
      ${leaves(run.config ?? {}).length ? list("Configuration", run.config, needle) : empty("No configuration was recorded.", html`<p><code>launchhelm.init("first", config={"lr": 3e-4})</code> records one.</p>`)}
      ${list("Summary", run.summary, needle)}
      ${list("Code", run.git, needle)}
      ${attempts(run.attempts)}
      ${list("Losses", run.losses, needle)}
      ${list("In use", { "late after": duration(thresholds.late_s), "silent after": duration(thresholds.silent_s), "dashboard version": version, path: run.path }, needle)}`;
  },
};
