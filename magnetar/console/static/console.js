// What the pages do beyond links and forms: keys, the theme, charts, and a notice when live pages
// lose the cluster. Pages work without it, and it reads no text as a program.
(() => {
  "use strict";
  const notice = document.getElementById("notice");
  const main = document.getElementById("main");

  // --- the theme: a cookie, so that the server draws the page right at once
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (isDark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    document.cookie = `magnetar-theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
    drawCharts();
  });

  // --- where one is: on a phone the sections do not all fit
  document.querySelector(".rooms [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // --- the switch of clusters closes like a menu
  const clusters = document.querySelector(".clusters");
  clusters?.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    clusters.open = false;
    clusters.querySelector("summary").focus();
  });
  document.addEventListener("click", (event) => {
    if (clusters?.open && !clusters.contains(event.target)) clusters.open = false;
  });

  // --- live pages
  const say = (text) => {
    // A page that is itself about the failure says enough.
    notice.hidden = !text || main.querySelector(".failure") !== null;
    notice.textContent = text;
  };
  const time = () => new Date().toLocaleTimeString("en-GB");
  main.addEventListener("lost", (event) => {
    const { reason, is_away } = JSON.parse(event.detail.data);
    const what = is_away ? "The cluster has not answered" : "This page has not changed";
    say(`${what} since ${time()}: ${reason.replace(/\.?$/, ".")} You see what was there before.`);
  });
  main.addEventListener("back", () => say(""));
  document.addEventListener("htmx:sse:error", (event) => {
    // The session has ended: the page itself leads to the login, and from there back.
    if (event.detail.status === 401) location.reload();
    else say(`The console has not answered since ${time()}. You see what was there before.`);
  });
  document.addEventListener("htmx:sse:after:connection", () => say(""));
  document.addEventListener("htmx:sse:after:message", () => drawCharts());

  // --- charts
  const charts = new Map();
  // A canvas takes colours that are computed: a probe's own colour is.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const color = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const pale = (rgb) => rgb.replace(/^rgb\((.*)\)$/, "rgba($1, 0.13)");
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
  function drawCharts() {
    for (const [element, chart] of charts) {
      if (!element.isConnected) {
        chart.destroy();
        charts.delete(element);
      }
    }
    for (const element of document.querySelectorAll("[data-chart]")) drawChart(element);
  }
  function drawChart(element) {
    const { times, series } = JSON.parse(element.dataset.chart);
    const key = root.dataset.theme + element.dataset.chart.length + element.clientWidth;
    const data = [times, ...series.map((each) => each.values)];
    const known = charts.get(element);
    if (known && known.drawnFor === key.toString() && known.root.isConnected) {
      known.setData(data);
      return;
    }
    if (known) known.destroy();
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    const chart = new uPlot(
      {
        width: Math.max(element.clientWidth, 200),
        height: 200,
        legend: { live: true, markers: { dash: (_, index) => (index > 1 ? "dashed" : "solid") } },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 5)] } },
        axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 70, values: (_, ticks) => ticks.map((each) => each.toLocaleString("en").replaceAll(",", " ")) }],
        series: [
          { value: (_, value) => (value === null ? "-" : clock(value)) },
          ...series.map((each, index) => ({
            // Lines are told apart without their colours too.
            dash: index ? [6, 4] : undefined,
            label: each.label,
            stroke: color(each.color),
            fill: pale(color(each.color)),
            width: 2,
            points: { show: times.length < 3 },
          })),
        ],
      },
      data,
      element,
    );
    chart.drawnFor = key.toString();
    charts.set(element, chart);
  }
  window.addEventListener("resize", drawCharts);
  drawCharts();

  // --- keys
  const dialog = document.getElementById("keys");
  document.getElementById("keys-open").addEventListener("click", () => dialog.showModal());
  let isGoing = false;
  const rows = () => [...document.querySelectorAll("table.rows tbody tr")].filter((row) => row.querySelector("a"));
  function move(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    next.querySelector("a").focus();
  }
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, textarea, select, [contenteditable]");
    if (isTyping && event.key === "Escape") event.target.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (isGoing) {
      isGoing = false;
      const found = [...document.querySelectorAll("nav [data-key]")].find((each) => each.dataset.key === event.key);
      if (found) found.click();
      return;
    }
    const acts = {
      g: () => {
        isGoing = true;
        setTimeout(() => (isGoing = false), 1500);
      },
      "/": () => document.querySelector("main input[type=search]")?.focus(),
      j: () => move(1),
      k: () => move(-1),
      u: () => document.querySelector("main [data-key=u]")?.click(),
      "?": () => dialog.showModal(),
    };
    if (event.key in acts) {
      event.preventDefault();
      acts[event.key]();
    }
  });

  // --- forms that are sent when a box is ticked; the keys that choose in a list pass over others
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-submits]")) event.target.form.requestSubmit();
  });
})();
