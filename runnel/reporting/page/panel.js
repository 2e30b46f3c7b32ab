import { card, h, keepingFocus } from "./elements.js";
import { curves, metricNames } from "./sections.js";

const SHOWN = 4;

// Steps, or the time since the run began.
export function axisChoice(timed, choose) {
  const options = [["steps", "environment steps"], ["time", "wall time"]];
  const chosen = h("select", { "aria-label": "x axis" }, options.map(([value, words]) => h("option", { value }, words)));
  chosen.value = timed ? "time" : "steps";
  chosen.addEventListener("change", () => choose(chosen.value === "time"));
  return h("label", { class: "smoothing" }, "over ", chosen);
}

export function weightIn(values) {
  const weight = Number(values.get("smoothing"));
  return weight > 0 && weight < 1 ? Math.min(0.98, weight) : 0;
}

export function viewPairs({ weight, timed }) {
  return [...(weight ? [["smoothing", weight]] : []), ...(timed ? [["x", "time"]] : [])];
}

// Curves with what is chosen of them: metrics, smoothing and the x axis. `update` draws them again where they have
// changed. `before`: what was chosen before, as URLSearchParams; `keep` gets it as pairs whenever it changes.
export function metricPanel(view, before = new URLSearchParams(), keep = () => {}) {
  const state = { chosen: before.getAll("metric"), touched: before.has("metric"), weight: weightIn(before), timed: before.get("x") === "time", drawn: "" };
  const charts = h("div", {});
  const chips = h("div", { class: "chips", role: "group", "aria-label": "metrics" });
  const weight = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.weight, "aria-label": "smoothing" });
  weight.addEventListener("input", () => {
    state.weight = Number(weight.value);
    changed();
  });
  const axis = axisChoice(state.timed, (timed) => {
    state.timed = timed;
    changed();
  });
  const changed = () => {
    const metrics = state.touched ? state.chosen.map((name) => ["metric", name]) : [];
    keep([...metrics, ...viewPairs(state)]);
    draw();
  };
  const known = () => state.chosen.filter((name) => metricNames(view()).includes(name));
  const draw = () => keepingFocus(charts, () => charts.replaceChildren(...curves(view(), known(), state.weight, state.timed).filter(Boolean)));
  const update = () => {
    const names = metricNames(view());
    if (!state.touched) state.chosen = names.slice(0, SHOWN); // more are known as a run goes on
    const now = JSON.stringify([names, view().curves, view().bands, view().clock]);
    if (now === state.drawn) return;
    state.drawn = now;
    const shown = [...chips.children].map((one) => [one.dataset.name, one.getAttribute("aria-pressed") === "true"]);
    const wanted = names.map((name) => [name, state.chosen.includes(name)]);
    if (JSON.stringify(shown) !== JSON.stringify(wanted)) chips.replaceChildren(...names.map(chip)); // else focus stays
    draw();
  };
  const chip = (name) => {
    const button = h("button", { type: "button", class: "chip", "aria-pressed": String(state.chosen.includes(name)) }, name);
    button.dataset.name = name;
    button.addEventListener("click", () => {
      const on = state.chosen.includes(name);
      state.touched = true;
      state.chosen = on ? state.chosen.filter((other) => other !== name) : [...state.chosen, name];
      button.setAttribute("aria-pressed", String(!on));
      changed();
    });
    return button;
  };
  const panel = card("Curves", h("div", { class: "bar" }, h("label", { class: "smoothing" }, "smoothing ", weight), axis), charts, chips);
  panel.update = update;
  update();
  return panel;
}
