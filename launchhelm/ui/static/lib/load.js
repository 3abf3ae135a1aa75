// What a page has asked for: `state.page[name]` is {value, error, loading}.

import { ApiError } from "./api.js";
import { state, update } from "./state.js";

// Asks and keeps the answer; while one call is under way, further ones become one more after it.
export async function load(name, ask) {
  const page = state.page;
  const slot = (page[name] ||= { value: null, error: null, loading: false, again: false });
  if (slot.loading) {
    slot.again = true;
    slot.ask = ask;
    return;
  }
  slot.loading = true;
  slot.ask = ask;
  update();
  do {
    slot.again = false;
    try {
      slot.value = await slot.ask();
      slot.error = null;
    } catch (error) {
      if (!(error instanceof ApiError)) console.error(error);
      slot.error = error;
    }
  } while (slot.again && state.page === page);
  slot.loading = false;
  if (state.page === page) update();
}

export const loaded = (name) => state.page[name] ?? { value: null, error: null, loading: true };
