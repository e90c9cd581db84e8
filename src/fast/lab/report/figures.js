// Figures of strategies: hiding some, the other axes, and values. The page works without this.
(() => {
  const { labels, charts } = JSON.parse(document.getElementById("values").textContent);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const hidden = new Set();
  const MOST = 12; // rows in a tip

  // Legend: one entry hides or shows a strategy in all figures; pointed at, it stands out among the lines.

  const toggles = all("[data-toggles]");
  const show = (key, visible) => {
    visible ? hidden.delete(key) : hidden.add(key);
    for (const each of all(`.figures [data-series="${key}"]`)) each.toggleAttribute("hidden", !visible);
  };
  const press = (toggle, visible) => {
    toggle.setAttribute("aria-pressed", String(visible));
    show(toggle.dataset.toggles, visible);
  };
  const light = (key) => {
    document.querySelector(".figures").classList.toggle("lit", key !== null && !hidden.has(key));
    for (const each of all(".plot [data-series]")) each.classList.toggle("on", each.dataset.series === key);
  };
  for (const toggle of toggles) {
    toggle.addEventListener("click", () => {
      press(toggle, toggle.getAttribute("aria-pressed") !== "true");
      light(null);
    });
    for (const event of ["pointerenter", "focus"]) toggle.addEventListener(event, () => light(toggle.dataset.toggles));
    for (const event of ["pointerleave", "blur"]) toggle.addEventListener(event, () => light(null));
  }
  document.getElementById("show-all")?.addEventListener("click", () => toggles.forEach((each) => press(each, true)));
  document.getElementById("show-none")?.addEventListener("click", () => toggles.forEach((each) => press(each, false)));

  // The axes of the scores: each choice is a figure of its own.

  const choices = all(".choice input");
  const choose = () => {
    const [x, y] = ["x", "y"].map((name) => choices.find((each) => each.name === name && each.checked).value);
    for (const figure of all("[data-x]")) figure.hidden = figure.dataset.x !== x || figure.dataset.y !== y;
  };
  for (const each of choices) each.addEventListener("change", choose);
  if (choices.length) choose();

  // Values: a line at the place that is pointed at, and what every visible strategy has there.

  const scale = (value, log) => (log ? Math.log10(value) : value);
  const unscale = (value, log) => (log ? 10 ** value : value);
  const at = (series, name, x) => {
    const places = series.x;
    const next = places.findIndex((place) => place >= x);
    if (next === -1) return null;
    if (next === 0) return places[0] === x ? series[name][0] : null;
    const part = (x - places[next - 1]) / (places[next] - places[next - 1]);
    return series[name][next - 1] * (1 - part) + series[name][next] * part;
  };
  const written = (value, log) => {
    const size = Math.abs(value);
    if (log) return Number(value.toPrecision(3)).toString();
    return size === 0 || (size >= 0.01 && size < 1000) ? value.toFixed(3) : Number(value.toPrecision(4)).toString();
  };
  const svgElement = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  // Only a legend has swatches: a page whose charts have one line each goes without.
  const swatchOf = (key) => document.querySelector(`[data-toggles="${key}"] .swatch`)?.cloneNode(true);

  class Reader {
    constructor(figure, chart) {
      this.chart = chart;
      this.plot = figure.querySelector(".plot");
      this.svg = figure.querySelector("svg");
      this.x = null;
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", () => this.clear());
      this.plot.addEventListener("blur", () => this.clear());
      this.plot.addEventListener("keydown", (event) => this.key(event));
    }

    point(event) {
      const corner = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
      const [left, top, right, bottom] = this.chart.box;
      if (corner.x < left || corner.x > right || corner.y < top || corner.y > bottom) return this.clear();
      const { x, logX, y, logY } = this.chart;
      const part = (corner.x - left) / (right - left);
      const low = scale(x[0], logX);
      const height = scale(y[1], logY) - ((corner.y - top) / (bottom - top)) * (scale(y[1], logY) - scale(y[0], logY));
      this.read(unscale(low + part * (scale(x[1], logX) - low), logX), unscale(height, logY), false);
    }

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.clear();
      if (!step) return;
      event.preventDefault();
      const places = [...new Set(this.visible().flatMap(([, series]) => series.x))]
        .filter((place) => place >= this.chart.x[0] && place <= this.chart.x[1])
        .sort((a, b) => a - b);
      if (!places.length) return;
      const now = this.x === null ? (step > 0 ? -1 : places.length) : places.findIndex((place) => place >= this.x);
      this.read(places[Math.max(0, Math.min(places.length - 1, now + step))], null, true);
    }

    visible() {
      return Object.entries(this.chart.series).filter(([key]) => !hidden.has(key));
    }

    read(x, near, aloud) {
      this.clear();
      this.x = x;
      const rows = this.visible()
        .map(([key, series]) => ({ key, series, mean: at(series, "mean", x) }))
        .filter((row) => row.mean !== null);
      const left = this.place(x, this.chart.x, this.chart.logX, this.chart.box[0], this.chart.box[2]);
      this.svg.append(svgElement("line", { class: "guide", x1: left, x2: left, y1: this.chart.box[1], y2: this.chart.box[3] }));
      for (const row of rows) this.dot(left, row);
      const far = (row) => (near === null ? 0 : Math.abs(scale(row.mean, this.chart.logY) - scale(near, this.chart.logY)));
      const shown = rows.sort((a, b) => far(a) - far(b)).slice(0, MOST).sort((a, b) => b.mean - a.mean);
      const place = `${Number((x / this.chart.one).toPrecision(3))} ${this.chart.unit}`;
      const tip = this.tip(place, shown, rows.length - shown.length);
      this.move(tip, left, near === null ? 0 : this.place(near, this.chart.y, this.chart.logY, this.chart.box[3], this.chart.box[1]));
      if (aloud) {
        const values = shown.map((row) => `${labels[row.key]} ${written(row.mean, this.chart.logY)}`);
        document.getElementById("spoken").textContent = `${place}: ${values.join(", ") || "nothing"}`;
      }
    }

    place(value, limits, log, from, to) {
      const [low, high] = limits.map((limit) => scale(limit, log));
      return from + ((scale(value, log) - low) / (high - low)) * (to - from);
    }

    dot(left, row) {
      const top = this.place(row.mean, this.chart.y, this.chart.logY, this.chart.box[3], this.chart.box[1]);
      if (top < this.chart.box[1] || top > this.chart.box[3]) return;
      const dot = svgElement("circle", { class: "dot", cx: left, cy: top, r: 2.6 });
      dot.style.fill = swatchOf(row.key)?.querySelector("path:last-child").style.fill ?? "var(--ink)";
      this.svg.append(dot);
    }

    tip(place, rows, more) {
      const tip = document.createElement("div");
      tip.className = "tip";
      const head = document.createElement("div");
      head.textContent = place;
      const table = document.createElement("table");
      for (const row of rows) table.append(this.row(row));
      tip.append(head, table);
      if (more > 0) tip.append(`and ${more} more`);
      this.plot.append(tip);
      return tip;
    }

    // Beside the line, and in that half of the chart that is not pointed at.
    move(tip, left, top) {
      const [, upper, , lower] = this.chart.box;
      const scaled = this.svg.clientWidth / this.svg.viewBox.baseVal.width;
      const beside = left * scaled;
      const fits = beside + tip.offsetWidth + 16 < this.svg.clientWidth;
      tip.style.left = `${Math.max(0, fits ? beside + 12 : beside - tip.offsetWidth - 12)}px`;
      tip.style.top = `${top > (upper + lower) / 2 ? upper * scaled : Math.max(0, lower * scaled - tip.offsetHeight - 8)}px`;
    }

    row({ key, series, mean }) {
      const row = document.createElement("tr");
      const log = this.chart.logY;
      const [low, high] = series.low ? ["low", "high"].map((name) => at(series, name, this.x)) : [null, null];
      const label = document.createElement("span");
      label.className = "label";
      label.textContent = labels[key];
      const name = document.createElement("span");
      name.className = "name";
      name.append(swatchOf(key) ?? "", label);
      row.insertCell().append(name);
      row.insertCell().textContent = written(mean, log);
      row.insertCell().textContent = low === null ? "" : `${written(low, log)} – ${written(high, log)}`;
      return row;
    }

    clear() {
      this.x = null;
      for (const each of all(".guide, .dot, .tip", this.plot)) each.remove();
    }
  }

  for (const [name, chart] of Object.entries(charts)) {
    new Reader(document.getElementById(name), { ...chart, series: charts[chart.like ?? name].series });
  }
})();
