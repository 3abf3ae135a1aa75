// A form for any schema: nothing about a control is known here but what its schema says.
//
// A draft keeps what was typed, by path ("field", "field.inner", "field.0"). `collect` makes the
// input of it: fields left empty are left out, and the problems found here are named by path.
// Of fields that exclude each other (`one_of`) the chosen one is needed, and the others are left out.
// What a field of any type takes is said by `hints`; it is typed as JSON. A field of `needed` cannot
// be left empty, although a command may leave it out.

import { html, nothing } from "../vendor/lit-html.js";
import { repeat } from "../vendor/directives/repeat.js";
import { visible } from "../lib/format.js";

const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;

export function formView({ schema, one_of: oneOf = [], hints = {}, needed = [] }, draft, onInput, disabled) {
  const root = schema?.root ?? {};
  if (root.kind !== "record") return html`<p>This control takes what only code can give it.</p>`;
  if (!root.fields?.length) return html`<p class="quiet">It takes no input.</p>`;
  const form = { draft, onInput, disabled, hints };
  const groupOf = (field) => oneOf.find((names) => names.includes(field.name));
  return html`<div class="fields">${root.fields.map((field) => {
    const names = groupOf(field);
    if (!names) return fieldView({ ...field, optional: field.optional && !needed.includes(field.name) }, field.name, form);
    return names[0] === field.name ? choiceView(names, root.fields, form) : nothing;
  })}</div>`;
}

const chosenOf = (names, values) => values[choiceKey(names)] ?? names[0];
const choiceKey = (names) => `|${names.join("|")}`;

// Fields of which one is given: a radio each, and the field itself behind the chosen one.
function choiceView(names, fields, form) {
  const chosen = chosenOf(names, form.draft.values);
  const choose = (event) => form.onInput(choiceKey(names), event.target.value);
  return html`<fieldset class="choice"><legend>one of</legend>
    <div class="line">${names.map((name) => html`<label><input type="radio" name=${choiceKey(names)} value=${name}
      .checked=${name === chosen} ?disabled=${form.disabled} @change=${choose}> ${visible(name)}</label>`)}</div>
    ${repeat([chosen], (name) => name, (name) => fieldView({ ...fields.find((field) => field.name === name), optional: false, chosen: true }, name, form))}
  </fieldset>`;
}

function fieldView(field, path, form) {
  const { type = {}, optional } = field;
  const label = html`${visible(field.name)}${optional || field.chosen ? nothing : html`<span class="quiet"> (needed)</span>`}`;
  const id = `field-${path}`;
  const problem = form.draft.problems?.[path];
  const words = html`<span class="quiet" id=${`${id}-hint`}>${visible(form.hints[path] ?? hint(type))}</span>
    <span class="problem" id=${`${id}-problem`}>${problem ?? ""}</span>`;
  if (type.kind === "record") {
    return html`<fieldset><legend>${label}</legend>${(type.fields ?? []).map((inner) => fieldView(inner, `${path}.${inner.name}`, form))}</fieldset>`;
  }
  if (type.kind === "list" || type.kind === "schedule") return rowsView(type, path, label, form);
  if (!["scalar", "enum", "opaque"].includes(type.kind)) {
    return optional ? nothing : html`<p class="problem">${visible(field.name)} takes what only code can give it.</p>`;
  }
  return html`<div class="field"><label for=${id}>${label}</label>${entry(type, path, id, form, optional)}${words}</div>`;
}

function entry(type, path, id, { draft, onInput, disabled }, optional) {
  const value = draft.values[path] ?? "";
  const change = (event) => onInput(path, event.target.value);
  const described = `${id}-hint ${id}-problem`;
  const choices = type.kind === "enum" ? type.values ?? [] : ["true", "false"];
  if (type.kind === "enum" || type.scalar === "boolean") {
    return html`<select id=${id} ?disabled=${disabled} aria-describedby=${described} @change=${change}>
      <option value="" ?selected=${value === ""}>${optional ? "leave out" : "choose"}</option>
      ${choices.map((one) => html`<option value=${one} ?selected=${one === value}>${type.kind === "enum" ? visible(one) : one === "true" ? "on" : "off"}</option>`)}
    </select>`;
  }
  return html`<input id=${id} name=${path} .value=${value} ?disabled=${disabled} aria-describedby=${described}
    inputmode=${type.scalar === "string" || type.kind === "opaque" ? "text" : "decimal"} autocomplete="off" spellcheck="false"
    aria-invalid=${draft.problems?.[path] ? "true" : "false"} @input=${change}>`;
}

// Rows of a list, or points (step, value) of a schedule; a row more or less by its buttons.
function rowsView(type, path, label, form) {
  const { draft, onInput, disabled } = form;
  const rows = Number(draft.values[`${path}#`] ?? 0);
  const cells = type.kind === "schedule"
    ? [{ name: "step", type: { kind: "scalar", scalar: "integer" } }, { name: "value", type: { kind: "scalar", scalar: "number" } }]
    : [{ name: "", type: type.item ?? {} }];
  return html`<fieldset><legend>${label}</legend>
    ${Array.from({ length: rows }, (_, at) => html`<div class="line">${cells.map((cell) =>
      fieldView({ ...cell, name: cell.name || `${at + 1}` }, `${path}.${at}${cell.name ? `.${cell.name}` : ""}`, form))}</div>`)}
    <span class="problem">${draft.problems?.[path] ?? ""}</span>
    <p class="line"><button type="button" class="small" ?disabled=${disabled} @click=${() => onInput(`${path}#`, rows + 1)}>add</button>
      <button type="button" class="small" ?disabled=${disabled || !rows} @click=${() => onInput(`${path}#`, rows - 1)}>remove last</button></p>
  </fieldset>`;
}

function hint(type) {
  const { min, max } = type.bounds ?? {};
  const unit = type.unit ? ` ${type.unit}` : "";
  if (min !== undefined && max !== undefined) return `${min} to ${max}${unit}`;
  if (min !== undefined) return `at least ${min}${unit}`;
  if (max !== undefined) return `at most ${max}${unit}`;
  if (type.kind === "scalar" && ["integer", "number"].includes(type.scalar)) return `${type.scalar}${unit}`;
  return unit;
}

export function collect({ schema, one_of: oneOf = [], needed = [] }, draft) {
  const problems = {};
  const input = {};
  for (const field of schema?.root?.fields ?? []) {
    const names = oneOf.find((group) => group.includes(field.name));
    if (names && field.name !== chosenOf(names, draft.values)) continue;
    const optional = field.optional && !names && !needed.includes(field.name);
    const value = read({ ...field, optional }, field.name, draft.values, problems);
    if (value !== undefined) input[field.name] = value;
  }
  return { input, problems };
}

function read({ type = {}, optional }, path, values, problems) {
  const given = values[path];
  if (type.kind === "record") {
    const made = {};
    for (const inner of type.fields ?? []) {
      const value = read(inner, `${path}.${inner.name}`, values, optional ? {} : problems);
      if (value !== undefined) made[inner.name] = value;
    }
    return optional && !Object.keys(made).length ? undefined : made;
  }
  if (type.kind === "list" || type.kind === "schedule") return readRows(type, path, values, problems, optional);
  if (given === undefined || given === "") {
    if (!optional) problems[path] = "is needed";
    return undefined;
  }
  if (type.kind === "enum" || type.scalar === "string") return given;
  if (type.kind === "opaque") return readJson(given, path, problems);
  if (type.scalar === "boolean") return given === "true";
  return readNumber(type, given.trim(), path, problems);
}

function readJson(given, path, problems) {
  try {
    return JSON.parse(given);
  } catch {
    problems[path] = 'is to be JSON, as 1.5, null, "text" or [1, 2]';
    return undefined;
  }
}

function readNumber(type, given, path, problems) {
  if (!DECIMAL.test(given)) problems[path] = "is to be a number, as 0.5 or 1e-4";
  else if (type.scalar === "integer" && !Number.isInteger(Number(given))) problems[path] = "is to be a whole number";
  const value = Number(given);
  if (!Number.isFinite(value)) problems[path] ??= "is too large for a number";
  const { min, max } = type.bounds ?? {};
  if (min !== undefined && value < Number(min)) problems[path] = `is to be at least ${min}`;
  if (max !== undefined && value > Number(max)) problems[path] = `is to be at most ${max}`;
  return value;
}

function readRows(type, path, values, problems, optional) {
  const rows = Number(values[`${path}#`] ?? 0);
  if (!rows) {
    if (!optional) problems[path] = "needs at least one row";
    return undefined;
  }
  return Array.from({ length: rows }, (_, at) => {
    if (type.kind === "list") return read({ type: type.item }, `${path}.${at}`, values, problems);
    const point = (name, scalar) => read({ type: { kind: "scalar", scalar } }, `${path}.${at}.${name}`, values, problems);
    return [point("step", "integer"), point("value", "number")].map((one) => String(one ?? ""));
  });
}
