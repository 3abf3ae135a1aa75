// Another run's commands for this one: whose, which and at which steps; their plan; and Send.
//
// The server makes the plan, and makes it again when it writes, so that no input passes through
// here. Each command gets its id with the plan; what was sent once is known by it when sent again.

import { html, nothing } from "../vendor/lit-html.js";
import * as api from "../lib/api.js";
import { count, plural, visible } from "../lib/format.js";
import { state, update } from "../lib/state.js";
import { askWith, close, closeButton } from "./dialog.js";
import { failed } from "./words.js";

const PLAN_AFTER_MS = 300;
const MOST_RUNS = 50;
const ROOM_BYTES = 12 << 10; // What is sent beside a ledger: names of controls, and ids.
const WHOLE = /^-?\d+$/;
const POSITIVE = /^(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;

// `path` makes addresses of the run, `makeId` ids, and `onSent` is told what was written.
export function askReplay({ path, makeId, onSent }) {
  const one = {
    path, makeId, onSent, whose: "run", runs: null, find: "", run: "", text: "", offset: "", scale: "", only: "", except: "",
    isLarge: false, problems: {}, asked: "", plan: null, failure: null, ids: new Map(), typed: "", sending: false, told: null, timer: 0,
  };
  askWith(() => view(one));
  findRuns(one);
}

async function findRuns(one) {
  const wanted = one.find;
  try {
    const found = await api.get("runs", { q: wanted, limit: MOST_RUNS });
    if (one.find !== wanted) return;
    one.runs = found.runs.filter((run) => run.id !== (state.run?.id ?? state.route?.id));
    one.problems.find = "";
    one.more = found.total > MOST_RUNS;
  } catch (error) {
    if (one.find !== wanted) return;
    one.problems.find = error.message;
  }
  update();
}

function onFind(one, text) {
  one.find = text;
  clearTimeout(one.finding);
  one.finding = setTimeout(() => findRuns(one), PLAN_AFTER_MS);
}

const names = (text) => text.split(/[\s,]+/).filter(Boolean);

function bodyOf(one) {
  const body = { only: names(one.only), except: names(one.except) };
  body[one.whose] = one.whose === "run" ? one.run : one.text;
  if (one.offset.trim()) body.offset = Number(one.offset);
  if (one.scale.trim()) body.scale_steps = Number(one.scale);
  return body;
}

const bytesOf = (body) => new TextEncoder().encode(JSON.stringify(body)).length;

const mostBytes = () => (state.info?.limits?.body ?? 65536) - ROOM_BYTES;

function consider(one, change) {
  Object.assign(one, change, { plan: null, failure: null, told: null, asked: "", typed: "" });
  if ("text" in change) one.isLarge = bytesOf(one.text) > mostBytes();
  const isLarge = one.whose === "ledger" && one.isLarge;
  one.problems = {
    find: one.problems.find,
    offset: !one.offset.trim() || WHOLE.test(one.offset.trim()) ? "" : "is to be a whole number",
    scale: !one.scale.trim() || (POSITIVE.test(one.scale.trim()) && Number(one.scale) > 0) ? "" : "is to be a number above 0",
    ledger: isLarge ? `is larger than ${count(mostBytes())} bytes; the command line takes it: launchhelm control RUN replay FILE` : "",
  };
  update();
  clearTimeout(one.timer);
  const isWhole = one.whose === "run" ? one.run : one.text.trim();
  if (isWhole && !one.problems.offset && !one.problems.scale && !isLarge) one.timer = setTimeout(() => plan(one), PLAN_AFTER_MS);
}

async function plan(one) {
  const body = bodyOf(one);
  const asked = JSON.stringify(body);
  one.asked = asked;
  update();
  try {
    const made = await api.post(one.path("commands/replay"), body);
    if (one.asked !== asked) return;
    one.plan = made;
    for (const row of made.rows) if (!row.why && !one.ids.has(row.replays)) one.ids.set(row.replays, one.makeId());
  } catch (error) {
    if (one.asked !== asked) return;
    one.failure = error;
  }
  update();
}

async function takeFile(one, file) {
  if (!file) return;
  // A file that is too large is not even read.
  if (file.size > mostBytes()) return consider(one, { isLarge: true });
  consider(one, { text: await file.text() });
}

const typedOf = (one) => one.plan.guards.find((guard) => guard.typed)?.typed ?? "";

// In parts that the server takes at once; what one part was refused does not hold up the next.
async function send(one) {
  if (one.sending) return;
  const wanted = one.plan.rows.filter((row) => !row.why);
  Object.assign(one, { sending: true, failure: null, told: one.told ?? new Map() });
  update();
  try {
    for (let at = 0; at < wanted.length; at += one.plan.at_once) {
      const part = wanted.slice(at, at + one.plan.at_once);
      const ids = Object.fromEntries(part.map((row) => [row.replays, one.ids.get(row.replays)]));
      const answer = await api.post(one.path("commands/replay"), { ...JSON.parse(one.asked), ids, confirmed: typedOf(one) || true });
      for (const row of answer.rows) one.told.set(row.replays, row);
    }
  } catch (error) {
    one.failure = error;
  }
  one.sending = false;
  const written = wanted.filter((row) => one.told.get(row.replays)?.written && !row.isSent);
  for (const row of written) row.isSent = true;
  one.onSent(written.map((row) => ({ id: one.told.get(row.replays).id, name: row.name, input: row.input, first_step: row.step })));
  if (!one.failure && wanted.every((row) => row.isSent)) close();
  update();
}

function view(one) {
  const change = (name) => (event) => consider(one, { [name]: event.target.value });
  const submit = (event) => {
    event.preventDefault();
    if (isReady(one)) send(one);
  };
  return html`<form class="replay" @submit=${submit}><h2 id="dialog-title">Replay the commands of another run</h2>
    <fieldset class="line" ?disabled=${one.sending}><legend>whose</legend>
      <label><input type="radio" name="whose" value="run" .checked=${one.whose === "run"} @change=${change("whose")}> a run of this dashboard</label>
      <label><input type="radio" name="whose" value="ledger" .checked=${one.whose === "ledger"} @change=${change("whose")}> an exported ledger</label>
    </fieldset>
    <fieldset class="bare" ?disabled=${one.sending}>
      ${one.whose === "run" ? runView(one, change) : ledgerView(one, change)}
      ${fieldView(one, change, "scale", "scale steps", "multiplies every step")}
      ${fieldView(one, change, "offset", "offset", "steps later, or earlier when below 0")}
      ${fieldView(one, change, "only", "only", "names of controls; all when empty")}
      ${fieldView(one, change, "except", "except", "names of controls")}
    </fieldset>
    <div aria-live="polite">${planView(one)}</div>
    ${one.failure ? failed(one.failure, one.plan ? null : () => plan(one)) : nothing}
    <p class="line end"><span class="quiet">Nothing is sent before this.</span>${closeButton}
      <button class="main" ?disabled=${!isReady(one)}>${one.sending ? "Sending …" : one.told ? "Send again" : "Send"}</button></p>
  </form>`;
}

const isReady = (one) => one.plan && !one.sending && one.plan.wanted > 0 && one.plan.rights.can_control && one.typed === typedOf(one);

function runView(one, change) {
  return html`<div class="field"><label for="replay-find">find</label>
      <input id="replay-find" autocomplete="off" spellcheck="false" .value=${one.find} @input=${(event) => onFind(one, event.target.value)}>
      <span class="quiet">${one.more ? `the first ${MOST_RUNS} are listed` : ""}</span><span class="problem">${one.problems.find ?? ""}</span></div>
    <div class="field"><label for="replay-run">run</label>
      <select id="replay-run" @change=${change("run")}>
        <option value="" ?selected=${!one.run}>${one.runs ? one.runs.length ? "choose" : "there is no other run" : "looking …"}</option>
        ${(one.runs ?? []).map((run) => html`<option value=${run.id} ?selected=${run.id === one.run}>${visible(run.name)} · ${visible(run.state)}${run.step === null ? "" : ` · step ${count(run.step)}`} · ${run.id.slice(0, 13)}</option>`)}
      </select></div>`;
}

function ledgerView(one, change) {
  return html`<div class="field"><label for="replay-file">file</label>
      <input id="replay-file" type="file" accept=".jsonl,.json,.txt" @change=${(event) => takeFile(one, event.target.files[0])}>
      <span class="quiet">made by export, or by control RUN log --json</span></div>
    <div class="field"><label for="replay-text">or its lines</label>
      <textarea id="replay-text" rows="3" spellcheck="false" .value=${one.text} @input=${change("text")}></textarea>
      <span class="problem">${one.problems.ledger ?? ""}</span></div>`;
}

function fieldView(one, change, name, label, hint) {
  return html`<div class="field"><label for=${`replay-${name}`}>${label}</label>
    <input id=${`replay-${name}`} autocomplete="off" spellcheck="false" .value=${one[name]} aria-invalid=${one.problems[name] ? "true" : "false"} @input=${change(name)}>
    <span class="quiet">${hint}</span><span class="problem">${one.problems[name] ?? ""}</span></div>`;
}

function planView(one) {
  const { plan: made } = one;
  if (!made) return html`<p class="quiet">${one.asked && !one.failure ? "Planning …" : nothing}</p>`;
  if (made.refusal) return html`<p class="problem">${visible(made.refusal)}</p>`;
  if (!made.rows.length) return html`<p>There is no command to replay.</p>`;
  const typed = typedOf(one);
  return html`<p><strong>${plural(made.wanted, "command")} to send, ${count(made.left_out)} left out</strong></p>
    <div class="scroll short" tabindex="0" role="region" aria-label="Plan of the replay"><table class="plain">
      <thead><tr><th scope="col" class="number">Step</th><th scope="col">Command</th><th scope="col">What becomes of it</th></tr></thead>
      <tbody>${made.rows.map((row) => html`<tr data-replays=${row.replays} data-left-out=${row.why ? "yes" : nothing}>
        <td class="number">${row.step === null ? "" : count(row.step)}</td>
        <th scope="row">${visible(row.name)} <span class="quiet">${visible(row.text)}</span></th>
        <td>${fateOf(one, row)}</td></tr>`)}</tbody></table></div>
    ${made.guards.map((guard) => html`<p><span class="mark unknown" aria-hidden="true">!</span> ${visible(guard.text)}</p>`)}
    ${typed ? html`<div class="field"><label for="replay-typed">Type ${visible(typed)}</label>
      <input id="replay-typed" autocomplete="off" .value=${one.typed} @input=${(event) => { one.typed = event.target.value; update(); }}></div>` : nothing}`;
}

function fateOf(one, row) {
  const told = one.told?.get(row.replays);
  if (row.why) return html`<span class="quiet">left out: ${visible(row.why)}</span>`;
  if (!told) return "is sent";
  return told.written ? "written" : html`<span class="problem">not written: ${visible(told.why)}</span>`;
}
