// Asking the server: the token, JSON calls, bytes for media, and news of changes.
//
// The token arrives in the fragment of the address, which browsers do not send; it is kept for this
// origin, taken out of the address at once, and travels only in the Authorization header.

const here = new URL(import.meta.url).pathname;
export const base = here.slice(0, here.lastIndexOf("/static/"));

const KEPT = "launchhelm.token";
const RETRY_S = [1, 2, 4, 8, 15];

export class ApiError extends Error {
  constructor(status, { code = "", happened = "", kept = "", remedy = "" } = {}) {
    super(happened || `The server answered ${status}.`);
    Object.assign(this, { status, code, kept, remedy });
  }
}

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  keepToken(given);
  history.replaceState(history.state, "", location.pathname + location.search);
}

// Takes what people paste: the token alone, or the whole address that was printed.
export function keepToken(text) {
  const token = text.trim().replace(/^.*#token=/, "");
  try {
    localStorage.setItem(KEPT, token);
  } catch {
    memory = token;
  }
}

let memory = "";

export function token() {
  try {
    return localStorage.getItem(KEPT) || memory;
  } catch {
    return memory;
  }
}

function address(path, query = {}) {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") fields.append(name, one);
    }
  }
  const text = fields.toString();
  return `${base}/api/1/${path}${text ? `?${text}` : ""}`;
}

async function ask(path, { query, body, signal } = {}) {
  const options = { headers: { Authorization: `Bearer ${token()}` }, signal, cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(address(path, query), options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, {
      code: "no_connection",
      happened: "The dashboard's server does not answer.",
      kept: "Everything that was recorded is in the run directory.",
      remedy: "Look whether `launchhelm ui` and the ssh tunnel still run.",
    });
  });
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, said.error);
  }
  return answer;
}

export async function get(path, query, signal) {
  const answer = await ask(path, { query, signal });
  return answer.status === 204 ? null : answer.json();
}

export async function post(path, body) {
  return (await ask(path, { body })).json();
}

const blobs = new Map();

// Bytes of media as an address that the page may show; kept as long as the page is.
export function blob(digest, mediaType) {
  if (!blobs.has(digest)) {
    const made = ask(`blobs/${encodeURIComponent(digest)}`)
      .then((answer) => answer.blob())
      .then((bytes) => URL.createObjectURL(new Blob([bytes], { type: mediaType || bytes.type })));
    made.catch(() => blobs.delete(digest));
    blobs.set(digest, made);
  }
  return blobs.get(digest);
}

// Tells of changes by the stream, by polling while there is none, and not at all while hidden.
// `onChange` gets {"run", "what"}; `onState` gets "live", "polling", "paused" or an ApiError.
export class News {
  constructor(onChange, onState) {
    this.onChange = onChange;
    this.onState = onState;
    this.runs = [];
    this.cursor = "";
    this.failures = 0;
    this.lostAt = 0;
    document.addEventListener("visibilitychange", () => this.restart());
  }

  watch(runs) {
    if (this.running && runs.join() === this.runs.join()) return;
    this.runs = runs;
    this.restart();
  }

  restart() {
    this.stop();
    if (document.hidden) {
      this.onState("paused");
      return;
    }
    this.running = new AbortController();
    this.run(this.running.signal);
  }

  stop() {
    this.running?.abort();
    this.running = null;
    clearTimeout(this.timer);
  }

  async run(signal) {
    const query = () => ({ watch: this.runs.join(), cursor: this.cursor });
    try {
      const answer = await ask("stream", { query: query(), signal });
      this.well("live");
      for await (const change of events(answer.body)) this.take(change);
    } catch (error) {
      if (signal.aborted) return;
      this.ill(error);
    }
    if (signal.aborted) return;
    const wait_s = RETRY_S[Math.min(this.failures++, RETRY_S.length - 1)];
    this.timer = setTimeout(() => this.poll(query(), signal), wait_s * 1000);
  }

  async poll(query, signal) {
    try {
      const said = await get("changes", query, signal);
      this.well("polling");
      if (said) (said.changes || [said]).forEach((change) => this.take(change));
      if (said?.cursor) this.cursor = said.cursor;
    } catch (error) {
      if (signal.aborted) return;
      this.ill(error);
    }
    if (!signal.aborted) this.run(signal);
  }

  take(change) {
    if (change.cursor) this.cursor = change.cursor;
    if (change.what) this.onChange(change);
  }

  well(how) {
    if (how === "live") this.failures = 0;
    this.lostAt = 0;
    this.onState(how);
  }

  ill(error) {
    this.lostAt ||= Date.now();
    this.onState(error, this.lostAt);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield JSON.parse(data.map((line) => line.slice(5)).join("\n"));
    }
  }
}
