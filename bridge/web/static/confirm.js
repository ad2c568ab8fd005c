// Asks before something is done to selected entries, does it, and tells what came of each.

import { byId, element, say } from "./dom.js";
import { count, plural } from "./format.js";
import { call } from "./rest.js";

const ACTS = {
  cancel: {
    title: (number) => `Cancel delivery of ${plural(number, "entry", "entries")}?`,
    text: (number, subscription) =>
      `${number === 1 ? "It" : "They"} will never reach subscription ${subscription}: the broker is told that ` +
      `${number === 1 ? "it is" : "they are"} acked. This cannot be undone. Other subscriptions still get ${number === 1 ? "it" : "them"}.`,
    go: (number) => `Cancel ${plural(number, "entry", "entries")}`,
  },
  "deliver-now": {
    title: (number) => `Deliver ${plural(number, "entry", "entries")} now?`,
    text: (number, subscription) =>
      `${number === 1 ? "It goes" : "They go"} to the consumers of subscription ${subscription} without waiting for ` +
      `the due time, as soon as they have permits.`,
    go: (number) => `Deliver ${plural(number, "entry", "entries")} now`,
  },
};

const OUTCOMES = {
  cancelled: "cancelled, will not be delivered",
  expedited: "on its way, ahead of its due time",
  "already-dispatched": "already sent to a consumer, nothing changed",
  "already-acked": "already acked, nothing changed",
  unknown: "no delayed entry of this topic, nothing changed",
};
const SHOWN = 4;

export const outcomeText = (outcome) => OUTCOMES[outcome] ?? outcome;

// Resolves with {position: outcome} once the dialog is closed; null when nothing was done.
export function confirmAct(rest, act, subscription, positions) {
  const dialog = byId("confirm");
  const go = byId("confirm-go");
  const close = byId("confirm-close");
  const words = ACTS[act];
  let outcomes = null;

  byId("confirm-title").textContent = words.title(positions.length);
  say(byId("confirm-text"), words.text(positions.length, subscription));
  const more = positions.length - SHOWN;
  const first = positions.slice(0, SHOWN).join(" ");
  say(byId("confirm-positions"), more > 0 ? `${first} and ${count(more)} more` : first);
  byId("confirm-says").textContent = "";
  byId("confirm-outcomes").hidden = true;
  go.textContent = words.go(positions.length);
  go.className = act === "cancel" ? "danger strong" : "primary";
  go.hidden = go.disabled = close.disabled = false;
  close.textContent = "Change nothing";

  const perform = async () => {
    go.disabled = close.disabled = true;
    byId("confirm-says").textContent = "Asking the bridge …";
    const path = `${rest}/subscription/${encodeURIComponent(subscription)}/${act}`;
    try {
      const found = await call("POST", path, { body: { messageIds: positions } });
      outcomes = found.entries;
      showOutcomes(found);
      go.hidden = true;
    } catch (error) {
      byId("confirm-says").textContent = `Nothing is known to have changed: ${error.message}`;
      go.disabled = false;
    }
    close.disabled = false;
    close.textContent = "Close";
    close.focus();
  };

  return new Promise((resolve) => {
    go.addEventListener("click", perform);
    const hold = (event) => { if (close.disabled) event.preventDefault(); };
    dialog.addEventListener("cancel", hold);
    dialog.addEventListener("close", () => {
      go.removeEventListener("click", perform);
      dialog.removeEventListener("cancel", hold);
      resolve(outcomes);
    }, { once: true });
    dialog.showModal();
    close.focus();
  });
}

function showOutcomes({ outcomes, entries }) {
  byId("confirm-says").textContent = Object.entries(outcomes)
    .filter(([, number]) => number > 0)
    .map(([outcome, number]) => `${count(number)} ${outcome}`)
    .join(", ");
  const table = byId("confirm-outcomes");
  say(byId("confirm-text"), null);
  say(byId("confirm-positions"), null);
  byId("confirm-title").textContent = "What came of it";
  table.querySelector("tbody").replaceChildren(
    ...Object.entries(entries).map(([position, outcome]) =>
      element("tr", {}, element("th", { scope: "row", class: "mono" }, position), element("td", {}, outcomeText(outcome))),
    ),
  );
  table.hidden = false;
}
