import { card, h, table } from "./elements.js";
import { chart } from "./chart.js";
import { BANDS, legend, withSmoothing } from "./sections.js";

const MOST_COLOURS = 8;

// Runs over one another by any metric, and the settings in which they differ.
export function comparePage(ids) {
  let metric = "mean_return";
  let drawn = "";
  let found = null;
  let weight = 0;
  const chosen = h("select", { "aria-label": "metric" });
  const smoothing = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "smoothing" });
  const picture = h("div", {});
  const settings = h("div", {});
  chosen.addEventListener("change", async () => {
    metric = chosen.value;
    drawn = "";
    await refresh(page.get);
  });
  smoothing.addEventListener("input", () => {
    weight = Number(smoothing.value);
    draw();
  });
  const draw = () => {
    if (!found) return;
    const series = found.runs.map((run, i) => ({ ...run, x: run.steps, y: run.values, colour: i % MOST_COLOURS }));
    const empty = found.runs.filter((run) => !run.steps.length).map((run) => run.name);
    picture.replaceChildren(
      chart(withSmoothing(series, weight), { yName: metric, height: 340 }),
      legend(series),
      ...(empty.length ? [h("p", { class: "dim" }, `without ${metric}: ${empty.join(", ")}`)] : []),
      ...(found.runs.some((run) => run.low) ? [h("p", { class: "dim" }, BANDS)] : []),
    );
    const columns = [
      { name: "setting", cell: (row) => row.name },
      ...found.runs.map((run, i) => ({ name: run.name, cell: (row) => h("code", {}, row.values[i] ?? "–") })),
    ];
    const rows = found.differing;
    settings.replaceChildren(rows.length ? table(columns, rows) : h("p", { class: "dim" }, "They have the same settings."));
  };
  const refresh = async (get) => {
    page.get = get;
    document.title = "Compare - Runnel";
    const now = await get("/api/compare", [...ids.map((id) => ["id", id]), ["metric", metric]]);
    const text = JSON.stringify(now);
    if (text === drawn) return;
    [drawn, found] = [text, now];
    const names = found.metrics.includes(metric) ? found.metrics : [metric, ...found.metrics];
    chosen.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    chosen.value = metric;
    draw();
  };
  const page = {
    get: null,
    element: h(
      "div",
      {},
      h("div", { class: "bar" }, h("h1", {}, "Compare"), chosen, h("label", { class: "smoothing" }, "smoothing ", smoothing), h("a", { href: "#" }, "all runs")),
      h("section", { class: "card" }, picture),
      card("Settings that differ", settings),
    ),
    refresh,
  };
  return page;
}
