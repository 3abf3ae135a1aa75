// The one object that the page is drawn from. Whoever changes it calls `update`; the page is drawn
// once per frame, however often it was called.

export const state = {
  route: null, // see address.js
  info: null, // answer of GET info
  connection: "connecting", // "live", "polling", "paused", "lost", "no_token"
  lostAt: 0,
  run: null, // header of the run that is open
  runError: null,
  page: {}, // what the open page keeps, emptied when another opens
  paused: false, // charts: nothing new is drawn
  missed: 0, // changes while paused
  dialog: null, // a template in the one dialog
  say: "", // polite live region
};

let draw = () => {};
let asked = false;

export function onDraw(callback) {
  draw = callback;
}

export function update(patch = {}) {
  Object.assign(state, patch);
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

let spokenAt = 0;
let speaking = 0;

// Says a line to screen readers, at most once in ten seconds unless it is urgent.
export function say(text, urgent = false) {
  const wait = urgent ? 0 : Math.max(0, spokenAt + 10_000 - Date.now());
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    spokenAt = Date.now();
    update({ say: text });
  }, wait);
}

// Settings of this browser: theme, pins, density, single keys.
export const settings = {
  get(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`launchhelm.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`launchhelm.${name}`, JSON.stringify(value));
    } catch {
      // Private windows may keep nothing; the setting then lasts as long as the page.
    }
    update();
  },
};
