import { h, keepingFocus, pill, short } from "./elements.js";
import { sparkline } from "./chart.js";

const selected = new Set(); // ids, kept while the tab is open
let words = "";
let order = { name: "time", down: true };

const COLUMNS = [
  { name: "run", key: (run) => run.name },
  { name: "status", key: (run) => run.status },
  { name: "algorithm", key: (run) => run.algorithm },
  { name: "environment", key: (run) => run.environment },
  { name: "distribution", key: (run) => run.distribution },
  { name: "steps", key: (run) => run.env_steps, numeric: true },
  { name: "return", key: (run) => run.return, numeric: true },
  { name: "steps/s", key: (run) => run.steps_per_second, numeric: true },
  { name: "time", key: (run) => run.changed },
];

// All runs, with what is newest of each.
export function listPage() {
  let runs = [];
  let drawn = "";
  const body = h("tbody", {});
  const head = h("tr", {});
  body.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const row = step && body.rows[event.target.closest("tr").sectionRowIndex + step];
    if (!row) return;
    event.preventDefault();
    row.querySelector(event.target.tagName).focus();
  });
  const count = h("span", { class: "dim" });
  const compare = h("button", { type: "button", class: "button" }, "Compare");
  compare.addEventListener("click", () => {
    location.hash = `compare/${[...selected].map(encodeURIComponent).join("/")}`;
  });
  const filter = h("input", { type: "search", placeholder: "filter", "aria-label": "filter runs", value: words });
  filter.addEventListener("input", () => {
    words = filter.value;
    draw();
  });
  const element = h(
    "div",
    {},
    h("div", { class: "bar" }, h("h1", {}, "Runs"), filter, compare, count),
    h("section", { class: "card" }, h("div", { class: "scroll" }, h("table", { class: "runs" }, h("thead", {}, head), body))),
  );
  const draw = () => keepingFocus(element, fill);
  const fill = () => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => [run.name, run.status, run.algorithm, run.environment, run.distribution].join(" ").toLowerCase();
    const shown = runs.filter((run) => wanted.every((word) => text(run).includes(word)));
    const key = COLUMNS.find((column) => column.name === order.name).key;
    const sign = order.down ? -1 : 1;
    shown.sort((a, b) => sign * compared(key(a), key(b)));
    head.replaceChildren(h("th", {}), ...COLUMNS.map(heading), h("th", { scope: "col" }, "curve"));
    body.replaceChildren(...shown.map(row));
    count.textContent = `${shown.length} of ${runs.length} runs`;
    update();
  };
  const heading = (column) => {
    const arrow = order.name === column.name ? (order.down ? " ↓" : " ↑") : "";
    const button = h("button", { type: "button", class: "plain", "data-key": column.name }, column.name + arrow);
    button.addEventListener("click", () => {
      order = { name: column.name, down: order.name === column.name ? !order.down : true };
      draw();
    });
    return h("th", { scope: "col", class: column.numeric && "numeric" }, button);
  };
  const update = () => {
    compare.disabled = selected.size < 1;
    compare.textContent = selected.size ? `Compare ${selected.size}` : "Compare";
  };
  const row = (run) => {
    const box = h("input", { type: "checkbox", checked: selected.has(run.id), "aria-label": `select ${run.name}`, "data-key": run.id });
    box.addEventListener("change", () => {
      box.checked ? selected.add(run.id) : selected.delete(run.id);
      update();
    });
    const kind = run.kind === "run" ? "" : ` (${run.members} members)`;
    return h(
      "tr",
      {},
      h("td", {}, box),
      h("td", {}, h("a", { href: `#run/${encodeURIComponent(run.id)}` }, run.name), h("span", { class: "dim" }, kind)),
      h("td", {}, pill(run.status)),
      h("td", {}, run.algorithm),
      h("td", {}, run.environment),
      h("td", {}, run.distribution),
      h("td", { class: "numeric" }, short(run.env_steps)),
      h("td", { class: "numeric" }, short(run.return)),
      h("td", { class: "numeric" }, short(run.steps_per_second)),
      h("td", { class: "dim" }, run.changed ? new Date(1000 * run.changed).toLocaleString() : ""),
      h("td", {}, sparkline(run.curve)),
    );
  };
  update();
  return {
    element,
    async refresh(get) {
      document.title = "Runnel";
      const found = await get("/api/runs", {});
      const now = JSON.stringify(found.runs);
      if (now !== drawn) {
        [drawn, runs] = [now, found.runs];
        draw();
      }
      if (!runs.length) count.textContent = `no runs in ${found.roots.join(", ")} yet`;
    },
  };
}

function compared(a, b) {
  if (typeof a === "number" || typeof b === "number") return (a ?? -Infinity) - (b ?? -Infinity);
  return String(a ?? "").localeCompare(String(b ?? ""));
}
