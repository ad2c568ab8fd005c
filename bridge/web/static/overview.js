// The overview: live, and filtered while one types.

import { byId } from "./dom.js";
import { keepLive, refresh } from "./live.js";

const EVERY_MS = 4_000;
const TYPING_MS = 250;

keepLive(() => EVERY_MS);

const field = byId("filter");
let pause = null;

function apply() {
  clearTimeout(pause);
  const address = new URL(location.href);
  const wanted = field.value.trim();
  if (wanted) address.searchParams.set("filter", wanted);
  else address.searchParams.delete("filter");
  address.searchParams.delete("offset");
  history.replaceState(null, "", address);
  refresh();
}

field.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(apply, TYPING_MS);
});
byId("filter-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apply();
});
