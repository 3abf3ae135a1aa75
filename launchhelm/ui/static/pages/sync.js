// What a server knows of the runs here, and who brings it there.

import { html, nothing } from "../vendor/lit-html.js";
import * as api from "../lib/api.js";
import { runHref, set } from "../lib/address.js";
import { visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { state } from "../lib/state.js";
import { parseSort, sorted, table } from "../parts/table.js";
import { empty, shown } from "../parts/words.js";

const refresh = () => load("sync", () => api.get("sync"));

const COLUMNS = [
  { id: "name", head: "Run", cell: (row) => html`<a href=${runHref(row.id)}>${visible(row.name)}</a>` },
  { id: "state", head: "State", cell: (row) => html`<span class="state" data-state=${row.problem ? "failed" : "running"}>${visible(row.state)}</span>` },
  { id: "behind_text", head: "Behind", cell: (row) => visible(row.behind_text) },
  { id: "commands_text", head: "Commands", cell: (row) => visible(row.commands_text) },
  { id: "problem", head: "Last problem and what to do", cell: (row) => html`${visible(row.problem)} ${row.remedy ? html`<span class="quiet">${visible(row.remedy)}</span>` : nothing}` },
];

function view(value) {
  if (value.not_here) return empty("Syncing is not told here.", html`<p>${value.not_here}</p>`);
  if (!value.servers.length && !value.runs.length) {
    return empty("Not connected to a server. Everything works without one.", html`<p><code>launchhelm sync</code> brings runs to a server, now or later.</p>`);
  }
  const sort = parseSort(state.route.query.sort, "name");
  return html`
    ${value.servers.map((one) => html`<p><span class="state" data-state=${one.alive ? "running" : "no news"}><span aria-hidden="true">${one.alive ? "●" : "◐"}</span>
      ${visible(one.origin)}</span> <span class="quiet">syncer: ${visible(one.syncer || "none")}${one.alive ? ", alive" : ", not seen to move"}</span></p>`)}
    ${table({
      caption: "Sync of runs",
      columns: COLUMNS,
      rows: sorted(value.runs, (row) => row[sort.id], sort.down),
      key: (row) => row.id,
      sort,
      onSort: (next) => set({ sort: next }),
    })}`;
}

export default {
  title: () => "Sync",
  open: refresh,
  watched: () => [],
  change: refresh,
  view: () => html`<h1 tabindex="-1">Sync</h1>${shown(loaded("sync"), "Asking for the sync state …", view, refresh)}`,
};
