// What a subscription still has to get: search, pages, selection, and what can be done with the selected.

import { confirmAct } from "./confirm.js";
import { byId, element } from "./dom.js";
import { away, count, fromField, instant, plural, size } from "./format.js";
import { refresh } from "./live.js";
import { peek } from "./payload.js";
import { call, withParameters } from "./rest.js";

const FIELDS = ["subscription", "messageId", "key", "property", "dueFrom", "dueTo", "limit"];

const STATES = { expedited: "delivered now", ready: "due, waits for permits", "in-flight": "a consumer has it" };

class PendingList {
  constructor(rest) {
    this.rest = rest;
    this.form = byId("search");
    this.body = byId("pending").querySelector("tbody");
    this.says = byId("pending-says");
    this.cursors = [null]; // where each page so far began; the last one is shown
    this.next = null;
    this.query = null;
    this.asking = null;
  }

  start() {
    this.readAddress();
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.search(); });
    this.form.addEventListener("reset", () => setTimeout(() => this.search()));
    this.form.elements.subscription.addEventListener("change", () => this.search());
    byId("pending-after").addEventListener("click", () => this.turn(+1));
    byId("pending-before").addEventListener("click", () => this.turn(-1));
    byId("pending-stop").addEventListener("click", () => this.asking?.abort());
    byId("select-all").addEventListener("change", (event) => this.selectAll(event.target.checked));
    this.body.addEventListener("change", () => this.showSelection());
    this.body.addEventListener("click", (event) => this.onClick(event));
    byId("cancel").addEventListener("click", () => this.act("cancel"));
    byId("deliver-now").addEventListener("click", () => this.act("deliver-now"));
    this.search();
  }

  // -- the search

  readAddress() {
    const given = new URLSearchParams(location.search);
    for (const name of FIELDS) {
      const field = this.form.elements[name];
      const value = given.get(name);
      if (value === null) continue;
      if (field.tagName !== "SELECT" || [...field.options].some((each) => each.value === value)) field.value = value;
    }
  }

  writeAddress() {
    const address = new URL(location.href);
    for (const name of FIELDS) {
      const { value } = this.form.elements[name];
      if (value) address.searchParams.set(name, value);
      else address.searchParams.delete(name);
    }
    history.replaceState(null, "", address);
  }

  search() {
    if (!this.form.reportValidity()) return;
    const value = (name) => this.form.elements[name].value;
    this.writeAddress();
    this.query = {
      subscription: value("subscription"),
      parameters: {
        messageId: value("messageId").trim(),
        key: value("key"),
        property: value("property"),
        dueFrom: fromField(value("dueFrom")),
        dueTo: fromField(value("dueTo")),
        limit: value("limit"),
      },
    };
    this.cursors = [null];
    this.load();
  }

  turn(pages) {
    if (pages > 0) this.cursors.push(this.next);
    else this.cursors.pop();
    this.load();
  }

  // Loads the page that begins at the last cursor. The bridge looks at a bounded number of entries for each answer,
  // so one may be empty and yet not the last.
  async load() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const { subscription, parameters } = this.query;
    const path = `${this.rest}/subscription/${encodeURIComponent(subscription)}/pending`;
    let cursor = this.cursors.at(-1);
    this.busy(true, "Looking …");
    try {
      for (let answers = 1; ; answers += 1) {
        const found = await call("GET", withParameters(path, { ...parameters, cursor }), { signal: asking.signal });
        cursor = found.cursor;
        if (found.entries.length || !cursor) {
          this.show(found.entries, cursor);
          return;
        }
        this.busy(true, `Still looking, ${plural(answers, "part")} of the index without a match …`);
      }
    } catch (error) {
      if (this.asking !== asking) return; // another search is under way
      this.next = cursor;
      this.showRows([]);
      this.tell(error.name === "AbortError" ? "Stopped before a match was found. “Next” goes on from there." : error.message);
    } finally {
      if (this.asking === asking) this.busy(false);
    }
  }

  busy(isBusy, text) {
    byId("pending-stop").hidden = !isBusy;
    byId("pending").setAttribute("aria-busy", String(isBusy));
    byId("pending-before").disabled = isBusy || this.cursors.length < 2;
    byId("pending-after").disabled = isBusy || !this.next;
    if (text) this.says.textContent = text;
  }

  show(entries, cursor) {
    this.next = cursor;
    this.showRows(entries);
    if (entries.length) this.tell(null);
    else this.tell(this.whyEmpty());
  }

  tell(text) {
    this.says.textContent = text ?? "";
    this.says.hidden = !text;
  }

  whyEmpty() {
    const { limit, ...filters } = this.query.parameters;
    if (this.cursors.length > 1) return "Nothing more.";
    if (Object.values(filters).some((each) => each !== null && each !== "")) {
      return `Nothing that is pending for ${this.query.subscription} matches. What was delivered or cancelled is not found here.`;
    }
    return `Nothing is pending for ${this.query.subscription}: no delayed entry waits for it.`;
  }

  // -- rows

  showRows(entries) {
    this.body.replaceChildren(...entries.map((entry) => row(entry)));
    byId("pending").hidden = !entries.length;
    const page = this.cursors.length;
    byId("pending-page").textContent = entries.length
      ? `Page ${page}: ${plural(entries.length, "entry", "entries")}${this.next ? ", more follow" : ""}`
      : "";
    this.showSelection();
  }

  boxes() {
    return [...this.body.querySelectorAll("input[type=checkbox]:not(:disabled)")];
  }

  selected() {
    return this.boxes().filter((each) => each.checked).map((each) => each.value);
  }

  selectAll(isSelected) {
    for (const each of this.boxes()) each.checked = isSelected;
    this.showSelection();
  }

  showSelection() {
    const all = this.boxes().length;
    const number = this.selected().length;
    const box = byId("select-all");
    box.checked = number > 0 && number === all;
    box.indeterminate = number > 0 && number < all;
    byId("selected").textContent = number ? `${plural(number, "entry", "entries")} selected` : "None selected";
    byId("cancel").disabled = byId("deliver-now").disabled = !number;
    for (const each of this.boxes()) each.closest("tr").classList.toggle("selected", each.checked);
  }

  onClick(event) {
    const button = event.target.closest("button[data-peek]");
    if (button) peek(this.rest, this.query.subscription, button.dataset.peek);
  }

  // -- acts

  async act(name) {
    const outcomes = await confirmAct(this.rest, name, this.query.subscription, this.selected());
    if (!outcomes) return;
    refresh();
    await this.load();
    // What had the focus is disabled by now.
    const table = byId("pending");
    (table.hidden ? this.form.querySelector("button.primary") : byId("select-all")).focus({ preventScroll: true });
  }
}

function row(entry) {
  const { position } = entry;
  const properties = Object.entries(entry.properties ?? {}).map(([name, value]) =>
    element("span", { class: "property" }, `${name}=${value}`),
  );
  const cell = (label, attributes, ...content) => element("td", { "data-label": label, ...attributes }, ...content);
  return element(
    "tr",
    {},
    cell("", { class: "pick" }, element("label", {}, element("input", { type: "checkbox", value: position, "aria-label": `Select ${position}` }))),
    element("th", { scope: "row", class: "mono" }, position),
    cell("Due", {}, element("time", { title: `published ${instant(entry.publishTime)} UTC` }, `${instant(entry.deliverAt)} `), element("small", { class: "faint" }, away(entry.deliverAt))),
    cell("Key", { class: "text" }, entry.key ?? "–"),
    cell("Properties", { class: "text" }, ...(properties.length ? properties : ["–"])),
    cell("Size", { class: "number" }, size(entry.size)),
    cell("Redelivered", { class: "number" }, count(entry.redeliveryCount)),
    cell("Where", {}, element("span", { class: `pill tier-${entry.tier}` }, entry.tier), entry.state && entry.state !== "pending" ? element("small", { class: "state" }, ` ${STATES[entry.state] ?? entry.state}`) : null),
    cell("", { class: "peek" }, element("button", { type: "button", class: "plain", "data-peek": position, "aria-label": `Payload of ${position}` }, "Payload")),
  );
}

export function showPending(rest) {
  new PendingList(rest).start();
}
