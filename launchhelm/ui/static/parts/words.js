// How a page says that there is nothing, not yet something, or an error; and small pieces.

import { html, nothing } from "../vendor/lit-html.js";
import { say } from "../lib/state.js";

export const waiting = (text) => html`<p class="waiting">${text}</p>`;

export const empty = (title, more = nothing) => html`<div class="empty"><p><strong>${title}</strong></p>${more}</div>`;

export function failed(error, again) {
  return html`<div class="banner bad" role="alert">
    <span aria-hidden="true">✕</span>
    <span>${error.message} ${error.kept ?? ""} ${error.remedy ?? ""}</span>
    ${again ? html`<button type="button" @click=${again}>Try again</button>` : nothing}
  </div>`;
}

// What a slot of lib/load.js amounts to: its view, or words for the state it is in.
export function shown(slot, text, view, again) {
  if (slot.value) return html`${slot.error ? failed(slot.error, again) : nothing}${view(slot.value)}`;
  return slot.error ? failed(slot.error, again) : waiting(text);
}

export function copyButton(text, label = "copy", what = "") {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied", true);
    } catch {
      say("The browser does not allow copying here", true);
    }
  };
  return html`<button type="button" class="small" aria-label=${what ? `${label} ${what}` : nothing}
    @click=${copy}>${label}</button>`;
}

export function download(name, text, type = "text/plain") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
