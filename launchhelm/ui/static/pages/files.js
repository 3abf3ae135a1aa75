// Artifacts, checkpoints and the files of the run directory itself.

import { html, nothing } from "../vendor/lit-html.js";
import * as api from "../lib/api.js";
import { set } from "../lib/address.js";
import { bytes, count, plural, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { say, state } from "../lib/state.js";
import { parseSort, sorted, table } from "../parts/table.js";
import { copyButton, empty, shown } from "../parts/words.js";

function refresh() {
  load("files", () => api.get(`runs/${encodeURIComponent(state.route.id)}/files`));
}

async function save(one) {
  say(`Fetching ${one.name}`, true);
  try {
    const link = document.createElement("a");
    link.href = await api.blob(one.digest, "application/octet-stream");
    link.download = one.name.split("/").at(-1);
    link.click();
  } catch (error) {
    say(`${error.message} ${error.remedy ?? ""}`, true);
  }
}

const COLUMNS = [
  { id: "name", head: "Name", cell: (one) => visible(one.name) },
  { id: "kind", head: "Kind", cell: (one) => visible(one.kind) },
  { id: "size", head: "Size", number: true, cell: (one) => bytes(one.size) },
  { id: "step", head: "Step", number: true, cell: (one) => count(one.step) },
  { id: "state", head: "State", cell: (one) => html`${visible(one.state)} ${one.synced ? html`<span class="quiet">${one.synced === true ? "synced" : visible(one.synced)}</span>` : nothing}` },
  { id: "digest", head: "Digest", cell: (one) => (one.digest ? html`<code title=${one.digest}>${one.digest.replace(/^sha256:/, "").slice(0, 12)}</code>` : "") },
  {
    id: "get",
    head: "Get",
    sorts: false,
    cell: (one) => html`${one.digest && one.state === "ready" ? html`<button type="button" class="small" @click=${() => save(one)}>save<span class="unseen"> ${visible(one.name)}</span></button>` : nothing}
      ${one.resume ? copyButton(one.resume, "copy resume line", `of ${visible(one.name)}`) : nothing}`,
  },
];

function view(value) {
  const { files = [], own = [] } = value;
  const sort = parseSort(state.route.query.sort, "name");
  return html`
    ${files.length ? html`<h2>Artifacts and checkpoints</h2>${table({
      caption: "Artifacts and checkpoints",
      columns: COLUMNS,
      rows: sorted(files, (one) => one[sort.id], sort.down),
      key: (one) => one.id ?? one.name,
      sort,
      onSort: (next) => set({ sort: next }),
    })}` : empty("This run has no artifacts or checkpoints.", html`<p><code>run.artifact(path)</code> keeps a file; the control <code>checkpoint</code> keeps the model.</p>`)}
    ${own.length ? html`<details ?open=${!files.length}><summary>the run directory's own files: ${plural(own.length, "file")}, ${bytes(own.reduce((sum, one) => sum + (one.size ?? 0), 0))}</summary>
      <table class="plain"><thead><tr><th scope="col">Path</th><th scope="col" class="number">Size</th></tr></thead>
      <tbody>${own.map((one) => html`<tr><th scope="row"><code>${visible(one.path)}</code></th><td class="number">${bytes(one.size)}</td></tr>`)}</tbody></table></details>
    <p class="quiet">${bytes(value.total)} in all. Nothing is deleted from here.</p>` : nothing}`;
}

export default {
  open: refresh,
  change({ what }) {
    if (what.includes("media") || what.includes("commands")) refresh();
  },
  view: () => shown(loaded("files"), "Reading the list of files …", view, refresh),
};
