/* Charts, and the live tail. Everything of a peer becomes text, never markup. */
(function () {
  "use strict";

  const COLORS = ["--accent", "--second", "--good"];
  const LIVE_ROWS = 200;

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /* In the zone of the page, as 2026-01-31 12:00:00; in UTC, which it then says, if this browser does not know it. */
  function shown(time) {
    const moment = new Date(time * 1000);
    try {
      return moment.toLocaleString("sv-SE", { timeZone: document.documentElement.dataset.zone });
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      return moment.toISOString().slice(0, 19).replace("T", " ") + "Z";
    }
  }

  function clock(plot, times) {
    const isLong = times.length > 1 && times[times.length - 1] - times[0] > 86400;
    return times.map(function (time) {
      const text = shown(time);
      return isLong ? text.slice(5, 16) + text.slice(19) : text.slice(11);
    });
  }

  /* A zone that only the browser knows. */
  function offer(button) {
    button.value = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
    button.textContent = "Use " + button.value + ", the zone of this browser";
    button.hidden = !button.value;
  }

  function draw(place) {
    if (place.firstChild || typeof uPlot === "undefined") return;
    const given = JSON.parse(place.dataset.chart);
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "12px system-ui" };
    const series = given.labels.map(function (label, number) {
      return { label: label, stroke: color(COLORS[number % COLORS.length]), width: 2, points: { show: given.columns[0].length < 20 } };
    });
    const options = {
      width: place.clientWidth, height: 180, series: [{}].concat(series),
      axes: [Object.assign({ values: clock, space: 90 }, axis), Object.assign({ size: 64 }, axis)], legend: { show: given.labels.length > 1, live: false },
      scales: { y: { range: function (plot, low, high) { return [0, high > 0 ? high * 1.1 : 1]; } } }, cursor: { y: false },
    };
    const plot = new uPlot(options, given.columns, place);
    new ResizeObserver(function () {
      if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: 180 });
    }).observe(place);
  }

  function drawAll() {
    document.querySelectorAll("[data-chart]").forEach(draw);
  }

  function element(name, text, className) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text) made.textContent = text;
    return made;
  }

  function row(message) {
    const details = element("details"), summary = element("summary");
    summary.append(element("span", message.place, "mono at"), element("time", message.stored));
    if (message.tags) summary.append(element("span", message.tags, "pill"));
    if (message.key_text) summary.append(element("span", message.key_text, "mono key"));
    summary.append(element("span", message.preview, "mono preview"));
    const pairs = element("dl", "", "pairs");
    [["Id", message.id], ["Keys", message.key_text]].concat(message.properties).forEach(function (pair) {
      if (!pair[1]) return;
      const each = element("div");
      each.append(element("dt", pair[0]), element("dd", pair[1], "mono"));
      pairs.append(each);
    });
    const body = element("pre", message.body.text);
    body.tabIndex = 0;
    body.setAttribute("aria-label", "Body of " + message.place);
    details.append(summary, pairs, body);
    const outer = element("div", "", "message");
    outer.append(details);
    return outer;
  }

  function follow(place) {
    const state = document.getElementById("tail-state"), pause = document.getElementById("pause");
    let count = 0, source = null;
    function say() {
      state.textContent = source === null ? "Paused. " + count + " messages so far." : "Live. " + count + " messages so far, the newest first.";
    }
    function add(made) {
      place.prepend(made);
      while (place.childElementCount > LIVE_ROWS) place.lastElementChild.remove();
      say();
    }
    function close() {
      source.close();
      source = null;
      show();
    }
    function show() {
      pause.setAttribute("aria-pressed", String(source === null));
      pause.textContent = source === null ? "Go on" : "Pause";
      say();
    }
    function end(why) {
      close();
      state.textContent = why;
    }
    function open() {
      source = new EventSource(place.dataset.tail);
      source.onopen = say;
      source.onerror = function () {
        // A browser asks again after a lost connection, and never after an answer that is no stream.
        if (source.readyState === EventSource.CLOSED) end("The tail was refused: perhaps nobody is logged in here any more, or too many are open.");
        else state.textContent = "The connection is lost; trying again.";
      };
      source.addEventListener("message", function (event) { count += 1; add(row(JSON.parse(event.data))); });
      source.addEventListener("skipped", function (event) { add(element("p", event.data + " messages were too fast and are left out.", "hint")); });
      source.addEventListener("problem", function (event) { end("The tail has ended: " + event.data); });
    }
    pause.addEventListener("click", function () {
      if (source === null) { open(); show(); } else close();
    });
    open();
  }

  document.addEventListener("DOMContentLoaded", function () {
    drawAll();
    document.querySelectorAll(".side [aria-current], .tabs [aria-current]").forEach(function (link) {
      const row = link.closest("nav");
      row.scrollLeft = Math.max(0, link.offsetLeft - (row.clientWidth - link.clientWidth) / 2);
    });
    const place = document.querySelector("[data-tail]");
    if (place) follow(place);
    document.querySelectorAll("[data-browser-zone]").forEach(offer);
  });
  document.addEventListener("htmx:afterSettle", drawAll);
})();
