import { card, h, table } from "./elements.js";
import { chart, overTime } from "./chart.js";
import { axisChoice, viewPairs, weightIn } from "./panel.js";
import { place, remember } from "./place.js";
import { BANDS, legend, withSmoothing } from "./sections.js";

// Runs over one another by any metric, and the settings in which they differ.
export function comparePage(ids) {
  const { values } = place();
  let metric = values.get("metric") || "mean_return";
  let drawn = "";
  let found = null;
  let weight = weightIn(values);
  let timed = values.get("x") === "time";
  const keep = () => remember([["metric", metric], ...viewPairs({ weight, timed })]);
  const chosen = h("select", { "aria-label": "metric" });
  const smoothing = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: weight, "aria-label": "smoothing" });
  const picture = h("div", {});
  const settings = h("div", {});
  chosen.addEventListener("change", async () => {
    metric = chosen.value;
    drawn = "";
    keep();
    await refresh(page.get);
  });
  const axis = axisChoice(timed, (now) => {
    timed = now;
    keep();
    draw();
  });
  smoothing.addEventListener("input", () => {
    weight = Number(smoothing.value);
    keep();
    draw();
  });
  const draw = () => {
    if (!found) return;
    const series = found.runs.map((run, i) => ({ ...run, x: run.steps, y: run.values, colour: i }));
    const shown = withSmoothing(series, weight).map((one) => (timed ? overTime([one], one.clock)[0] : one));
    const empty = found.runs.filter((run) => !run.steps.length).map((run) => run.name);
    picture.replaceChildren(
      chart(shown, { yName: metric, height: 340, timed }),
      legend(series),
      ...(empty.length ? [h("p", { class: "dim" }, `without ${metric}: ${empty.join(", ")}`)] : []),
      ...(found.left_out ? [h("p", { class: "dim" }, `${found.left_out} more bands are not drawn`)] : []),
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
      h("div", { class: "bar" }, h("h1", {}, "Compare"), chosen, h("label", { class: "smoothing" }, "smoothing ", smoothing), axis, h("a", { href: "#" }, "all runs")),
      h("section", { class: "card" }, picture),
      card("Settings that differ", settings),
    ),
    refresh,
  };
  return page;
}
