// Keeps the parts of a page that carry `data-live` up to date: the page itself is fetched again, and what changed in
// those parts is taken over. So there is one place that knows how they look: the server's templates.

import { byId, trouble } from "./dom.js";

const known = new Map();
let under_way = null;

function regions(root) {
  return [...root.querySelectorAll("[data-live]")];
}

function isSelectedIn(region) {
  const selection = getSelection();
  return !selection.isCollapsed && region.contains(selection.anchorNode);
}

function replace(region, fresh) {
  const focused = region.contains(document.activeElement) ? document.activeElement.id : null;
  const open = new Map([...region.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const scrolled = [...region.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  for (const { name, value } of fresh.attributes) region.setAttribute(name, value);
  region.replaceChildren(...fresh.childNodes);
  for (const each of region.querySelectorAll("details[id]")) {
    if (open.has(each.id)) each.open = open.get(each.id);
  }
  region.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  if (focused) byId(focused)?.focus({ preventScroll: true });
}

async function load() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
  if (answer.type === "opaqueredirect" || answer.status === 401) {
    throw new Error("You are not logged in any more: reload the page to log in.");
  }
  if (answer.status === 404) throw new Error("What this page shows is not there any more.");
  if (!answer.ok) throw new Error(`The bridge answered ${answer.status}.`);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

async function takeOver() {
  const page = await load();
  for (const region of regions(document)) {
    const fresh = page.getElementById(region.id);
    if (!fresh || isSelectedIn(region)) continue;
    const markup = fresh.outerHTML;
    if (markup === known.get(region.id)) continue;
    known.set(region.id, markup);
    replace(region, fresh);
  }
}

// Fetch now; a fetch under way is ended, it may be of what the page showed before.
export async function refresh() {
  const mine = {};
  under_way = mine;
  try {
    await takeOver();
    trouble(null);
    const told = byId("freshness");
    told.textContent = `Updated ${new Date().toISOString().slice(11, 19)}`;
    told.hidden = false;
  } catch (error) {
    if (under_way === mine) {
      const reason = error instanceof TypeError ? "The bridge does not answer." : error.message;
      trouble(`${reason} What you see is as of before; trying again.`);
    }
  }
  document.dispatchEvent(new Event("refreshed"));
}

// `every`: ms to the next time, asked for after each.
export function keepLive(every) {
  for (const region of regions(document)) known.set(region.id, region.outerHTML);
  const next = async () => {
    if (!document.hidden) await refresh();
    setTimeout(next, every());
  };
  setTimeout(next, every());
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
}
