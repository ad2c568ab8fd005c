// Partition sizes over due time: stacked bars, memory and disk. The server adds partitions up into at most BARS bars
// for the range one looks at; zooming asks again.

import { byId, element } from "./dom.js";
import { count, instant, plural, size, duration } from "./format.js";
import { call, withParameters } from "./rest.js";

const BARS = 300;
const EVERY_MS = 3_000;
const SETTLE_MS = 150;
const SMALLEST_MS = 1_000;

let loading = null;

// Plotly's script is large: it is fetched when a chart is wanted, and the page is usable meanwhile.
function plotly(address) {
  loading ??= new Promise((resolve, reject) => {
    const script = element("script", { src: address });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      loading = null;
      reject(new Error("The script that draws charts could not be loaded; the table below has the numbers."));
    });
    document.head.append(script);
  });
  return loading;
}

// Colours as the style sheet has them now; Plotly takes no variables.
function colours() {
  const probe = element("span", { hidden: true });
  document.body.append(probe);
  const found = {};
  for (const name of ["memory", "disk", "mark", "ink", "faint", "line", "surface"]) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

class PartitionChart {
  constructor(rest, script) {
    this.rest = rest;
    this.script = script;
    this.box = byId("chart");
    this.range = { all: true }; // or {span: ms from now}, or {from, to}
    this.shown = null;
    this.asking = null;
    this.isDrawn = false;
  }

  start() {
    byId("chart-subscription").addEventListener("change", () => this.load());
    for (const each of document.getElementsByName("unit")) each.addEventListener("change", () => this.draw());
    for (const each of document.querySelectorAll("[data-range]")) {
      each.addEventListener("click", () => this.look(each.dataset.range ? { span: Number(each.dataset.range) } : { all: true }));
    }
    for (const each of document.querySelectorAll("[data-zoom]")) {
      each.addEventListener("click", () => this.zoom(Number(each.dataset.zoom)));
    }
    for (const each of document.querySelectorAll("[data-shift]")) {
      each.addEventListener("click", () => this.shift(Number(each.dataset.shift)));
    }
    byId("chart-details").addEventListener("toggle", () => this.table());
    document.addEventListener("themechange", () => this.draw());
    const poll = async () => {
      if (!document.hidden && !this.box._dragging) await this.load();
      setTimeout(poll, EVERY_MS);
    };
    poll();
  }

  // -- what one looks at

  wanted() {
    if (this.range.all) return {};
    if (this.range.span) return { from: Date.now(), to: Date.now() + this.range.span };
    return { from: Math.round(this.range.from), to: Math.round(this.range.to) };
  }

  look(range) {
    this.range = range;
    return this.load();
  }

  zoom(factor) {
    if (!this.shown) return;
    const { from, to } = this.shown;
    const middle = (from + to) / 2;
    const half = Math.max(((to - from) * factor) / 2, SMALLEST_MS);
    this.look({ from: Math.max(middle - half, 0), to: middle + half });
  }

  shift(share) {
    if (!this.shown) return;
    const { from, to } = this.shown;
    const by = Math.max((to - from) * share, -from);
    this.look({ from: from + by, to: to + by });
  }

  get subscription() {
    return byId("chart-subscription").value;
  }

  get unit() {
    return document.querySelector("input[name=unit]:checked").value;
  }

  // -- loading

  async load() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const parameters = { ...this.wanted(), bars: BARS, subscription: this.subscription };
    try {
      const found = await call("GET", withParameters(`${this.rest}/partitions/chart`, parameters), { signal: asking.signal });
      const wanted = this.wanted();
      this.shown = { ...found, from: wanted.from ?? found.from, to: wanted.to ?? found.to };
      await this.draw();
    } catch (error) {
      if (error.name !== "AbortError") byId("chart-says").textContent = error.message;
    }
  }

  // -- drawing

  async draw() {
    if (!this.shown) return;
    const bars = this.shown.bars.filter((each) => each.entries);
    this.describe(bars);
    this.table();
    // A range without bars keeps its axis, so that one can go on; a topic without any has nothing to draw.
    this.box.hidden = !bars.length && Boolean(this.range.all);
    if (this.box.hidden) return;
    const Plotly = await plotly(this.script);
    await Plotly.react(this.box, this.traces(bars), this.layout(colours()), {
      displayModeBar: false,
      displaylogo: false,
      responsive: true,
      scrollZoom: false,
      doubleClick: false,
    });
    if (!this.isDrawn) {
      this.isDrawn = true;
      this.box.on("plotly_relayout", (change) => this.onRelayout(change));
      this.box.on("plotly_doubleclick", () => this.look({ all: true }));
    }
  }

  traces(bars) {
    const colour = colours();
    const isBytes = this.unit === "bytes";
    const field = (tier) => `${tier}${isBytes ? "Bytes" : "Entries"}`;
    const text = isBytes ? size : count;
    const width = this.shown.barMs;
    const tier = (name, label) => ({
      type: "bar",
      name: label,
      x: bars.map((each) => each.start),
      y: bars.map((each) => each[field(name)]),
      customdata: bars.map((each) => text(each[field(name)])),
      hovertemplate: "%{customdata}",
      width,
      offset: 0,
      marker: { color: colour[name], line: { width: 0 } },
    });
    const traces = [tier("memory", "Memory"), tier("disk", "Disk")];
    if (this.subscription && !isBytes) traces.push(this.pendingTrace(bars, colour.mark));
    return traces;
  }

  pendingTrace(bars, colour) {
    const { barMs } = this.shown;
    const points = bars.flatMap((each, index) => {
      const follows = index > 0 && bars[index - 1].start + barMs === each.start;
      const point = { x: each.start + barMs / 2, y: each.pending };
      return follows ? [point] : [{ x: each.start, y: null }, point]; // the line ends where bars are missing
    });
    return {
      type: "scatter",
      mode: "lines+markers",
      name: `Pending for ${this.subscription}`,
      x: points.map((each) => each.x),
      y: points.map((each) => each.y),
      customdata: points.map((each) => count(each.y)),
      hovertemplate: "%{customdata}",
      line: { color: colour, width: 2, shape: "hvh" },
      marker: { color: colour, size: bars.length > 60 ? 3 : 6 },
    };
  }

  layout(colour) {
    const isNarrow = this.box.clientWidth < 520;
    const { from, to } = this.shown;
    const axis = { color: colour.faint, gridcolor: colour.line, zerolinecolor: colour.line, linecolor: colour.line };
    return {
      barmode: "stack",
      bargap: 0,
      height: isNarrow ? 240 : 320,
      margin: { l: isNarrow ? 44 : 58, r: 8, t: 8, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour.ink },
      showlegend: true,
      legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.02, yanchor: "bottom" },
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour.surface, bordercolor: colour.line, font: { color: colour.ink } },
      // A finger on the chart scrolls the page: there are buttons for the range.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: { ...axis, type: "date", range: [from, to], hoverformat: "%Y-%m-%d %H:%M:%S", nticks: isNarrow ? 4 : 10 },
      yaxis: {
        ...axis,
        fixedrange: true,
        rangemode: "tozero",
        ...(this.unit === "bytes" ? { exponentformat: "SI", ticksuffix: "B" } : { tickformat: ",~s" }),
      },
    };
  }

  onRelayout(change) {
    const from = change["xaxis.range[0]"];
    const to = change["xaxis.range[1]"];
    if (from === undefined || to === undefined) return;
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.look({ from: asEpoch(from), to: asEpoch(to) }), SETTLE_MS);
  }

  // -- in words, for those who do not see it

  describe(bars) {
    const empty = byId("chart-empty");
    const says = byId("chart-says");
    const isEmpty = !bars.length;
    empty.hidden = !isEmpty;
    if (isEmpty) {
      empty.textContent = this.range.all
        ? "The index holds no delayed entry of this topic. Bars appear here as soon as one is published with a due time ahead."
        : "Nothing is due in this range.";
      says.textContent = "";
      return;
    }
    const total = (field) => bars.reduce((sum, each) => sum + each[field], 0);
    const { widthMs, barMs } = this.shown;
    const partitions = Math.max(Math.round(barMs / widthMs), 1);
    const parts = [
      `${plural(total("entries"), "entry", "entries")}, ${size(total("bytes"))}`,
      `${count(total("memoryEntries"))} in time partitions in memory, ${count(total("diskEntries"))} in those on disk`,
      `one bar is ${duration(barMs)}${partitions > 1 ? ` (${count(partitions)} time partitions)` : ", one time partition"}`,
    ];
    if (this.subscription) parts.push(`${count(total("pending"))} pending for ${this.subscription}`);
    if (this.subscription && this.unit === "bytes") parts.push("entries are stored once for all subscriptions, so bytes are the topic's");
    says.textContent = `${parts.join("; ")}.`;
  }

  table() {
    if (!byId("chart-details").open || !this.shown) return;
    const head = ["Due from", "Entries", "Bytes", "In memory", "On disk"];
    const withPending = Boolean(this.subscription);
    if (withPending) head.push("Pending");
    const number = (text) => element("td", { class: "number" }, text);
    const rows = this.shown.bars.filter((each) => each.entries).map((each) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, instant(each.start)),
        number(count(each.entries)),
        number(size(each.bytes)),
        number(count(each.memoryEntries)),
        number(count(each.diskEntries)),
        withPending ? number(count(each.pending)) : null,
      ),
    );
    byId("chart-table").replaceChildren(
      element("thead", {}, element("tr", {}, ...head.map((each, index) => element("th", { scope: "col", class: index ? "number" : null }, each)))),
      element("tbody", {}, ...rows),
    );
  }
}

// Plotly gives a range as it likes: epoch ms, or a date in UTC.
function asEpoch(value) {
  return typeof value === "number" ? value : Date.parse(`${String(value).replace(" ", "T")}Z`);
}

export function showChart(rest, script) {
  new PartitionChart(rest, script).start();
}
