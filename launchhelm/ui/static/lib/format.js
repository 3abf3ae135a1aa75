// Numbers, times and names as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const NOT_FINITE = { NaN: "NaN", Infinity: "+∞", "-Infinity": "-∞" };

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

// A metric's value with 4 significant digits; the full one belongs into a title.
export function number(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "string" && NOT_FINITE[value]) return NOT_FINITE[value];
  const given = Number(value);
  if (Number.isNaN(given)) return typeof value === "string" ? visible(value) : "NaN";
  if (!Number.isFinite(given)) return given > 0 ? "+∞" : "-∞";
  if (given === 0) return "0";
  const size = Math.abs(given);
  if (size >= 1e6 || size < 1e-3) return given.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(given)) return whole.format(given);
  return String(Number(given.toPrecision(4)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 90) return `${s < 10 ? Number(s.toFixed(1)) : Math.round(s)} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 && hours < 10 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  let left = size;
  while (left >= 1000 && at < units.length - 1) {
    left /= 1000;
    at += 1;
  }
  return `${at && left < 10 ? left.toFixed(1) : Math.round(left)} ${units[at]}`;
}

// Takes RFC 3339 text or seconds since 1970.
export function date(when) {
  if (when === null || when === undefined || when === "") return null;
  const made = new Date(typeof when === "number" ? when * 1000 : when);
  return Number.isNaN(made.getTime()) ? null : made;
}

export function time(when) {
  const at = date(when);
  if (!at) return "–";
  const clock = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString()
    ? clock
    : `${at.toLocaleDateString("en-CA")} ${clock.slice(0, 5)}`;
}

export const fullTime = (when) => date(when)?.toString() ?? "";

export function ago(when) {
  const at = date(when);
  return at ? `${duration((Date.now() - at.getTime()) / 1000)} ago` : "–";
}

// Control characters and marks that turn the direction of text are shown, not obeyed.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text) {
  return String(text ?? "").replace(
    HIDDEN,
    (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

export function middle(text, length = 40) {
  const shown = [...visible(text)];
  if (shown.length <= length) return shown.join("");
  const head = Math.ceil((length - 1) / 2);
  return `${shown.slice(0, head).join("")}…${shown.slice(head + 1 - length).join("")}`;
}

export function plural(amount, one, many = `${one}s`) {
  return `${count(amount)} ${amount === 1 ? one : many}`;
}

// Eight block characters for eight values of any scale.
export function blocks(values) {
  const finite = values.filter((value) => Number.isFinite(value));
  if (!finite.length) return "";
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low;
  return values
    .map((value) =>
      Number.isFinite(value) ? "▁▂▃▄▅▆▇█"[span ? Math.round(((value - low) / span) * 7) : 3] : " ",
    )
    .join("");
}

export function text(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return number(value);
  if (typeof value === "string") return visible(value);
  return visible(JSON.stringify(value));
}
