// <lh-chart>: one chart. It draws what it is given (`data`), with marks for commands, restarts and
// values that are no numbers, and tells of zooming by "zoom" and of being on screen by "seen".
//
// data: {
//   series: [{label, x, y, odd, jumps, color, dash, faint, edge, isBand}],   x ascending, y may hold
//     null; an edge has no line of its own, and between one that isBand and the one before it is filled
//   markers: [{x, mark, text, tone}],  restarts: [{x, text}],
//   axis: "step" | "time" | "wall" | ..., log, from, to, summary,
// }

import { count, number, duration, time } from "../lib/format.js";
import { say } from "../lib/state.js";

const HEIGHT = 190;
const DASHES = { solid: [], dashed: [8, 4], dotted: [2, 3], mixed: [8, 3, 2, 3] };
export const DASH_NAMES = Object.keys(DASHES);
const FONT = "11px system-ui, sans-serif";
const MOST_LABELS = 12;
const NEAR_PX = 8;
const FEW_POINTS = 40; // So few are drawn as points too; a line needs two.

export const axisText = (axis, value) => {
  if (axis === "wall") return time(value);
  if (axis === "time") return value < 0 ? `−${duration(-value)}` : duration(value);
  return axis === "step" ? count(value) : number(value);
};

class Chart extends HTMLElement {
  connectedCallback() {
    this.resized ??= new ResizeObserver(() => this.resize());
    this.resized.observe(this);
    this.viewed ??= new IntersectionObserver((entries) => {
      this.isSeen = entries.at(-1).isIntersecting; // A slow page hears of several at once.
      this.dispatchEvent(new CustomEvent("seen", { detail: this.isSeen }));
      if (this.isSeen) this.show();
    }, { rootMargin: "200px" });
    this.viewed.observe(this);
    this.themed ??= () => this.rebuild();
    addEventListener("theme", this.themed);
    this.scheme ??= matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", this.themed);
    if (!this.readout) this.build();
  }

  disconnectedCallback() {
    this.resized.disconnect();
    this.viewed.disconnect();
    removeEventListener("theme", this.themed);
    this.scheme.removeEventListener("change", this.themed);
    this.plot?.destroy();
    this.plot = null;
  }

  build() {
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    this.readout.setAttribute("aria-hidden", "true");
    this.frame = document.createElement("div");
    this.frame.className = "plot";
    this.frame.tabIndex = 0;
    this.frame.setAttribute("role", "img");
    this.frame.setAttribute("aria-label", "a chart that waits for its points");
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
    this.append(this.frame, this.readout);
  }

  set data(data) {
    if (data === this.given) return;
    this.given = data;
    if (this.isConnected) this.show();
  }

  get data() {
    return this.given;
  }

  colors() {
    const style = getComputedStyle(this);
    const get = (name) => style.getPropertyValue(name).trim();
    return {
      text: get("--quiet"),
      grid: get("--grid"),
      bad: get("--bad"),
      unknown: get("--unknown"),
      good: get("--good"),
      waiting: get("--quiet"),
      series: (index) => get(`--series-${index % 8}`),
    };
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    this.show();
  }

  show() {
    const data = this.given;
    if (!data || !this.frame) return;
    this.frame.setAttribute("aria-label", data.summary || "no points");
    if (!this.isSeen && this.plot) return;
    const shape = JSON.stringify([data.series.map((one) => [one.label, one.color, one.dash, one.faint, one.edge]), data.axis, data.log, Boolean(data.restarts?.length)]);
    const columns = joined(data.series, data.log);
    if (!this.plot || shape !== this.shape) {
      this.plot?.destroy();
      this.shape = shape;
      this.palette = this.colors();
      this.plot = new uPlot(this.options(data), columns, this.frame);
    } else {
      this.plot.setData(columns, false);
    }
    this.plot.setScale("x", this.range(columns[0]));
    this.read();
  }

  // An open end of the range follows the data.
  range(xs) {
    const { from, to } = this.given;
    const odds = this.given.series.flatMap((one) => (one.odd ?? []).map(({ x }) => x));
    const low = from ?? bound([...xs.slice(0, 1), ...odds], Math.min) ?? 0;
    const high = to ?? bound([...xs.slice(-1), ...odds], Math.max) ?? 1;
    return low < high ? { min: low, max: high } : { min: low - 0.5, max: low + 0.5 };
  }

  options(data) {
    const { palette } = this;
    const scale = devicePixelRatio || 1;
    const axis = { stroke: palette.text, font: FONT, grid: { stroke: palette.grid, width: 1 / scale }, ticks: { show: false } };
    return {
      width: Math.max(160, this.frame.clientWidth),
      height: this.height,
      padding: [data.restarts?.length ? 28 : 14, 10, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, auto: false }, y: { distr: data.log ? 3 : 1, range: data.log ? undefined : padded } },
      cursor: {
        sync: { key: "launchhelm" },
        drag: { x: true, y: false, setScale: false },
        points: { size: 6 },
        bind: { dblclick: () => () => this.zoom(null) },
      },
      axes: [
        { ...axis, size: 26, gap: 4, space: 70, values: (plot, ticks) => ticks.map((tick) => axisText(data.axis, tick)) },
        { ...axis, size: 58, gap: 4, space: 30, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      ],
      series: [{}, ...data.series.map((one) => ({
        label: one.label,
        stroke: palette.series(one.color ?? 0),
        width: one.edge ? 0 : one.faint ? 1 : 1.75,
        alpha: one.faint ? 0.55 : 1,
        dash: DASHES[one.dash] ?? [],
        points: {
          show: (plot, at) => !one.faint && !one.edge && this.given.series[at - 1].x.length < FEW_POINTS,
          filter: (plot, at, isShown) => (isShown || one.edge ? null : alone(plot.data[at])),
          size: 4,
        },
      }))],
      bands: data.series.flatMap((one, at) => (one.isBand ? [{ series: [at, at + 1], fill: `${palette.series(one.color ?? 0)}33` }] : [])),
      hooks: {
        draw: [(plot) => this.marks(plot)],
        setCursor: [() => this.read()],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          const from = plot.posToVal(left, "x");
          const to = plot.posToVal(left + width, "x");
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          this.zoom({ from, to });
        }],
      },
    };
  }

  get height() {
    return this.classList.contains("full") ? Math.max(260, innerHeight - 160) : HEIGHT;
  }

  resize() {
    const width = this.frame.clientWidth;
    if (this.plot && width > 0 && (width !== this.plot.width || this.height !== this.plot.height)) {
      this.plot.setSize({ width, height: this.height });
    }
  }

  // Lines for commands and restarts, and a mark at the top edge wherever a value is no number.
  marks(plot) {
    const { ctx, bbox } = plot;
    const { markers = [], restarts = [], series } = this.given;
    const scale = devicePixelRatio || 1;
    const inside = (x) => x >= plot.scales.x.min && x <= plot.scales.x.max;
    ctx.save();
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    const line = (x, color, dash) => {
      const at = Math.round(plot.valToPos(x, "x", true)) + 0.5;
      ctx.strokeStyle = color;
      ctx.lineWidth = scale;
      ctx.setLineDash(dash.map((part) => part * scale));
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      return at;
    };
    this.named(plot, restarts.filter((one) => inside(one.x)), line);
    const shown = markers.filter((one) => inside(one.x));
    for (const { x, mark, tone } of shown) {
      const color = this.palette[tone] || this.palette.text;
      const at = line(x, color, mark === "◆" ? [2, 4] : [6, 3]);
      ctx.fillStyle = color;
      if (shown.length <= MOST_LABELS) ctx.fillText(mark, at, bbox.top + bbox.height - 4 * scale);
    }
    ctx.strokeStyle = this.palette.unknown;
    ctx.setLineDash([]);
    for (const jump of series.flatMap((one) => one.jumps ?? []).filter((one) => inside(one.x))) {
      ctx.beginPath();
      ctx.arc(plot.valToPos(jump.x, "x", true), plot.valToPos(jump.new, "y", true), 4 * scale, 0, 2 * Math.PI);
      ctx.lineWidth = 1.5 * scale;
      ctx.stroke();
    }
    ctx.fillStyle = this.palette.bad;
    for (const [left, odd] of this.oddGroups(plot, series, inside)) {
      const at = Math.round(plot.valToPos(left, "x", true));
      ctx.fillRect(at - scale, bbox.top, 2 * scale, 9 * scale);
      ctx.fillText(oddText(odd), Math.max(at, bbox.left + 20 * scale), bbox.top - 3 * scale);
    }
    ctx.restore();
  }

  // Restarts: a dotted line each, with its words above the frame unless they would cover newer ones.
  named(plot, restarts, line) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio || 1;
    let end = bbox.left + bbox.width;
    ctx.textAlign = "left";
    for (const { x, text } of [...restarts].sort((a, b) => b.x - a.x)) {
      const at = line(x, this.palette.text, [1, 3]);
      const left = Math.min(at, end - ctx.measureText(text).width);
      ctx.fillStyle = this.palette.text;
      if (left >= bbox.left && at - left < bbox.width / 2) ctx.fillText(text, left, bbox.top - 15 * scale);
      end = Math.min(end, left - 8 * scale);
    }
    ctx.textAlign = "center";
  }

  // Odd points whose labels would cover each other are counted together.
  oddGroups(plot, series, inside) {
    const groups = [];
    const odds = series.flatMap((one) => one.odd ?? []).filter((odd) => inside(odd.x));
    for (const odd of odds.sort((a, b) => a.x - b.x)) {
      const last = groups[groups.length - 1];
      const near = last && plot.valToPos(odd.x, "x") - plot.valToPos(last[0], "x") < 64;
      const into = near ? last[1] : { nan: 0, inf: 0, ninf: 0 };
      into.nan += odd.nan ?? 0;
      into.inf += odd.inf ?? odd.posinf ?? 0;
      into.ninf += odd.ninf ?? odd.neginf ?? 0;
      if (!near) groups.push([odd.x, into]);
    }
    return groups;
  }

  read() {
    const { plot, given } = this;
    if (!plot) return;
    const at = plot.cursor.idx;
    const x = plot.data[0][at] ?? null; // After a zoom the pointer may stand where no point is.
    const texts = given.series.flatMap((one, index) => {
      if (one.faint || one.edge) return [];
      const value = nearest(plot.data[index + 1], at);
      return value === null ? [] : [`${given.series.length > 1 ? `${one.label} ` : ""}${number(value)}`];
    });
    const jump = x !== null && given.series.flatMap((one) => one.jumps ?? []).find((one) => Math.abs(plot.valToPos(one.x, "x") - plot.valToPos(x, "x")) < NEAR_PX);
    const why = jump ? ` · jumped from ${number(jump.old)} to ${number(jump.new)}, no command or restart there` : "";
    this.readout.textContent = x === null || !texts.length ? "" : `${given.axis} ${axisText(given.axis, x)}: ${texts.slice(0, 6).join(" · ")}${why}`;
  }

  onKey(event) {
    const { plot } = this;
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { min, max } = plot.scales.x;
    const xs = plot.data[0];
    const at = plot.cursor.idx ?? xs.length - 1;
    const middle = xs[at] >= min && xs[at] <= max ? xs[at] : (min + max) / 2;
    const zoomed = (factor) => this.zoom({ from: middle - (middle - min) * factor, to: middle + (max - middle) * factor });
    const move = (by) => {
      const next = Math.min(xs.length - 1, Math.max(0, at + by));
      plot.setCursor({ left: plot.valToPos(xs[next], "x"), top: plot.bbox.height / 4 });
      say(this.readout.textContent, true);
    };
    const does = {
      ArrowLeft: () => move(event.shiftKey ? -10 : -1),
      ArrowRight: () => move(event.shiftKey ? 10 : 1),
      "+": () => zoomed(0.5),
      "-": () => zoomed(2),
      0: () => this.zoom(null),
      f: () => this.dispatchEvent(new CustomEvent("full")),
      t: () => this.dispatchEvent(new CustomEvent("astable")),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    event.stopPropagation();
    does();
  }

  zoom(range) {
    this.dispatchEvent(new CustomEvent("zoom", { detail: range }));
  }
}

// The least or the greatest of several numbers, as `pick` is; undefined of none.
function bound(values, pick) {
  return values.length ? values.reduce((a, b) => pick(a, b)) : undefined;
}

// Points between two gaps: no line leads to them.
function alone(ys) {
  const at = [];
  ys.forEach((value, index) => value !== undefined && at.push(index));
  const gap = (place) => place < 0 || place >= at.length || ys[at[place]] === null;
  return at.filter((index, place) => ys[index] !== null && gap(place - 1) && gap(place + 1));
}

// One column of x for all series; where a series has no point, its line goes on.
function joined(series, log) {
  const tables = series.map(({ x, y }) => [x, y.map((value) => (Number.isFinite(value) && !(log && value <= 0) ? value : null))]);
  return tables.length ? uPlot.join(tables) : [[], []];
}

function padded(plot, min, max) {
  if (min === null || min === undefined) return [0, 1];
  const room = (max - min) * 0.08 || Math.abs(max) * 0.1 || 1;
  return [min - room, max + room];
}

function nearest(ys, at) {
  if (at === null || at === undefined) return null;
  for (let back = at; back >= 0 && back > at - 200; back -= 1) {
    if (ys[back] !== undefined && ys[back] !== null) return ys[back];
  }
  return null;
}

function oddText({ nan, inf, ninf }) {
  const one = (word, amount) => (amount ? [`${word}${amount > 1 ? `×${amount}` : ""}`] : []);
  return [...one("NaN", nan), ...one("+∞", inf), ...one("-∞", ninf)].join(" ");
}

// What a chart shows, in words: last, least, greatest, trend, values that are no numbers.
export function summaryOf(name, { x, y, odd = [] }, axis) {
  const known = y.map((value, at) => [x[at], value]).filter(([, value]) => Number.isFinite(value));
  const strange = odd.reduce((sum, one) => sum + (one.nan ?? 0) + (one.inf ?? 0) + (one.ninf ?? 0), 0);
  const notNumbers = strange ? `; ${strange} ${strange === 1 ? "value is" : "values are"} NaN or infinite, first at ${axis} ${axisText(axis, odd[0].x)}` : "";
  if (!known.length) return `${name}: no finite values${notNumbers}`;
  const by = (compare) => known.reduce((best, one) => (compare(one[1], best[1]) ? one : best));
  const least = by((a, b) => a < b);
  const most = by((a, b) => a > b);
  const [lastX, last] = known[known.length - 1];
  const change = last - known[0][1];
  const trend = Math.abs(change) < 0.02 * (most[1] - least[1] || 1) ? "flat" : change < 0 ? "falling" : "rising";
  const at = ([where, value]) => `${number(value)} at ${axisText(axis, where)}`;
  return `${name}: last ${number(last)} at ${axis} ${axisText(axis, lastX)}, lowest ${at(least)}, highest ${at(most)}, ${trend}${notNumbers}`;
}

customElements.define("lh-chart", Chart);
