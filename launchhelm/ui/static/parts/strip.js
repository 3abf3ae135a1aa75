// <lh-strip>: ranks by time, one cell for the worst of what falls into it.
//
// given: {rows, columns, from, to, order (ranks of each row), cells (base64), measure,
// scale: {min, max, silent}, unit}. A byte is 0 where nothing was reported, 1 to 250 from least to
// most, or silent (crossed).

import { count, number } from "../lib/format.js";
import { say } from "../lib/state.js";

const SILENT = 255;
const MOST = 250;

const ranksText = (ranks) => (ranks.length > 1 ? `ranks ${ranks[0]}–${ranks.at(-1)}` : `rank ${ranks[0]}`);

class Strip extends HTMLElement {
  connectedCallback() {
    if (!this.canvas) {
      this.canvas = document.createElement("canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.line = document.createElement("p");
      this.line.className = "readout";
      this.append(this.canvas, this.line);
      this.canvas.addEventListener("keydown", (event) => this.onKey(event));
      this.canvas.addEventListener("mousemove", (event) => this.onMouse(event));
      this.canvas.addEventListener("mouseleave", () => this.leave());
      this.canvas.addEventListener("click", () => this.open());
    }
    this.resized ??= new ResizeObserver(() => this.show());
    this.resized.observe(this);
    this.themed ??= () => this.show();
    addEventListener("theme", this.themed);
  }

  disconnectedCallback() {
    this.resized.disconnect();
    removeEventListener("theme", this.themed);
  }

  set given(given) {
    if (given === this.now) return;
    this.now = given;
    this.cells = given ? Uint8Array.from(atob(given.cells), (letter) => letter.charCodeAt(0)) : null;
    if (this.isConnected) this.show();
  }

  show() {
    const { now, canvas } = this;
    const width = this.clientWidth;
    if (!now || !width) return;
    const scale = devicePixelRatio || 1;
    const height = Math.min(320, Math.max(48, now.rows * Math.max(1, Math.floor(200 / now.rows))));
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    canvas.setAttribute("aria-label", `${now.measure} of ${count(now.rows)} rows of ranks over steps ${count(now.from)} to ${count(now.to)}; the worst cells stand in the table below`);
    const style = getComputedStyle(this);
    const color = (name) => style.getPropertyValue(name).trim();
    const paint = { weak: color("--unknown"), strong: color("--bad") };
    const pen = canvas.getContext("2d");
    pen.fillStyle = color("--panel");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    const lines = Math.min(now.rows, Math.floor(canvas.height));
    const [w, h] = [canvas.width / now.columns, canvas.height / lines];
    for (let line = 0; line < lines; line += 1) {
      for (let column = 0; column < now.columns; column += 1) {
        this.cell(pen, this.worst(line, lines, column), column * w, line * h, w, h, paint);
      }
    }
    if (this.at) this.frame(pen, w, h, lines, color("--text"));
    else this.line.textContent = this.legend();
  }

  // How to read it, while no cell is pointed at.
  legend() {
    const { order, scale, unit, measure } = this.now;
    const rows = order.length > 1 ? `${ranksText(order[0])} at the top, ${ranksText(order.at(-1))} at the bottom` : ranksText(order[0]);
    return `${rows} · strongest colour: ${measure} ${number(scale.max)} ${unit} · crossed: silent · empty: nothing reported`;
  }

  // The worst of all rows that share a line of pixels, so that a single bad one stays visible.
  worst(line, lines, column) {
    const { rows, columns } = this.now;
    const last = Math.max(Math.floor(((line + 1) * rows) / lines), Math.floor((line * rows) / lines) + 1);
    let worst = 0;
    for (let row = Math.floor((line * rows) / lines); row < last; row += 1) {
      worst = Math.max(worst, this.cells[row * columns + column]);
    }
    return worst;
  }

  cell(pen, value, x, y, w, h, paint) {
    if (value === 0) return;
    if (value === SILENT) {
      pen.strokeStyle = paint.strong;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(x, y + h);
      pen.lineTo(x + w, y);
      pen.moveTo(x, y);
      pen.lineTo(x + w, y + h);
      pen.stroke();
      return;
    }
    const part = value / MOST;
    pen.globalAlpha = 0.06 + 0.94 * part;
    pen.fillStyle = part > 0.6 ? paint.strong : paint.weak;
    pen.fillRect(x, y, Math.ceil(w), Math.ceil(h));
    pen.globalAlpha = 1;
  }

  frame(pen, w, h, lines, color) {
    const line = Math.floor((this.at.row * lines) / this.now.rows);
    pen.strokeStyle = color;
    pen.lineWidth = 2;
    pen.strokeRect(this.at.column * w - 1, line * h - 1, w + 2, Math.max(3, h) + 2);
  }

  move(row, column, aloud) {
    const { now } = this;
    const inside = (value, end) => Math.min(end - 1, Math.max(0, value));
    this.at = { row: inside(row, now.rows), column: inside(column, now.columns) };
    this.line.textContent = this.words();
    if (aloud) say(this.line.textContent, true);
    this.show();
  }

  words() {
    const { now, at } = this;
    const value = this.cells[at.row * now.columns + at.column];
    const step = (column) => count(Math.round(now.from + ((now.to - now.from) * column) / now.columns));
    const { min, max } = now.scale;
    const amount = `${now.measure} ${number(min + ((max - min) * value) / MOST)} ${now.unit}`;
    const said = value === 0 ? "nothing reported" : value === SILENT ? "silent" : amount;
    return `${ranksText(now.order[at.row])}, steps ${step(at.column)} to ${step(at.column + 1)}: ${said}`;
  }

  onMouse(event) {
    if (!this.now) return;
    const box = this.canvas.getBoundingClientRect();
    this.move(Math.floor(((event.clientY - box.top) / box.height) * this.now.rows), Math.floor(((event.clientX - box.left) / box.width) * this.now.columns), false);
  }

  leave() {
    this.at = null;
    this.show();
  }

  onKey(event) {
    const { row, column } = this.at ?? { row: 0, column: this.now?.columns ?? 0 };
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") this.open();
    if (!move || !this.now) return;
    event.preventDefault();
    event.stopPropagation();
    this.move(row + move[0], column + move[1], true);
  }

  open() {
    if (!this.at) return;
    this.dispatchEvent(new CustomEvent("choose", { detail: this.now.order[this.at.row][0] }));
  }
}

customElements.define("lh-strip", Strip);
