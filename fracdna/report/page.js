"use strict";

// Tables sort by their column heads: numbers by value, empty cells last.
function sortKey(row, place) {
  const cell = row.cells[place];
  return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(head) {
  const table = head.closest("table");
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: sortKey(row, head.cellIndex) }));
  const [empty, known] = [rows.filter((r) => r.key === ""), rows.filter((r) => r.key !== "")];
  known.sort((a, b) => (down ? compare(b.key, a.key) : compare(a.key, b.key)));
  body.append(...[...known, ...empty].map((r) => r.row));
}

// Legends hide and show curves.
function toggleCurve(button, figure) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(shown));
  for (const curve of figure.querySelectorAll(`.curve[data-curve="${button.dataset.curve}"]`)) {
    curve.classList.toggle("hidden", !shown);
  }
}

// Charts read out the values at a place: of all curves of one name the nearest point.
class ReadOut {
  constructor(figure) {
    this.figure = figure;
    this.box = figure.querySelector(".readout");
    this.named = new Map();
    for (const { curve, name, colour, x, at, text } of JSON.parse(figure.querySelector(".values").textContent)) {
      if (!this.named.has(curve)) this.named.set(curve, { curve, name, colour, points: [] });
      this.named.get(curve).points.push(...x.map((value, i) => ({ x: value, at: at[i], text: text[i] })));
    }
    const places = [...this.named.values()].flatMap(({ points }) => points.map((point) => point.x));
    this.places = [...new Set(places)].sort((a, b) => a - b);
    this.at = -1;
    const area = figure.querySelector(".drawings");
    area.addEventListener("pointermove", (event) => this.follow(event));
    area.addEventListener("pointerdown", (event) => this.follow(event));
    area.addEventListener("pointerleave", () => this.hide());
    area.addEventListener("blur", () => this.hide());
    area.addEventListener("keydown", (event) => this.step(event));
  }

  drawing() {
    return [...this.figure.querySelectorAll("svg.chart")].find((svg) => svg.clientWidth > 0);
  }

  share(svg, value) {
    const place = svg.dataset.scale === "log" ? Math.log : Number;
    const [low, high] = [place(svg.dataset.low), place(svg.dataset.high)];
    return (place(value) - low) / (high - low);
  }

  follow(event) {
    const svg = this.drawing();
    const box = svg.getBoundingClientRect();
    const units = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const share = (units - svg.dataset.left) / svg.dataset.width;
    const away = (value) => Math.abs(this.share(svg, value) - share);
    this.show(svg, this.places.reduce((best, x, i) => (away(x) < away(this.places[best]) ? i : best), 0));
  }

  step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.hide();
    if (!move) return;
    event.preventDefault();
    const next = Math.min(Math.max(this.at + move, 0), this.places.length - 1);
    this.show(this.drawing(), next);
  }

  show(svg, at) {
    this.at = at;
    const x = this.places[at];
    const share = this.share(svg, x);
    const lines = [...this.named.values()].map((named) => this.line(svg, named, x)).filter(Boolean);
    this.box.replaceChildren(...lines);
    this.box.hidden = lines.length === 0;
    this.box.style.left = share > 0.5 ? "8%" : "auto";
    this.box.style.right = share > 0.5 ? "auto" : "2%";
    const cursor = svg.querySelector(".cursor");
    cursor.setAttribute("x1", share * svg.dataset.width);
    cursor.setAttribute("x2", share * svg.dataset.width);
    cursor.setAttribute("visibility", "visible");
  }

  line(svg, { curve, name, colour, points }, x) {
    const button = this.figure.querySelector(`.legend [data-curve="${curve}"]`);
    if (button.getAttribute("aria-pressed") !== "true") return null;
    const away = (point) => Math.abs(this.share(svg, point.x) - this.share(svg, x));
    const nearest = points.reduce((best, point) => (away(point) < away(best) ? point : best));
    const line = document.createElement("div");
    const swatch = document.createElement("span");
    line.className = colour;
    swatch.className = "swatch";
    line.append(swatch, `${name} at ${nearest.at}: ${nearest.text}`);
    return line;
  }

  hide() {
    this.at = -1;
    this.box.hidden = true;
    for (const cursor of this.figure.querySelectorAll(".cursor")) cursor.setAttribute("visibility", "hidden");
  }
}

// The theme is the system's until it is chosen here.
function toggleTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme ?? system;
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
}

for (const head of document.querySelectorAll("th")) {
  head.querySelector("button").addEventListener("click", () => sortBy(head));
}
for (const figure of document.querySelectorAll("figure")) {
  for (const button of figure.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => toggleCurve(button, figure));
  }
  new ReadOut(figure);
}
document.getElementById("theme").addEventListener("click", toggleTheme);
