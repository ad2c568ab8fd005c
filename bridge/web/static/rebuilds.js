// Starts and stops rebuilds and audits; how they go is in a live part of the page.

import { byId, say } from "./dom.js";
import { refresh } from "./live.js";
import { call, withParameters } from "./rest.js";

export function takeRebuildOrders(rest) {
  const says = byId("rebuilds-says");

  async function order(button, method, path) {
    button.disabled = true;
    say(says, null);
    try {
      await call(method, path);
      await refresh();
    } catch (error) {
      say(says, error.message);
    } finally {
      button.disabled = false;
    }
  }

  for (const what of ["rebuild", "audit"]) {
    byId(what).addEventListener("click", (event) => {
      order(event.currentTarget, "PUT", withParameters(`${rest}/${what}`, { engine: byId("engine").value }));
    });
  }
  // The button comes and goes with the part it is in.
  byId("live-rebuilds").addEventListener("click", (event) => {
    const button = event.target.closest("#rebuild-stop");
    if (button) order(button, "DELETE", `${rest}/rebuild`);
  });
}
