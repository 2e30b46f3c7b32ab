import { card, h, keepingFocus } from "./elements.js";
import { curves, metricNames } from "./sections.js";

const SHOWN = 4;

// Curves with what is chosen of them: metrics and smoothing. `update` draws them anew where they have changed.
export function metricPanel(view) {
  const state = { chosen: [], touched: false, weight: 0, drawn: "" };
  const charts = h("div", {});
  const chips = h("div", { class: "chips", role: "group", "aria-label": "metrics" });
  const weight = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "smoothing" });
  weight.addEventListener("input", () => {
    state.weight = Number(weight.value);
    draw();
  });
  const draw = () => keepingFocus(charts, () => charts.replaceChildren(...curves(view(), state.chosen, state.weight).filter(Boolean)));
  const update = () => {
    const names = metricNames(view());
    if (!state.touched) state.chosen = names.slice(0, SHOWN); // more are known as a run goes on
    const now = JSON.stringify([names, view().curves, view().bands]);
    if (now === state.drawn) return;
    state.drawn = now;
    const known = [...chips.children].map((one) => [one.dataset.name, one.getAttribute("aria-pressed") === "true"]);
    const wanted = names.map((name) => [name, state.chosen.includes(name)]);
    if (JSON.stringify(known) !== JSON.stringify(wanted)) chips.replaceChildren(...names.map(chip)); // else focus stays
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
      draw();
    });
    return button;
  };
  const panel = card("Curves", h("label", { class: "smoothing" }, "smoothing ", weight), charts, chips);
  panel.update = update;
  update();
  return panel;
}
