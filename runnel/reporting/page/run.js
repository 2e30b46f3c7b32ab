import { ask, blob, get as fetched, hasToken } from "./api.js";
import { card, h, keepingFocus } from "./elements.js";
import { metricPanel } from "./panel.js";
import { place, remember } from "./place.js";
import * as s from "./sections.js";

// One run, or a directory of several. A part of the page is drawn again where its part of the view has changed.
export function runPage(id) {
  let view = null;
  let panel = null;
  const seen = { log: "", film: "" }; // what is looked at, though more may come
  const before = place().values;
  const pick = { names: new Set() };
  pick.compare = () => {
    location.hash = `compare/${[...pick.names].map((name) => encodeURIComponent(`${id}/${name}`)).join("/")}`;
  };
  const link = (directory) => `#run/${encodeURIComponent(`${id}/${directory}`)}`;
  const slots = [
    slot((v) => [v.name, v.status, v.about, v.result, v.problems, v.members?.length], s.header),
    slot((v) => [v.status, v.asked], (v) => controls(id, v)),
    slot((v) => [v.now, v.result, v.status, v.usage?.bottleneck, v.about?.steps, v.of_member], s.summary),
    slot((v) => v.kind, () => (panel = metricPanel(() => view, before, remember))),
    slot((v) => v.lineage, s.lineageOf),
    slot((v) => v.result.trials, s.trials),
    slot((v) => [v.members, v.notes, v.winner], (v) => s.memberTable(v, link, pick)),
    slot((v) => [v.plan, v.of_member], s.plan),
    slot((v) => [v.usage, v.of_member], s.workers),
    slot((v) => v.evaluations, s.evaluationResults),
    slot((v) => v.payoffs, s.payoffMatrices),
    slot((v) => v.videos, (v) => films(id, v.videos, seen)),
    slot((v) => v.events.length && [v.events, s.spanOf(v)], s.faults),
    slot((v) => v.logs, (v) => logs(id, v.logs, seen)),
    slot((v) => v.about, s.settingsOf),
    slot((v) => [v.starts, v.config, v.command, v.again], s.reproduce),
  ];
  const parent = id.includes("/member-") || id.endsWith("/winner") ? `#run/${encodeURIComponent(id.slice(0, id.lastIndexOf("/")))}` : "#";
  return {
    element: h("div", {}, h("nav", {}, h("a", { href: parent }, parent === "#" ? "all runs" : "all members")), slots.map((one) => one.element)),
    async refresh(get) {
      view = await get("/api/run", { id });
      document.title = `${view.name} - Runnel`;
      for (const one of slots) one.update(view);
      panel?.update();
    },
  };
}

function slot(part, make) {
  const element = h("div", {});
  let drawn = null;
  return {
    element,
    update(view) {
      const now = JSON.stringify(part(view) ?? null);
      if (now === drawn) return;
      drawn = now;
      keepingFocus(element, () => element.replaceChildren(make(view) || ""));
    },
  };
}

function controls(id, view) {
  if (view.status !== "running" || !view.top) return null;
  const said = h("span", { class: "dim", role: "status" });
  const button = (name, what, properties = {}) => {
    const element = h("button", { type: "button", class: "button", ...properties }, name);
    element.addEventListener("click", async () => {
      if (what === "stop" && !element.dataset.sure) {
        element.dataset.sure = "yes";
        element.textContent = "Stop: sure?";
        setTimeout(() => {
          delete element.dataset.sure;
          element.textContent = name;
        }, 4000);
        return;
      }
      try {
        await ask(id, what);
        said.textContent = what === "stop" ? "asked to stop, with a checkpoint" : "asked for a checkpoint";
      } catch (problem) {
        said.textContent = problem.message;
      }
    });
    return element;
  };
  const why = hasToken() ? null : h("span", { class: "dim" }, "to control it, open the address that the command printed");
  const off = { disabled: !hasToken() };
  return h("div", { class: "bar controls" }, button("Checkpoint", "checkpoint", off), button("Stop", "stop", { ...off, class: "button danger" }), why, said);
}

function logs(id, names, seen) {
  if (!names.length) return null;
  const text = h("pre", { class: "log", tabindex: "0", "aria-label": "log" });
  const which = h("select", { "aria-label": "worker's log" }, h("option", { value: "" }, "choose a log"), names.map((name) => h("option", { value: name }, name)));
  let shown = "";
  const load = async () => {
    if (!which.value) return text.replaceChildren();
    try {
      const found = await fetched("/api/log", { id, name: which.value });
      if (text.textContent === found.text) return;
      const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4; // a reader who has scrolled up stays there
      const top = text.scrollTop;
      text.textContent = found.text;
      text.scrollTop = atEnd || shown !== which.value ? text.scrollHeight : top;
      shown = which.value;
    } catch (problem) {
      text.textContent = problem.message;
    }
  };
  which.addEventListener("change", () => {
    seen.log = which.value;
    load();
  });
  if (names.includes(seen.log)) {
    which.value = seen.log;
    load();
  }
  const timer = setInterval(() => {
    if (!text.isConnected) return clearInterval(timer);
    if (!document.hidden && which.value) load();
  }, 3000);
  return card("Logs", which, text, h("p", { class: "dim" }, "The last 64 KiB of a log. It follows new lines while it is scrolled to its end."));
}

function films(id, names, seen) {
  if (!names.length) return null;
  const box = h("div", { class: "films" });
  let source = "";
  const release = () => URL.revokeObjectURL(source); // the browser keeps a film in memory until then
  window.addEventListener("hashchange", release, { once: true });
  const show = async (name) => {
    seen.film = name;
    try {
      const found = await blob("/api/video", { id, name });
      release();
      source = URL.createObjectURL(found);
      const tag = found.type === "image/gif" ? h("img", { src: source, alt: name }) : h("video", { src: source, controls: true, muted: true });
      box.replaceChildren(h("figure", {}, tag, h("figcaption", {}, name)));
    } catch (problem) {
      box.textContent = problem.message;
    }
  };
  const buttons = names.slice(0, 50).map((name) => {
    const button = h("button", { type: "button", class: "chip", "data-film": name }, name);
    button.addEventListener("click", () => show(name));
    return button;
  });
  if (names.includes(seen.film)) show(seen.film);
  return card("Videos", h("div", { class: "chips" }, buttons), box, h("p", { class: "dim" }, "Videos of up to 64 MiB are played here."));
}
