import { h } from "./elements.js";
import { metricPanel } from "./panel.js";
import { evaluationResults, faults, header, lineageOf, memberTable, payoffMatrices, plan, reproduce, settingsOf, summary, trials, workers } from "./sections.js";

// The page of a report: everything is in the file.
const view = JSON.parse(document.getElementById("view").textContent);
document.title = `${view.name} - Runnel`;
document.getElementById("main").append(
  ...[
    header(view),
    summary(view),
    metricPanel(() => view),
    lineageOf(view),
    trials(view),
    memberTable(view),
    plan(view),
    workers(view),
    evaluationResults(view),
    payoffMatrices(view),
    faults(view),
    settingsOf(view),
    reproduce(view),
    h("p", { class: "dim foot" }, "Written by Runnel at the end of the run. It needs no network."),
  ].filter(Boolean),
);
