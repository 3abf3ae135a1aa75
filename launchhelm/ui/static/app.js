// The frame of every page: header, banners, dialog, the token field, news of changes, and keys.

import { html, nothing, render } from "./vendor/lit-html.js";
import * as address from "./lib/address.js";
import * as api from "./lib/api.js";
import * as keys from "./lib/keys.js";
import { duration, visible } from "./lib/format.js";
import { onDraw, say, settings, state, update } from "./lib/state.js";
import { dialogView } from "./parts/dialog.js";
import { tokenPage } from "./pages/token.js";
import compare from "./pages/compare.js";
import run from "./pages/run.js";
import runs from "./pages/runs.js";
import sync from "./pages/sync.js";

const LOST_AFTER_S = 10;
const AGES_MS = 5000; // Ages on the page go on while nothing arrives.
const nowhere = {
  title: () => "No such page",
  open() {},
  view: () => html`<h1>No such page</h1>
    <p>This address belongs to no page. <a href=${address.href("/")}>All runs</a></p>`,
};
const pages = { runs, run, compare, sync, nowhere };
let page = nowhere;

const news = new api.News(
  (change) => {
    if (state.paused) return update({ missed: state.missed + 1 });
    page.change?.(change);
  },
  (how, lostAt = 0) => {
    if (typeof how === "string") return update({ connection: how, lostAt: 0 });
    const noToken = how.status === 401 || how.status === 403;
    update({ connection: noToken ? "no_token" : "lost", lostAt });
    if (noToken) news.stop();
  },
);

async function start() {
  api.takeToken();
  document.documentElement.dataset.theme = settings.get("theme", "system");
  document.documentElement.dataset.density = settings.get("density", "dense");
  addEventListener("hashchange", () => location.hash.startsWith("#token=") && enter(location.hash));
  // What is painted and not styled follows the system too.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new CustomEvent("theme")));
  onDraw(draw);
  setInterval(() => document.hidden || update(), AGES_MS);
  keys.listen((key) => page.keys?.()[key] ?? GLOBAL_KEYS[key]);
  if (api.token()) await connect();
  else update({ connection: "no_token" });
}

async function connect() {
  try {
    update({ info: await api.get("info"), connection: "connecting" });
  } catch (error) {
    if (error.status === 401 || error.status === 403 || error.status === 429) {
      return update({ connection: "no_token", tokenError: error });
    }
    update({ connection: "lost", lostAt: state.lostAt || Date.now() });
    return setTimeout(connect, 2000);
  }
  if (state.route) return news.restart();
  address.start(open);
}

function enter(text) {
  api.keepToken(text);
  api.takeToken();
  update({ tokenError: null });
  connect();
}

function open(route) {
  const next = pages[route.page];
  const isFirst = !state.route;
  const same = state.route && page === next && next.same?.(state.route, route);
  if (!same) {
    page.close?.();
    page = next;
    state.page = {};
    state.paused = false;
    state.missed = 0;
  }
  update({ route });
  page.open(route, same);
  news.watch(page.watched?.(route) ?? []);
  // At once: the next key is meant for this page, not for what was there before.
  if (!same) draw();
  if (!same && !isFirst) focusHeading();
}

// A new page is read from its heading, as it would be after a full load.
function focusHeading() {
  requestAnimationFrame(() => requestAnimationFrame(() => {
    if (document.activeElement === document.body) document.querySelector("h1")?.focus();
  }));
}


function connectionText() {
  const { connection, lostAt } = state;
  if (connection === "no_token") return "no token";
  if (connection !== "lost") return connection;
  const lost_s = (Date.now() - lostAt) / 1000;
  return lost_s < LOST_AFTER_S ? "connecting again" : `connection lost ${duration(lost_s)} ago`;
}

const GLOBAL_KEYS = {
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => update({ dialog: help }),
  "g r": () => address.go(address.href("/")),
  "g s": () => address.go(address.href("/sync")),
  j: () => keys.moveRow(1),
  k: () => keys.moveRow(-1),
};

const help = () => html`
  <h2 id="dialog-title">Keys</h2>
  <table class="plain">
    <tbody>
      ${keys.HELP.map(([key, does]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${does}</td></tr>`)}
    </tbody>
  </table>
  <label><input type="checkbox" .checked=${settings.get("keys", true)}
    @change=${(event) => settings.set("keys", event.target.checked)}> single keys</label>
  <label><input type="checkbox" .checked=${settings.get("density", "dense") === "wide"}
    @change=${(event) => {
      settings.set("density", event.target.checked ? "wide" : "dense");
      document.documentElement.dataset.density = settings.get("density");
    }}> more room between rows</label>`;

const THEMES = ["system", "light", "dark"];

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(settings.get("theme", "system")) + 1) % THEMES.length];
  document.documentElement.dataset.theme = theme;
  settings.set("theme", theme);
  dispatchEvent(new CustomEvent("theme"));
  say(`${theme} colours`, true);
}

function lostBar() {
  const { connection, lostAt } = state;
  if (connection !== "lost" || Date.now() - lostAt < LOST_AFTER_S * 1000) return nothing;
  return html`<p class="banner bad" role="alert">
    <span aria-hidden="true">✕</span> The connection was lost ${duration((Date.now() - lostAt) / 1000)}
    ago; trying again. What you see is from then. Look whether <code>launchhelm ui</code> and the ssh
    tunnel still run.
  </p>`;
}

function draw() {
  const { info, connection, route } = state;
  const asks = connection === "no_token";
  const title = asks || !route ? "LaunchHelm" : page.title();
  document.title = title === "LaunchHelm" ? title : `${visible(title)} · LaunchHelm`;
  render(
    html`
      <a class="skip" href="#main" @click=${skip}>Skip to the content</a>
      <header>
        <a class="name" href=${address.href("/")}>LaunchHelm</a>
        ${info
          ? html`<span class="root" title=${info.roots.join("\n")}>${info.roots.map(visible).join(", ")}</span>`
          : nothing}
        ${info?.read_only ? html`<span class="tag">read-only</span>` : nothing}
        <nav aria-label="Pages">
          <a href=${address.href("/")} aria-current=${route?.page === "runs" ? "page" : nothing}>Runs</a>
          <a href=${address.href("/sync")} aria-current=${route?.page === "sync" ? "page" : nothing}>Sync</a>
        </nav>
        <span class="connection" data-connection=${connection}>${connectionText()}</span>
        <button type="button" class="icon" title="Keys" aria-label="Keys and settings"
          @click=${() => update({ dialog: help })}>?</button>
        <button type="button" class="icon" aria-label=${`Colours: ${settings.get("theme", "system")}`}
          title=${`Colours: ${settings.get("theme", "system")}`} @click=${nextTheme}>◐</button>
      </header>
      ${lostBar()}
      <main id="main" tabindex="-1" class=${connection === "lost" ? "old" : ""}>
        ${asks ? tokenPage(enter) : route ? page.view() : html`<h1>LaunchHelm</h1><p>Connecting …</p>`}
      </main>
      ${dialogView()}
      <div class="unseen" role="status">${state.say}</div>`,
    document.getElementById("app"),
  );
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

start();
