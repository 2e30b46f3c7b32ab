import { clockTime, h, isNumber, look, sample, short, svg } from "./elements.js";

// A line chart: series of {name, x, y, low?, high?, faint?}, each over its own x, in seconds where `timed`. It is drawn
// again when its box changes.
export function chart(series, options = {}) {
  const { height = 240, timed = false, xName = timed ? "of wall time" : "steps", yName = "", label = yName } = options;
  const drawing = svg("svg", { class: "chart", height, role: "img", tabindex: "0", "aria-label": `${label} over ${xName}` });
  const tip = h("div", { class: "tip", hidden: true });
  const box = h("div", { class: "chart-box" }, drawing, tip);
  let plot = null;
  const draw = () => {
    const width = Math.max(220, box.clientWidth);
    plot = drawn(drawing, series, width, height, options);
    if (document.activeElement === drawing && drawing.dataset.at) show(Number(drawing.dataset.at)); // it was drawn again
  };
  const show = (pixel) => pointAt(drawing, tip, series, plot, pixel, xName, timed ? clockTime : short);
  const hide = () => {
    tip.hidden = true;
    drawing.querySelector(".cross")?.remove();
  };
  drawing.addEventListener("pointermove", (event) => show((drawing.dataset.at = event.offsetX)));
  drawing.addEventListener("pointerleave", hide);
  drawing.addEventListener("blur", hide);
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !plot) return;
    event.preventDefault();
    const from = Number(drawing.dataset.at ?? plot.right) + step * Math.max(2, (plot.right - plot.left) / 60);
    drawing.dataset.at = Math.min(plot.right, Math.max(plot.left, from));
    show(Number(drawing.dataset.at));
  });
  new ResizeObserver(draw).observe(box);
  return box;
}

function drawn(drawing, series, width, height, { yName = "", timed = false, xName = timed ? "wall time" : "steps", zero = false }) {
  const xs = extent(series.flatMap((one) => one.x));
  const ys = extent(series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]));
  drawing.replaceChildren();
  drawing.setAttribute("width", width);
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  if (!xs || !ys) {
    drawing.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "axis" }, "no points yet"));
    return null;
  }
  if (zero) ys[0] = Math.min(0, ys[0]);
  const yTicks = ticks(ys, Math.max(2, Math.floor(height / 48)));
  const low = Math.min(ys[0], yTicks[0]);
  const high = Math.max(ys[1], yTicks.at(-1));
  const widest = Math.max(...yTicks.map((value) => short(value).length));
  const left = 14 + 7 * widest;
  const right = width - 10;
  const top = yName ? 22 : 10;
  const bottom = height - 34;
  const px = (value) => left + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * (right - left);
  const py = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  for (const value of yTicks) {
    drawing.append(
      svg("line", { x1: left, x2: right, y1: py(value), y2: py(value), class: "grid" }),
      svg("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end", class: "axis" }, short(value)),
    );
  }
  for (const value of ticks(xs, Math.max(2, Math.floor(width / 110)))) {
    if (value >= xs[0] && value <= xs[1]) {
      const anchor = px(value) > right - 20 ? "end" : "middle";
      const x = anchor === "end" ? right : px(value);
      drawing.append(svg("text", { x, y: bottom + 16, "text-anchor": anchor, class: "axis" }, (timed ? clockTime : short)(value)));
    }
  }
  drawing.append(svg("text", { x: right, y: height - 4, "text-anchor": "end", class: "axis" }, xName));
  if (yName) drawing.append(svg("text", { x: 4, y: 12, class: "axis name" }, yName));
  series.forEach((one, number) => {
    const colour = look(one, number);
    if (one.low && one.high) drawing.append(svg("path", { d: area(one, px, py), class: `band ${colour}` }));
    drawing.append(svg("path", { d: line(one.x, one.y, px, py), class: `line ${colour}${one.faint ? " faint" : ""}` }));
    if (one.x.length === 1) drawing.append(svg("circle", { cx: px(one.x[0]), cy: py(one.y[0]), r: 3, class: `dot ${colour}` }));
  });
  return { left, right, top, bottom, px, py };
}

function line(x, y, px, py) {
  let path = "";
  let pen = false;
  x.forEach((value, i) => {
    if (!isNumber(y[i]) || !isNumber(value)) return; // a number that is not known there: the line goes on after it
    path += `${pen ? "L" : "M"}${px(value).toFixed(1)},${py(y[i]).toFixed(1)}`;
    pen = true;
  });
  return path;
}

function area({ x, low, high }, px, py) {
  const places = x.map((_, i) => i).filter((i) => isNumber(low[i]) && isNumber(high[i]));
  const there = places.map((i) => `${px(x[i]).toFixed(1)},${py(high[i]).toFixed(1)}`);
  const back = places.reverse().map((i) => `${px(x[i]).toFixed(1)},${py(low[i]).toFixed(1)}`);
  return there.length ? `M${there.join("L")}L${back.join("L")}Z` : "";
}

function pointAt(drawing, tip, series, plot, pixel, xName, words) {
  if (!plot || pixel < plot.left - 8) return;
  let best = null;
  const rows = [];
  for (const [number, one] of series.entries()) {
    if (one.faint) continue;
    const i = nearest(one, plot, pixel);
    if (i < 0) continue;
    const distance = Math.abs(plot.px(one.x[i]) - pixel);
    if (best === null || distance < best.distance) best = { distance, x: one.x[i] };
    rows.push(h("div", {}, sample(look(one, number)), `${one.name}  `, h("b", {}, short(one.y[i]))));
  }
  if (best === null) return;
  drawing.querySelector(".cross")?.remove();
  const x = plot.px(best.x);
  drawing.append(svg("line", { x1: x, x2: x, y1: plot.top, y2: plot.bottom, class: "cross" }));
  tip.replaceChildren(h("div", { class: "dim" }, `${words(best.x)} ${xName}`), ...rows.slice(0, 14));
  tip.hidden = false;
  tip.classList.toggle("left", x > drawing.clientWidth / 2);
}

function nearest(one, plot, pixel) {
  let found = -1;
  let least = Infinity;
  one.x.forEach((value, i) => {
    const distance = isNumber(one.y[i]) ? Math.abs(plot.px(value) - pixel) : Infinity;
    if (distance < least) [found, least] = [i, distance];
  });
  return found;
}

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!isNumber(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? null : [low, high];
}

function ticks([low, high], count) {
  if (low === high) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough);
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step);
  return Array.from({ length: Math.min(50, last - first + 1) }, (_, i) => (first + i) * step);
}

// Series over seconds instead of steps, by what a clock of {steps, seconds} says; points without a time are left out.
export function overTime(series, clock) {
  const known = (clock?.steps ?? []).map((step, i) => [step, clock.seconds[i]]).filter(([step, at]) => isNumber(step) && isNumber(at));
  return series.map((one) => {
    const times = one.x.map((step) => secondsAt(known, step));
    const kept = times.map((_, i) => i).filter((i) => isNumber(times[i]));
    const pick = (values) => values && kept.map((i) => values[i]);
    return { ...one, x: pick(times), y: pick(one.y), low: pick(one.low), high: pick(one.high) };
  });
}

function secondsAt(known, step) {
  if (!known.length || !isNumber(step)) return null;
  const after = known.findIndex(([at]) => at >= step);
  if (after < 0) return known.at(-1)[1];
  const [[a, from], [b, to]] = [after ? known[after - 1] : [0, 0], known[after]];
  return b > a ? from + ((to - from) * (step - a)) / (b - a) : to;
}

// The exponential moving average: `weight` of what came before.
export function smoothed(values, weight) {
  let mean = null;
  return values.map((value) => {
    if (!isNumber(value)) return value;
    mean = mean === null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

export function sparkline(points, width = 110, height = 28) {
  const xs = extent(points.map((point) => point[0]));
  const ys = extent(points.map((point) => point[1]));
  const drawing = svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  if (!xs || !ys) return drawing;
  const px = (value) => 2 + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * (width - 4);
  const py = (value) => height - 3 - ((value - ys[0]) / (ys[1] - ys[0] || 1)) * (height - 6);
  drawing.append(svg("path", { d: line(points.map((p) => p[0]), points.map((p) => p[1]), px, py), class: "line c0" }));
  return drawing;
}
