// What may be changed, a form for it, and the ledger of all that was asked for.
//
// Nothing is sent before Send, and Send waits for a check of exactly this input.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";
import * as api from "../lib/api.js";
import { set } from "../lib/address.js";
import { ago, count, fullTime, plural, text, time, visible } from "../lib/format.js";
import { load, loaded } from "../lib/load.js";
import { say, settings, state, update } from "../lib/state.js";
import { collect, formView } from "../parts/form.js";
import { askWith, close, closeButton } from "../parts/dialog.js";
import { askReplay } from "../parts/replay.js";
import { download, empty, failed, shown } from "../parts/words.js";
import { inputText } from "./charts.js";

const CHECK_AFTER_MS = 300;
const CHECK_AGAIN_MS = 5000;
const MOST_EFFECTS = 12;
const EFFECT_AGAIN_MS = 5000;
const LEDGER_AGAIN_MS = 15_000; // What a restart or a scheduler did to an old command is seen by then.
const FINAL = new Set(["applied", "rejected", "expired", "cancelled", "outcome_unknown"]);
const USUAL_EFFECT = "mutate"; // Not worth a word.
const TONES = { "▲": "good", "?": "unknown", "✕": "bad" };

const path = (rest) => `runs/${encodeURIComponent(state.route.id)}/${rest}`;

const refresh = () => load("controls", () => api.get(path("controls")));

// The ledger, with what was sent from here until the run's own list has it.
async function refreshLedger() {
  const before = new Map((loaded("ledger").value?.commands ?? []).map((one) => [one.id, one.text]));
  state.page.ledgerAt = Date.now();
  await load("ledger", () => api.get(path("commands")));
  const known = new Set((loaded("ledger").value?.commands ?? []).map((one) => one.id));
  if (state.page.sent?.some((one) => known.has(one.id))) {
    state.page.sent = state.page.sent.filter((one) => !known.has(one.id));
    update();
  }
  askEffects();
  for (const one of loaded("ledger").value?.commands ?? []) {
    if (before.size && before.get(one.id) !== one.text) say(`${one.name}: ${one.text}`, one.state === "outcome_unknown");
  }
}

// A person who sent something sees it at once, whatever the list knows yet.
function noteSent(id, name, input) {
  noteAllSent([{ id, name, input }]);
}

function noteAllSent(commands) {
  if (!commands.length) return;
  for (const one of commands) {
    (state.page.sent ??= []).unshift({
      ...one, mark: "◆", state: "written", text: "Written, waits to be picked up", issued_by: "you",
      issued_at: Date.now() / 1000, states: [], can_cancel: false, can_revert: false,
    });
  }
  say(`Written: ${commands.map((one) => one.name).join(", ")}`, true);
  refreshLedger();
}

// What curves did after the newest commands, asked for again while it is too early to say.
async function askEffects() {
  const { page } = state;
  const effects = (page.effects ??= {});
  const applied = (loaded("ledger").value?.commands ?? []).filter((one) => one.state === "applied" && one.applied_step !== null && !one.name.includes(":") && hasValues(one));
  for (const one of applied.slice(0, MOST_EFFECTS)) {
    const known = effects[one.id];
    if (known && !(known.metrics ?? []).some((each) => each.missing) && !known.again) continue;
    if (known && Date.now() - known.askedAt < EFFECT_AGAIN_MS) continue;
    effects[one.id] = { ...known, askedAt: Date.now() };
    try {
      effects[one.id] = { ...(await api.get(path("effect"), { command: one.id })), askedAt: Date.now() };
    } catch (error) {
      effects[one.id] = { metrics: [], askedAt: Date.now(), again: error.status === 0 };
    }
    if (state.page !== page) return;
    update();
  }
}

// A checkpoint changes no curve.
const hasValues = (one) => Object.keys(one.changes ?? {}).length > 0;

// The draft: what the person has filled in for the one control that is open. `asked` is the input
// of the newest check, `checked` its answer; an answer to an older input is thrown away.
const draft = () => state.page.draft;

function pick(name, values = {}) {
  state.page.draft = { name, values, problems: {}, reason: "", when: "next", first: "", last: "", asked: "", checked: null, sending: false };
  clearTimeout(state.page.timer);
  update();
  requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector(".change input:not([type=radio]), .change select")?.focus()));
  consider();
}

function onInput(field, value) {
  draft().values[field] = value;
  consider();
}

const controlOf = (name) => loaded("controls").value?.controls.find((one) => one.name === name);

function bodyOf(one) {
  const { input } = collect(controlOf(one.name), one);
  const step = (given) => (given === "" ? undefined : Number(given.replaceAll(",", "")));
  const body = { name: one.name, input };
  if (one.when === "at" && step(one.first) !== undefined) body.first_step = step(one.first);
  if (one.when === "at" && step(one.last) !== undefined) body.last_step = step(one.last);
  return body;
}

const isStep = (given) => /^[\d,]*$/.test(given) && Number(given.replaceAll(",", "")) <= Number.MAX_SAFE_INTEGER;

function consider() {
  const one = draft();
  const { problems } = collect(controlOf(one.name), one);
  const touched = (field) => one.values[field] !== undefined && one.values[field] !== "";
  one.problems = Object.fromEntries(Object.entries(problems).filter(([field]) => touched(field)));
  for (const field of ["first", "last"]) {
    if (one.when === "at" && !isStep(one[field])) one.problems[field] = "is to be a step, as 12,000";
  }
  if (one.when === "at" && one.first.trim() === "") one.problems.first = "is needed: the step to act at";
  one.checked = null;
  one.failure = null;
  one.asked = "";
  one.id = undefined;
  update();
  clearTimeout(state.page.timer);
  if (Object.keys(problems).length || Object.keys(one.problems).length) return;
  state.page.timer = setTimeout(check, CHECK_AFTER_MS);
}

async function check() {
  const one = draft();
  if (!one || state.route?.tab !== "controls") return;
  const body = bodyOf(one);
  const asked = JSON.stringify(body);
  one.asked = asked;
  try {
    const checked = await api.post(path("commands/check"), body);
    if (one.asked === asked && one === draft()) one.checked = { ...checked, body, at: Date.now() };
  } catch (error) {
    if (one.asked === asked) one.failure = error;
  }
  update();
}

// What a check foresaw moves on with the run.
function renewCheck() {
  const one = draft();
  if (one?.checked && !one.sending && Date.now() - one.checked.at > CHECK_AGAIN_MS) check();
}

function send() {
  const one = draft();
  const guards = one.checked.guards ?? [];
  if (!guards.length) return deliver(false);
  one.typed = "";
  askWith(() => confirmView(one, guards));
}

function confirmView(one, guards) {
  const typed = guards.find((guard) => guard.typed)?.typed ?? "";
  const sure = (event) => {
    event.preventDefault();
    close();
    deliver(typed || true);
  };
  return html`<h2 id="dialog-title">Send ${visible(one.name)} all the same?</h2>
    <ul>${guards.map((guard) => html`<li>${visible(guard.text)}</li>`)}</ul>
    <form @submit=${sure}>
      ${typed ? html`<label>Type <strong>${visible(typed)}</strong> to confirm
        <input autocomplete="off" .value=${one.typed} @input=${(event) => { one.typed = event.target.value; update(); }}></label>` : nothing}
      <p class="line end">${closeButton}<button class="main" ?disabled=${one.typed !== typed}>Send</button></p>
    </form>`;
}

// The id is made once per draft, so that sending twice is one command.
async function deliver(confirmed) {
  const one = draft();
  if (one.sending || !one.checked) return;
  one.id ??= makeId();
  one.sending = true;
  one.failure = null;
  update();
  try {
    const { body, expected, seen } = one.checked;
    const sent = await api.post(path("commands"), { ...body, expected, seen, id: one.id, reason: one.reason, confirmed });
    state.page.draft = null;
    set({ cmd: sent.id ?? one.id });
    noteSent(sent.id ?? one.id, one.name, one.checked.body.input);
  } catch (error) {
    one.sending = false;
    await notSent(one, error);
  }
  update();
}

// What the server refused was not written, and a new check tells what would happen now. Where there
// was no answer it may have been: then sending again is the same command.
async function notSent(one, error) {
  one.failure = error;
  if (error.status === 0 || error.status >= 500) return;
  one.id = undefined;
  one.checked = null;
  if (error.code === "changed_meanwhile") await refresh();
  if (one === draft()) await check();
  if (error.code === "not_confirmed" && one === draft() && one.checked?.valid && one.checked.guards?.length) {
    one.failure = null;
    send();
  }
}

const makeId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

async function cancel(id) {
  try {
    await api.post(path(`commands/${encodeURIComponent(id)}/cancel`), {});
    say("Cancel written", true);
  } catch (error) {
    refused("Cancel", error);
  }
  refreshLedger();
}

// Sets the values from before a command, by new commands: each is checked before it is offered.
async function revert(command) {
  const bodies = command.undo.map((one) => ({ name: command.name, reverts: command.id, reason: "revert", ...one }));
  try {
    const checks = await Promise.all(bodies.map((body) => api.post(path("commands/check"), body)));
    askWith(() => revertView(command, bodies, checks));
  } catch (error) {
    refused("The revert", error);
  }
}

function revertView(command, bodies, checks) {
  const sendAll = async () => {
    close();
    try {
      for (const body of bodies) {
        const sent = await api.post(path("commands"), { ...body, id: makeId(), confirmed: true });
        noteSent(sent.id, body.name, body.input);
      }
    } catch (error) {
      refused("The revert", error);
    }
  };
  return html`<h2 id="dialog-title">Set ${visible(command.name)} back?</h2>
    ${checks.flatMap((one) => [...one.text, ...one.guards.map((guard) => guard.text)]).map((line) => html`<p>${visible(line)}</p>`)}
    <p class="quiet">New commands set the values from before. Weights are not restored.</p>
    <p class="line end">${closeButton}<button type="button" class="main" ?disabled=${!checks.every((one) => one.valid)} @click=${sendAll}>Send</button></p>`;
}

function refused(what, error) {
  update({ dialog: () => html`<h2 id="dialog-title">${what} was not written</h2><p>${error.message} ${error.kept} ${error.remedy}</p>` });
}

async function give(word) {
  try {
    await api.post(path("commands"), { name: `run:${word}`, input: {}, id: makeId() });
    say(`${word} written`, true);
  } catch (error) {
    refused(word, error);
  }
  refreshLedger();
}

function rights(value) {
  return value.rights ?? state.run?.rights ?? { can_control: true, reason: "" };
}

function stateNote() {
  const word = state.run?.state;
  const { refusal } = loaded("controls").value ?? {};
  if (refusal && loaded("controls").value.controls.length) return html`<p class="banner"><span aria-hidden="true">■</span> ${visible(refusal)}</p>`;
  if (word === "no news") return html`<p class="banner"><span aria-hidden="true">◐</span> There is ${visible(state.run.state_text)}: commands will wait, and expire unless the run answers.</p>`;
  return nothing;
}

function valuesText(control) {
  if (control.text) return visible(control.text);
  const { values } = control;
  if (values === null || values === undefined) return "";
  if (typeof values !== "object") return text(values);
  return Object.entries(values).map(([name, value]) => `${visible(name)} ${text(value)}`).join(", ");
}

function controlsTable(value, mayControl) {
  const open = draft()?.name;
  return html`<table class="plain controls"><caption class="unseen">Controls and their present values</caption>
    <thead><tr><th scope="col">Control</th><th scope="col">Present</th><th scope="col"><span class="unseen">Change</span></th></tr></thead>
    <tbody>${value.controls.map((one) => html`<tr data-row=${one.name}>
      <th scope="row">${visible(one.name)}</th>
      <td>${valuesText(one)}${one.effect && one.effect !== USUAL_EFFECT ? html` <span class="quiet">${visible(one.effect)}</span>` : nothing}</td>
      <td><button type="button" aria-expanded=${open === one.name} @click=${() => pick(one.name)}>${mayControl ? "change" : "look"}<span class="unseen"> ${visible(one.name)}</span></button></td>
    </tr>`)}</tbody></table>`;
}

function changeForm(value, mayControl, reason) {
  const one = draft();
  const control = one && controlOf(one.name);
  if (!control) return nothing;
  const { checked, failure } = one;
  const disabled = !mayControl || one.sending;
  const field = (name) => (event) => { one[name] = event.target.value; consider(); };
  const submit = (event) => {
    event.preventDefault();
    if (checked?.valid && !disabled) send();
  };
  return html`<form class="change" aria-label=${`Change ${visible(one.name)}`} @submit=${submit}>
    <h3>Change ${visible(one.name)}</h3>
    ${mayControl ? nothing : html`<p class="banner"><span aria-hidden="true">!</span> Controlling is off: ${visible(reason)}</p>`}
    ${formView(control, { ...one, problems: { ...one.problems, ...(checked?.fields ?? {}) } }, onInput, disabled)}
    <fieldset class="line"><legend>when</legend>
      <label><input type="radio" name="when" value="next" .checked=${one.when === "next"} ?disabled=${disabled} @change=${field("when")}> next safe point</label>
      <label><input type="radio" name="when" value="at" .checked=${one.when === "at"} ?disabled=${disabled} @change=${field("when")}> at a step</label>
      ${one.when === "at" ? html`<label>from <input class="step" inputmode="numeric" .value=${one.first} @input=${field("first")}></label>
        <label>until <input class="step" inputmode="numeric" .value=${one.last} @input=${field("last")}></label>
        <span class="problem">${one.problems.first ?? one.problems.last ?? ""}</span>` : nothing}
    </fieldset>
    <div class="field"><label for="why">why</label><input id="why" .value=${one.reason} ?disabled=${disabled} maxlength="500"
      autocomplete="off" @input=${(event) => { one.reason = event.target.value; }}></div>
    <div class="check" aria-live="polite" data-valid=${checked ? String(checked.valid) : nothing}>${checkView(one)}</div>
    ${failure ? failed(failure, checked ? null : consider) : nothing}
    <p class="line end"><span class="quiet">Nothing is sent before this.</span>
      <button type="button" @click=${() => { state.page.draft = null; update(); }}>Close</button>
      <button class="main" ?disabled=${disabled || !checked?.valid}>${one.sending ? "Sending …" : "Send"}</button></p>
  </form>`;
}

function checkView(one) {
  const { checked, asked, failure } = one;
  if (failure && !checked) return nothing;
  if (!checked) return html`<p class="quiet">${asked ? "Checking …" : "What would happen is said here as soon as the form is filled in."}</p>`;
  const lines = [...checked.text];
  if (checked.when && !lines.some((line) => line.includes(checked.when))) lines.push(checked.when);
  return html`${lines.map((line) => html`<p>${visible(line)}</p>`)}
    ${(checked.queue ?? []).map((line) => html`<p class="quiet">before it: ${visible(line)}</p>`)}
    ${(checked.guards ?? []).map((guard) => html`<p><span class="mark unknown" aria-hidden="true">!</span> ${visible(guard.text)}</p>`)}
    ${checked.valid ? nothing : Object.entries(checked.fields ?? {}).map(([field, problem]) => html`<p class="problem">${visible(field)} ${visible(problem)}</p>`)}`;
}

// The ledger ---------------------------------------------------------------------------------

// Unknown outcomes stay on top until someone has seen them.
function ordered(listed) {
  const commands = [...(state.page.sent ?? []).filter((sent) => !listed.some((one) => one.id === sent.id)), ...listed];
  const onTop = (one) => one.state === "outcome_unknown" && !isSeen(one);
  return [...commands.filter(onTop), ...commands.filter((one) => !onTop(one))];
}

const isSeen = (one) => one.seen || settings.get("seen", []).includes(one.id);

function atStep(one) {
  const step = one.applied_step ?? one.first_step;
  return step === null || step === undefined ? "" : count(step);
}

function ledgerRow(one, mayControl) {
  const open = state.route.query.cmd === one.id;
  const tone = TONES[one.mark] ?? "waiting";
  return html`<tr data-command=${one.id} data-tone=${tone} data-state=${one.state}>
      <td class="number" data-head="Step"><span class=${`mark ${tone}`} aria-hidden="true">${one.mark}</span> ${atStep(one)}</td>
      <th scope="row" data-head="Command">${visible(one.name)} <span class="quiet">${visible(inputText(one.input))}</span></th>
      <td data-head="Outcome" class="outcome">${visible(one.text)}${effectLine(one)}</td>
      <td data-head="By" title=${fullTime(one.issued_at)}>${visible(one.issued_by)} <span class="quiet">${ago(one.issued_at)}</span></td>
      <td class="actions">
        <button type="button" class="small" aria-expanded=${open} @click=${() => set({ cmd: open ? "" : one.id })}>details<span class="unseen"> of ${visible(one.name)}</span></button>
        ${mayControl && one.can_cancel ? html`<button type="button" class="small" @click=${() => cancel(one.id)}>cancel<span class="unseen"> ${visible(one.name)}</span></button>` : nothing}
        ${mayControl && one.can_revert ? html`<button type="button" class="small" @click=${() => revert(one)}>revert<span class="unseen"> ${visible(one.name)}</span></button>` : nothing}
        ${one.state === "outcome_unknown" && !isSeen(one) ? html`<button type="button" class="small" @click=${() => settings.set("seen", [...settings.get("seen", []), one.id])}>mark as seen<span class="unseen"> ${visible(one.name)}</span></button>` : nothing}
      </td>
    </tr>
    ${open ? html`<tr class="details"><td colspan="5">${details(one)}</td></tr>` : nothing}`;
}

function details(one) {
  const by = one.claims && one.claims !== one.issued_by ? `${one.issued_by}, claims to be ${one.claims}` : one.issued_by;
  const facts = [
    ["id", one.id],
    ["input", JSON.stringify(one.input)],
    ["reason", one.reason],
    ["issued by", [by, one.via && `via ${one.via}`].filter(Boolean).join(" ")],
    ["first and last step", [one.first_step, one.last_step].some((step) => step !== null && step !== undefined) ? `${count(one.first_step)} to ${count(one.last_step)}` : ""],
    ["applied on", one.applied_on ? `${count(one.applied_on.count)} of ${count(one.applied_on.of)} processes` : ""],
    ["code", one.code],
    ["changes", changesText(one.changes)],
    ["reverts", one.reverts],
    ["reverted by", one.reverted_by],
    ["replays", one.replays],
  ].filter(([, value]) => value);
  return html`<dl>${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${visible(value)}</dd>`)}
    ${(one.states ?? []).map((step) => html`<dt>${visible(step.state)}</dt><dd title=${fullTime(step.at)}>${time(step.at)} ${visible(step.where)}</dd>`)}</dl>${effectView(one)}`;
}

function effectLine(one) {
  const said = state.page.effects?.[one.id]?.metrics?.[0];
  return said ? html` <span class="quiet effect">· ${visible(said.name)} ${said.text}</span>` : nothing;
}

function effectView(one) {
  const said = state.page.effects?.[one.id];
  if (!said?.metrics?.length) return nothing;
  return html`<h3>Before and after</h3>
    <dl>${said.metrics.map((each) => html`<dt>${visible(each.name)}</dt><dd>${each.text}</dd>`)}
      ${said.beside.length ? html`<dt>in the same time</dt><dd>${said.beside.map(visible).join("; ")}</dd>` : nothing}</dl>
    <p class="quiet">${said.text}</p>`;
}

function changesText(changes) {
  if (!changes) return "";
  if (typeof changes === "string") return changes;
  const listed = (value) => (Array.isArray(value) ? value.map(text).join(", ") : text(value));
  return Object.entries(changes).map(([name, said]) => (said && typeof said === "object" && "new" in said
    ? `${name} ${listed(said.old)} -> ${listed(said.new)}${said.effective === undefined || said.effective === null ? "" : `, in effect ${listed(said.effective)}`}`
    : `${name} ${text(said)}`)).join("; ");
}

function ledger(mayControl) {
  const { frozen, no_replay: noReplay } = loaded("ledger").value ?? {};
  return html`<section class="ledger" aria-labelledby="ledger"><div class="line"><h2 id="ledger">Ledger</h2>
    <span class="grow"></span>
    ${mayControl && state.info?.mode !== "server" ? html`<button type="button" class="small" @click=${() => give(frozen ? "unfreeze" : "freeze")}>${frozen ? "unfreeze" : "freeze"}</button>` : nothing}
    <button type="button" class="small" @click=${save}>export</button>
    ${mayControl && !noReplay ? html`<button type="button" class="small" @click=${() => askReplay({ path, makeId, onSent: noteAllSent })}>replay…</button>` : nothing}</div>
    ${mayControl && noReplay ? html`<p class="quiet">${visible(noReplay)}</p>` : nothing}
    ${frozen ? html`<p class="banner"><span aria-hidden="true">!</span> Frozen: ${visible(frozen)}</p>` : nothing}
    ${shown(loaded("ledger"), "Reading the ledger …", ({ commands }) => (commands.length || state.page.sent?.length
      ? html`<div class="scroll" tabindex="0" role="region" aria-label="Ledger"><table>
          <caption class="unseen">${plural(commands.length, "command")} of this run</caption>
          <thead><tr><th scope="col" class="number">Step</th><th scope="col">Command</th><th scope="col">Outcome</th><th scope="col">By</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
          <tbody>${repeat(ordered(commands), (one) => one.id, (one) => ledgerRow(one, mayControl))}</tbody></table></div>`
      : empty("No command was ever given to this run.")), refreshLedger)}
  </section>`;
}

// Oldest first and with its run, as a replay wants it.
function save() {
  const run = state.run?.id ?? state.route.id;
  const lines = [...(loaded("ledger").value?.commands ?? [])].reverse().map((one) => JSON.stringify({ run, ...one }));
  download("ledger.jsonl", `${lines.join("\n")}\n`, "application/jsonl");
}

function noControls() {
  const starting = state.run?.state === "starting";
  return empty(starting ? "The run has not said yet what may be changed." : "This run declared no controls.", starting ? nothing : html`
    <p>These lines declare the optimizer's, and one of your own:</p>
    <pre tabindex="0">trainer = launchhelm.torch.init("first")
trainer.watch(model, optimizer)
trainer.tunable("kl_weight", 0.05, minimum=0, maximum=1)</pre>`);
}

const isOpen = () => state.page.sent?.length || (loaded("ledger").value?.commands ?? []).some((one) => !FINAL.has(one.state));

export default {
  open() {
    refresh();
    refreshLedger();
  },
  close() {
    clearTimeout(state.page.timer);
  },
  change({ what }) {
    renewCheck();
    if (what.includes("commands") || what.includes("attempts")) {
      refresh();
      refreshLedger();
    } else if (isOpen() || Date.now() - (state.page.ledgerAt ?? 0) > LEDGER_AGAIN_MS) {
      refreshLedger();
    } else {
      askEffects();
    }
  },
  view: () => shown(loaded("controls"), "Reading the controls …", (value) => {
    const { can_control: mayControl, reason } = rights(value);
    return html`${stateNote()}
      <div class="line"><h2>Change</h2><span class="grow"></span>
        <span class="quiet">${mayControl ? "you may control" : `you may look: ${visible(reason)}`}</span></div>
      ${value.controls.length ? controlsTable(value, mayControl) : noControls()}
      ${changeForm(value, mayControl, reason)}
      ${ledger(mayControl)}`;
  }, refresh),
};
