// The one dialog. The browser's own traps the focus and gives it back.

import { html, nothing } from "../vendor/lit-html.js";
import { state, update } from "../lib/state.js";

export const close = () => update({ dialog: null });

export function dialogView() {
  const { dialog } = state;
  requestAnimationFrame(() => {
    const node = document.querySelector("dialog");
    if (dialog && !node.open) node.showModal();
    if (!dialog && node.open) node.close();
  });
  return html`<dialog aria-labelledby="dialog-title" @close=${close}>
    ${dialog ? dialog() : nothing}
    ${dialog ? html`<p class="line end"><button type="button" @click=${close}>Close</button></p>` : nothing}
  </dialog>`;
}
