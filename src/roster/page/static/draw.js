// Elements, figures and pictures. Data becomes text and numbers only: nothing here parses markup.
const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

const exact = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const count = (value) => (value === null || value === undefined ? "–" : Math.abs(value) < 1e5 ? exact.format(Math.round(value)) : short.format(value));
export const noun = (value, word) => (value === 1 ? word : `${word}s`);
export const rate = (value) => (value === null || value === undefined ? "–" : `${value < 10 && value > 0 ? value.toFixed(1) : count(value)}/s`);
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${seconds < 10 && seconds > 0 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hourCycle: "h23" });
export const time = (ms) => clock.format(ms);

// What lag does: written less read, and how long it takes to go at that pace.
export function trend({ lag, read, written, results }) {
  if (results && !results.startsWith("written")) return [results, "soft"];
  if (lag === null || lag === undefined || read === null || written === null || read === undefined) return ["", ""];
  const growth = written - read;
  if (!lag || Math.abs(growth) < Math.max(0.05, 0.02 * written)) return [lag && !read ? "stuck" : lag ? "steady" : "", lag && !read ? "warn" : "soft"];
  return growth > 0 ? [`↗ ${rate(growth)}`, "bad"] : [`↘ gone in ${span(lag / -growth)}`, "good"];
}

function pathOf(points, x, y) {
  let path = "", pen = "M";
  for (const [at, value] of points) {
    if (value === null) pen = "M";
    else { path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`; pen = "L"; }
  }
  return path;
}

export function spark(values) {
  const most = Math.max(1, ...values), step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, index) => [index, value]);
  const line = pathOf(points, (index) => index * step, (value) => 27 - (24 * value) / most);
  return s("svg", { class: "spark l0", viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" }, s("path", { class: "line", d: line }));
}

// A figure of lines over time. series: [name, points of [ms, value or null]]; bands: [from ms, to ms].
export function chart(title, series, bands, format) {
  const all = series.flatMap(([, points]) => points.filter((point) => point[1] !== null));
  if (all.length < 2) return h("figure", {}, h("figcaption", {}, h("b", {}, title)), h("p", { class: "empty" }, "Not enough looks yet"));
  const from = Math.min(...all.map((point) => point[0])), to = Math.max(...all.map((point) => point[0]));
  const most = Math.max(1, ...all.map((point) => point[1]));
  const x = (at) => (1000 * (at - from)) / Math.max(1, to - from), y = (value) => 146 - (140 * value) / most;
  const drawn = s("svg", { viewBox: "0 0 1000 150", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: at most ${format(most)}, now ${series.map(([name, points]) => `${name} ${format(points.at(-1)[1])}`).join(", ")}` });
  for (const height of [6, 76, 146]) drawn.append(s("line", { class: "grid", x1: 0, x2: 1000, y1: height, y2: height }));
  for (const [began, ended] of bands) if (ended >= from) drawn.append(s("rect", { class: "band", x: x(Math.max(from, began)), width: Math.max(3, x(ended) - x(Math.max(from, began))), y: 0, height: 150 }));
  series.forEach(([, points], number) => {
    const line = pathOf(points, x, y), known = points.filter((point) => point[1] !== null);
    if (known.length === points.length && !number) drawn.append(s("path", { class: `area l${number}`, d: `${line}L${x(known.at(-1)[0])} 146L${x(known[0][0])} 146Z` }));
    drawn.append(s("path", { class: `line l${number}`, d: line }));
  });
  const read = h("span", {});
  const show = (at) => read.replaceChildren(...series.flatMap(([name, points], number) => {
    const nearest = points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
    return [h("span", { class: `key l${number}` }, name), ` ${format(nearest[1])}  `, number === series.length - 1 && at < to ? time(nearest[0]) : ""];
  }));
  drawn.addEventListener("pointermove", (event) => { const box = drawn.getBoundingClientRect(); show(from + ((event.clientX - box.left) / box.width) * (to - from)); });
  drawn.addEventListener("pointerleave", () => show(to));
  show(to);
  return h("figure", {}, h("figcaption", {}, h("b", {}, title), read), drawn, h("div", { class: "axis" }, h("span", {}, time(from)), h("span", {}, `up to ${format(most)}`), h("span", {}, time(to))));
}

// A canvas of partitions: a cell each, as high as its lag on a logarithmic scale. cells: rows of a document; label and
// open take one.
export function strip(label, open) {
  const canvas = h("canvas", { tabindex: 0, role: "img" });
  let cells = [], most = 1, colour = "", size = 0, columns = 1, at = 0;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return Math.floor((event.clientY - box.top) / size) * columns + Math.min(columns - 1, Math.floor((event.clientX - box.left) / size)); };
  const draw = (width = canvas.clientWidth, style = getComputedStyle(document.documentElement)) => {
    const scale = devicePixelRatio || 1;
    columns = Math.max(1, Math.floor(width / size));
    const height = Math.max(1, Math.ceil(cells.length / columns)) * size, gap = size > 12 ? 3 : 1, inner = size - gap;
    canvas.style.height = `${height}px`;
    canvas.width = width * scale; canvas.height = height * scale;
    const pen = canvas.getContext("2d"), fill = style.getPropertyValue(colour), ink = style.getPropertyValue("--ink"), card = style.getPropertyValue("--card");
    pen.scale(scale, scale); pen.font = `${Math.round(size * 0.4)}px ${style.fontFamily}`; pen.textAlign = "center"; pen.textBaseline = "middle";
    cells.forEach((cell, index) => {
      const left = (index % columns) * size, top = Math.floor(index / columns) * size, part = cell[5] ? Math.max(0.12, Math.log1p(cell[5]) / Math.log1p(most)) : 0;
      pen.fillStyle = pen.strokeStyle = fill;
      pen.globalAlpha = 0.28; pen.fillRect(left, top, inner, inner);
      pen.globalAlpha = 1; pen.fillRect(left, top + inner * (1 - part), inner, inner * part);
      if (size >= 26) { pen.fillStyle = part > 0.5 ? card : ink; pen.fillText(cell[1], left + inner / 2, top + inner / 2); }
      if (index === at && document.activeElement === canvas) { pen.strokeStyle = ink; pen.lineWidth = 2; pen.strokeRect(left + 1, top + 1, inner - 2, inner - 2); }
    });
  };
  const titled = (index) => (canvas.title = cells[index] ? label(cells[index]) : "");
  canvas.addEventListener("pointermove", (event) => titled(place(event)));
  canvas.addEventListener("click", (event) => { const found = place(event); if (cells[found]) { at = found; open(cells[found]); } });
  for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => draw());
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: cells.length - 1 - at }[event.key];
    if (event.key === "Enter" && cells[at]) open(cells[at]);
    if (step === undefined) return;
    event.preventDefault();
    at = Math.min(cells.length - 1, Math.max(0, at + step));
    draw();
    document.getElementById("told").textContent = titled(at);
  });
  new ResizeObserver(() => { if (Math.floor(canvas.clientWidth / size) !== columns) draw(); }).observe(canvas);
  const show = (shown, total, most_, colour_, whose, width, style) => {
    cells = shown; most = most_; colour = colour_; size = total <= 96 ? 34 : total <= 800 ? 20 : 9; at = Math.min(at, Math.max(0, cells.length - 1));
    canvas.setAttribute("aria-label", `${count(cells.length)} partitions of ${whose}; arrow keys go through them, Enter opens one`);
    draw(width, style);
  };
  return { canvas, show };
}
