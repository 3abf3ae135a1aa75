// Addresses of views: a path for the page, query fields for its settings, defaults left out.

import { base } from "./api.js";
import { state, update } from "./state.js";

export const TABS = ["charts", "processes", "controls", "console", "media", "files", "about"];

export function read() {
  const path = decodeURI(location.pathname.slice(base.length)).replace(/\/+$/, "");
  const parts = path.split("/").slice(1);
  const query = Object.fromEntries(new URLSearchParams(location.search));
  if (parts[0] === "run" && parts[1]) {
    const tab = TABS.includes(parts[2]) ? parts[2] : "charts";
    return { page: "run", id: parts[1], tab, query };
  }
  if (parts[0] === "compare" || parts[0] === "sync") return { page: parts[0], query };
  return { page: path === "" ? "runs" : "nowhere", query };
}

export function href(path, query = {}) {
  const fields = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  );
  const text = fields.toString();
  return `${base}${path}${text ? `?${text}` : ""}`;
}

export const runHref = (id, tab = "", query = {}) =>
  href(`/run/${encodeURIComponent(id)}${tab && tab !== "charts" ? `/${tab}` : ""}`, query);

let opened = () => {};

export function start(onOpen) {
  opened = onOpen;
  addEventListener("popstate", open);
  addEventListener("click", (event) => {
    const link = event.composedPath().find((node) => node.localName === "a");
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
    if (!link || !plain || link.target || link.hasAttribute("download")) return;
    const to = new URL(link.href);
    if (to.origin !== location.origin || to.hash) return;
    event.preventDefault();
    go(to.pathname + to.search);
  });
  open();
}

export function go(to, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  open();
}

// Changes settings of the view that is open, without opening it again.
export function set(fields, { replace = true } = {}) {
  const query = { ...state.route.query, ...fields };
  for (const name of Object.keys(query)) {
    if (query[name] === undefined || query[name] === null || query[name] === "") delete query[name];
  }
  const text = new URLSearchParams(query).toString();
  history[replace ? "replaceState" : "pushState"](null, "", location.pathname + (text ? `?${text}` : ""));
  state.route.query = query;
  update();
}

function open() {
  opened(read());
}
