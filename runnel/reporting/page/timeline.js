import { h, svg, table } from "./elements.js";

const BAD = new Set(["restart", "hang", "rollback", "nan", "budget", "environment", "checkpoint_failed", "metrics_failed", "evaluation_failed", "join_failed", "rejected"]);

const ROWS = 60;

// What broke, and when: a mark for each event on a line of time from the run's start to its end, and a table.
export function timeline(events, span) {
  const times = events.map((event) => Date.parse(event.time));
  const known = [...times, ...span].filter(Number.isFinite);
  const first = Math.min(...known);
  const last = Math.max(...known);
  const width = 1000;
  const drawing = svg("svg", { class: "timeline", viewBox: `0 0 ${width} 34`, preserveAspectRatio: "none", role: "img", "aria-label": "events over time" });
  drawing.append(svg("line", { x1: 8, x2: width - 8, y1: 17, y2: 17, class: "grid" }));
  events.forEach((event, i) => {
    if (!Number.isFinite(times[i])) return;
    const x = 8 + ((times[i] - first) / (last - first || 1)) * (width - 16);
    const mark = svg("line", { x1: x, x2: x, y1: 6, y2: 28, class: BAD.has(event.event) ? "mark bad" : "mark" });
    mark.append(svg("title", {}, `${event.time} ${event.event} ${event.worker ?? ""}`));
    drawing.append(mark);
  });
  const rows = events.map((event, i) => ({ ...event, at: times[i], class: BAD.has(event.event) ? "bad" : "" })).reverse();
  const columns = [
    { name: "time", cell: (row) => (Number.isFinite(row.at) ? new Date(row.at).toLocaleTimeString() : row.time) },
    { name: "event", cell: (row) => row.event },
    { name: "worker", cell: (row) => row.worker ?? "" },
    { name: "what happened", cell: (row) => [row.reason, row.action].filter(Boolean).join("; ") },
  ];
  const ends = known.length > 0 && h("div", { class: "ends dim" }, [first, last].map((time) => h("span", {}, new Date(time).toLocaleString())));
  const more = rows.length > ROWS && h("p", { class: "dim" }, `The table has the newest ${ROWS} of ${rows.length}.`);
  return h("div", {}, drawing, ends, table(columns, rows.slice(0, ROWS)), more);
}
