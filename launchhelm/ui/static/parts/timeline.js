// <lh-timeline>: all commands of the range in lanes, so that no label covers another; many become
// counts. markers: [{x, mark, text, label, tone, id}]; range: {from, to}; tells of "choose".

const LABEL_PX = 150;
const LANES = 4;
const MOST = 12;

const TONES = { "▲": "good", "?": "unknown", "✕": "bad", "◆": "waiting" };

// Commands as markers: each at the step where all ranks acted, or shall; with the time, if known.
export function markersOf(commands) {
  return commands.flatMap((one) => {
    const x = one.applied_step ?? one.first_step;
    if (x === null || x === undefined) return [];
    const mark = one.mark || "◆";
    const at = one.states?.at(-1)?.at ?? null;
    return [{ x, at, mark, id: one.id, name: one.name, text: one.text, tone: TONES[mark] ?? "waiting", label: `${one.name} ${inputText(one.input)}`.trim() }];
  });
}

export const inputText = (input) => Object.entries(input ?? {}).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ");

class Timeline extends HTMLElement {
  connectedCallback() {
    this.resized ??= new ResizeObserver(() => this.show());
    this.resized.observe(this);
  }

  disconnectedCallback() {
    this.resized.disconnect();
  }

  set given(given) {
    this.now = given;
    if (this.isConnected) this.show();
  }

  show() {
    const { markers, from, to } = this.now ?? {};
    const width = this.clientWidth;
    if (!markers || !width || !(to > from)) return this.replaceChildren();
    const place = (x) => ((x - from) / (to - from)) * width;
    const inside = markers.filter((one) => one.x >= from && one.x <= to).sort((a, b) => a.x - b.x);
    const groups = inside.length > MOST ? counted(inside, place) : inside.map((one) => [one]);
    const ends = [];
    const nodes = groups.map((group) => {
      const left = Math.min(place(group[0].x), Math.max(0, width - LABEL_PX));
      let lane = ends.findIndex((end) => end <= left);
      if (lane < 0) lane = ends.length < LANES ? ends.length : LANES - 1;
      ends[lane] = left + LABEL_PX;
      return this.button(group, left, lane);
    });
    const focused = [...this.children].indexOf(document.activeElement);
    this.replaceChildren(...nodes);
    this.style.height = `${Math.max(1, ends.length) * 26 + 2}px`;
    this.children[focused]?.focus();
  }

  button(group, left, lane) {
    const [first] = group;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "marker";
    button.dataset.tone = first.tone;
    button.dataset.command = first.id;
    button.textContent = group.length > 1 ? `${group.length} commands` : `${first.mark} ${first.label}`;
    button.title = group.map((one) => `${one.label}: ${one.text}`).join("\n");
    button.setAttribute("aria-label", group.map((one) => `${one.mark} ${one.label}: ${one.text}`).join("; "));
    button.style.left = `${left}px`;
    button.style.top = `${lane * 26}px`;
    button.addEventListener("click", () => this.dispatchEvent(new CustomEvent("choose", { detail: first.id })));
    return button;
  }
}

function counted(markers, place) {
  const groups = [];
  for (const one of markers) {
    const last = groups[groups.length - 1];
    if (last && place(one.x) - place(last[0].x) < LABEL_PX) last.push(one);
    else groups.push([one]);
  }
  return groups;
}

// `[` and `]`: the focus goes from marker to marker, which reads its outcome aloud.
export function step(by) {
  const all = [...document.querySelectorAll("lh-timeline button")];
  const at = all.indexOf(document.activeElement);
  all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

customElements.define("lh-timeline", Timeline);
