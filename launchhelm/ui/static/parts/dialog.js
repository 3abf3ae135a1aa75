// The one dialog. The browser's own traps the focus and gives it back. One that asks has the way
// back beside its other button; all others get it here.

import { html, nothing } from "../vendor/lit-html.js";
import { state, update } from "../lib/state.js";

export const close = () => update({ dialog: null });
export const askWith = (view) => update({ dialog: Object.assign(() => view(), { asks: true }) });
export const closeButton = html`<button type="button" @click=${close}>Close</button>`;

let open = null;

// The browser tells later that a dialog was closed; by then another may have been asked for.
const closed = () => state.dialog === open && close();

export function dialogView() {
  const { dialog } = state;
  requestAnimationFrame(() => {
    const node = document.querySelector("dialog");
    if (dialog) open = dialog;
    if (dialog && !node.open) node.showModal();
    if (!dialog && node.open) node.close();
  });
  return html`<dialog aria-labelledby="dialog-title" @close=${closed}>
    ${dialog ? dialog() : nothing}
    ${dialog && !dialog.asks ? html`<p class="line end">${closeButton}</p>` : nothing}
  </dialog>`;
}
