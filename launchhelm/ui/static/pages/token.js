// The page without a token: one field, and where its content comes from.

import { html, nothing } from "../vendor/lit-html.js";
import { state } from "../lib/state.js";

const isServer = document.documentElement.dataset.mode === "server";

export function tokenPage(enter) {
  const submit = (event) => {
    event.preventDefault();
    enter(new FormData(event.target).get("token"));
  };
  return html`
    <h1 tabindex="-1">${isServer ? "This dashboard needs an API key" : "This dashboard needs its token"}</h1>
    ${isServer ? html`<p>
      Any key of this server that may read shows what it may read. Whoever runs the server makes one that
      only looks: <code>launchhelm serve keys create --read-only</code>, with <code>--project NAME</code> for
      one project. It stays in this browser.
    </p>` : html`<p>
      Open the address that <code>launchhelm ui</code> printed, or paste it here. In a terminal on the
      host of the dashboard, <code>launchhelm ui --list</code> prints it again. A dashboard that was
      started anew has a new one.
    </p>`}
    <form class="line" @submit=${submit}>
      <label>${isServer ? "API key" : "Address or token"}
        <input name="token" required autocomplete="off" spellcheck="false" autofocus>
      </label>
      <button class="main">Open</button>
    </form>
    ${state.tokenError
      ? html`<p class="problem" role="alert">${state.tokenError.message} ${state.tokenError.remedy}</p>`
      : nothing}`;
}
