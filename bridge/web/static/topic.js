// A topic's page.

import { showChart } from "./chart.js";
import { byId, pageData } from "./dom.js";
import { keepLive } from "./live.js";
import { showPending } from "./pending.js";
import { takeRebuildOrders } from "./rebuilds.js";

const EVERY_MS = 3_000;
const BUSY_EVERY_MS = 1_000;

const { rest, plotly } = pageData();
const role = () => byId("live-summary").dataset.role;
const isKnown = () => ["owner", "idle"].includes(role());
const wasKnown = isKnown();

keepLive(() => (byId("live-rebuilds")?.dataset.busy === "yes" ? BUSY_EVERY_MS : EVERY_MS));
// A page of a topic that this bridge does not own has neither chart nor list: when the owner changes, the page does.
document.addEventListener("refreshed", () => { if (isKnown() !== wasKnown) location.reload(); });

// Subscriptions may come and go while one looks on.
let known = null;
let isListed = false;

function takeOverSubscriptions() {
  const told = byId("live-summary").dataset.subscriptions;
  if (told === known) return;
  const names = JSON.parse(told);
  if (known !== null) {
    offer(byId("chart-subscription"), names, 1, (name) => `with pending for ${name}`);
    offer(byId("search").elements.subscription, names, 0, (name) => name);
  }
  known = told;
  byId("pending-box").hidden = !names.length;
  byId("pending-none").hidden = names.length > 0;
  if (names.length && !isListed) {
    isListed = true;
    showPending(rest);
  }
}

// The first `kept` options stay as they are, and what is chosen stays chosen if it is still there.
function offer(select, names, kept, text) {
  const { value } = select;
  while (select.options.length > kept) select.remove(kept);
  for (const name of names) select.add(new Option(text(name), name, false, name === value));
}

if (wasKnown) {
  showChart(rest, plotly);
  takeRebuildOrders(rest);
  document.addEventListener("refreshed", takeOverSubscriptions);
  takeOverSubscriptions();
}
