import { h, svg, table } from "./elements.js";

const BAD = new Set([
  "restart", "hang", "rollback", "nan", "budget", "environment", "checkpoint_failed", "metrics_failed", "evaluation_failed",
  "evaluator", "policy_failed", "opponent_lost", "results_lost", "join_failed", "rejected",
]);

const ROWS = 60;
const WIDTH = 1000;
const NEAR = 24; // pixels between a finger and a mark

// What broke, and when: a mark for each event on a line of time from the run's start to its end, and a table. A mark is
// read by pointing at it, by touching it, or by the arrow keys.
export function timeline(events, span) {
  const times = events.map((event) => Date.parse(event.time));
  const known = [...times, ...span].filter(Number.isFinite);
  const first = Math.min(...known);
  const last = Math.max(...known);
  const placed = events.map((event, i) => ({ event, x: 8 + ((times[i] - first) / (last - first || 1)) * (WIDTH - 16) })).filter(({ x }) => Number.isFinite(x));
  const rows = events.map((event, i) => ({ ...event, at: times[i], class: BAD.has(event.event) ? "bad" : "" })).reverse();
  const columns = [
    { name: "time", cell: (row) => (Number.isFinite(row.at) ? new Date(row.at).toLocaleTimeString() : row.time) },
    { name: "event", cell: (row) => row.event },
    { name: "worker", cell: (row) => row.worker ?? "" },
    { name: "what happened", cell: (row) => [row.reason, row.action].filter(Boolean).join("; ") },
  ];
  const ends = known.length > 0 && h("div", { class: "ends dim" }, [first, last].map((time) => h("span", {}, new Date(time).toLocaleString())));
  const more = rows.length > ROWS && h("p", { class: "dim" }, `The table has the newest ${ROWS} of ${rows.length}.`);
  return h("div", {}, lineOf(placed), ends, table(columns, rows.slice(0, ROWS)), more);
}

function lineOf(placed) {
  const words = h("p", { class: "dim marked", role: "status" }, placed.length ? "Point at a mark, or move between marks with ← and →." : "");
  const label = "events over time; the arrow keys move between them";
  const drawing = svg("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} 34`, preserveAspectRatio: "none", role: "group", "aria-label": label });
  drawing.append(svg("line", { x1: 8, x2: WIDTH - 8, y1: 17, y2: 17, class: "grid" }));
  const marks = placed.map(({ event, x }) => {
    const text = wordsOf(event);
    const line = svg("line", { x1: x, x2: x, y1: 6, y2: 28, class: BAD.has(event.event) ? "mark bad" : "mark", tabindex: "-1", role: "img", "aria-label": text });
    line.addEventListener("focus", () => show(line));
    drawing.append(line);
    return line;
  });
  const show = (line) => {
    for (const one of marks) one.setAttribute("tabindex", one === line ? "0" : "-1"); // Tab goes to one of them
    words.textContent = line.getAttribute("aria-label");
  };
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect();
    const distance = (line) => Math.abs(box.left + (line.getAttribute("x1") / WIDTH) * box.width - event.clientX);
    const found = marks.reduce((a, b) => (distance(b) < distance(a) ? b : a), marks[0]);
    return found && distance(found) <= NEAR ? found : null;
  };
  const point = (event) => {
    const line = nearest(event);
    if (line && !marks.includes(document.activeElement)) show(line);
  };
  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("click", (event) => nearest(event)?.focus({ preventScroll: true }));
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const next = step && marks[marks.indexOf(document.activeElement) + step];
    if (!step) return;
    event.preventDefault();
    next?.focus({ preventScroll: true });
  });
  marks.at(-1)?.setAttribute("tabindex", "0");
  return [drawing, words];
}

function wordsOf(event) {
  const what = [event.reason, event.action].filter(Boolean).map(String).join("; ");
  const time = Date.parse(event.time);
  const at = Number.isFinite(time) ? new Date(time).toLocaleTimeString() : String(event.time);
  return [at, event.event, event.worker ?? "", what.slice(0, 300)].filter(Boolean).join(" · ");
}
