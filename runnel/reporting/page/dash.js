import { get } from "./api.js";
import { h } from "./elements.js";
import { comparePage } from "./compare.js";
import { listPage } from "./list.js";
import { place } from "./place.js";
import { runPage } from "./run.js";

// The page in sight is chosen by what follows `#`, and asks for news from time to time.

const EVERY_MS = 2000;
const main = document.getElementById("main");
const state = document.getElementById("state");
let page = null;
let timer = 0;

function chosen() {
  const { name, ids } = place();
  if (name === "run" && ids[0]) return runPage(ids.join("/"));
  if (name === "compare" && ids.some(Boolean)) return comparePage(ids.filter(Boolean));
  return listPage();
}

async function refresh(own) {
  clearTimeout(timer);
  try {
    if (!document.hidden) await own.refresh(get);
    if (own === page) state.textContent = "";
  } catch (problem) {
    if (own === page) state.textContent = String(problem.message || problem);
  }
  if (own === page) timer = setTimeout(refresh, EVERY_MS, own);
}

function open() {
  page = chosen();
  main.replaceChildren(page.element);
  main.dataset.ready = "";
  refresh(page).then(() => (main.dataset.ready = "yes"));
  window.scrollTo(0, 0);
}

window.addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => !document.hidden && page && refresh(page));
main.append(h("p", { class: "dim" }, "loading"));
open();
