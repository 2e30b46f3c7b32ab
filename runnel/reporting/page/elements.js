// Elements from data. Texts become text nodes and nothing else: what a run has written is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// Draws again, and moves the focus to what takes the place of what had it.
export function keepingFocus(element, draw) {
  const key = (one) => one.dataset.key ?? one.getAttribute("href") ?? one.getAttribute("aria-label");
  const before = element.contains(document.activeElement) ? document.activeElement : null;
  draw();
  if (!before || before.isConnected || key(before) === null) return;
  const now = [...element.querySelectorAll("a, button, input, select, [tabindex]")].find((one) => key(one) === key(before));
  if (!now) return;
  if (before.dataset.at) now.dataset.at = before.dataset.at;
  now.focus({ preventScroll: true });
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), children);
}

export function table(columns, rows, properties = {}) {
  const head = h("tr", {}, columns.map((column) => h("th", { class: column.numeric && "numeric", scope: "col" }, column.name)));
  const body = rows.map((row) =>
    h("tr", { class: row.class }, columns.map((column) => h("td", { class: column.numeric && "numeric" }, column.cell(row)))),
  );
  return h("div", { class: "scroll" }, h("table", properties, h("thead", {}, head), h("tbody", {}, body)));
}

// Numbers in words

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(1);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  if (size >= 1) return trim(value);
  return size === 0 ? "0" : String(Number(value.toPrecision(3)));
}

function trim(value) {
  return String(Number(value.toPrecision(3)));
}

export function whole(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en") : "–";
}

export function percent(value) {
  return isNumber(value) ? `${Math.round(100 * value)}%` : "–";
}

export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Seconds on an axis.
export function clockTime(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 120) return `${short(seconds)} s`;
  if (seconds < 7200) return `${trim(seconds / 60)} min`;
  return `${trim(seconds / 3600)} h`;
}

// The classes of a line: of 8 colours, and of 5 kinds of dashes where there are more lines.
export function look(one, number) {
  const place = one.colour ?? number;
  return `c${place % 8} d${Math.floor(place / 8) % 5}`;
}

// A short piece of a line as it is drawn.
export function sample(classes) {
  const line = svg("line", { x1: 1, x2: 27, y1: 5, y2: 5, class: `key ${classes}` });
  return svg("svg", { class: "sample", width: 28, height: 10, "aria-hidden": "true" }, line);
}

export function pill(status) {
  const known = ["running", "finished", "interrupted", "failed", "gone"].includes(status) ? status : "unknown";
  const words = { gone: "ended without a result", unknown: "unknown" }[known] ?? known;
  return h("span", { class: `pill ${known}` }, words);
}
