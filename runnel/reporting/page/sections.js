import { card, duration, h, isNumber, look, percent, pill, sample, short, table, whole } from "./elements.js";
import { chart, overTime, smoothed } from "./chart.js";
import { planPicture } from "./plan.js";
import { timeline } from "./timeline.js";

// Each section is a function of the view: what it returns depends on nothing else, so it is drawn again only where
// its part of the view has changed.

const FIRST = ["mean_return", "eval/return", "steps_per_second", "staleness_mean"];
export const BANDS =
  "Lines: the interquartile mean of members. Shaded: between their quartiles, where half of the members are. " +
  "(runnel plot shades the 95% confidence interval of the mean.)";
const MOST_GROUPS = 12;
const OF_TIME = new Set(["env_steps", "iterations", "wall_seconds", "eval/env_steps", "updates", "episodes"]);

export function header(view) {
  const about = view.about ?? {};
  const from = view.kind === "run" ? {} : view.result;
  const what = ["algorithm", "environment", "distribution"].map((name) => from[name] || about[name]).filter(Boolean);
  const count = view.members?.length;
  const names = { members: `${count} members`, population: `population of ${count}`, sweep: `sweep, ${count} members` };
  return h(
    "div",
    { class: "title" },
    h("h1", {}, view.name, " ", pill(view.status)),
    h("p", { class: "dim" }, [names[view.kind], ...what, about.seed && `seed ${about.seed}`].filter(Boolean).join(" · ")),
    view.result.reason && h("p", { class: "notice bad" }, view.result.reason),
    view.problems.length > 0 && h("p", { class: "notice" }, "cannot be read: ", view.problems.join("; ")),
  );
}

export function summary(view) {
  const now = view.status === "running" ? { ...view.result, ...view.now } : { ...view.now, ...view.result };
  const steps = view.about?.steps;
  if (view.kind !== "run") delete now.mean_return; // of the members' returns, other numbers are shown
  const tiles = [
    [view.kind === "run" ? "environment steps" : "steps, all members", isNumber(steps) && steps > 0 ? `${short(now.env_steps)} of ${short(steps)}` : short(now.env_steps)],
    ["mean return", short(now.mean_return)],
    ...(view.kind === "run" ? [] : returnsOf(view, now)),
    [view.kind === "run" ? "steps per second" : "steps/s, all members", short(now.steps_per_second)],
    ["time", duration(now.wall_seconds)],
    ["updates", short(now.updates)],
    ["episodes", short(now.episodes)],
    ["staleness", now.staleness_max > 0 ? `${short(now.staleness_mean)}, highest ${short(now.staleness_max)}` : "–"],
    ["restarts", short(now.restarts)],
    ["members finished", isNumber(now.members) ? `${now.finished} of ${now.members}` : "–"],
  ].filter(([name, value]) => value !== "–" && !(name === "restarts" && value === "0"));
  const parts = [h("dl", { class: "tiles" }, tiles.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))];
  if (isNumber(steps) && isNumber(now.env_steps) && view.status === "running") {
    parts.push(h("progress", { max: steps, value: Math.min(steps, now.env_steps), "aria-label": "environment steps" }));
  }
  const whose = view.of_member ? `Bottleneck of ${view.of_member}: ` : "Bottleneck: ";
  if (view.usage?.bottleneck) parts.push(h("p", { class: "notice tip-line" }, h("b", {}, whose), view.usage.bottleneck));
  return card("", parts);
}

function returnsOf(view, now) {
  const [low, high] = now.iqm_interval ?? [];
  if (view.status === "running" || !isNumber(now.iqm_return)) return [["median return", short(now.median_return)]];
  const words = isNumber(low) && isNumber(high) ? `${short(now.iqm_return)} (${short(low)} to ${short(high)})` : short(now.iqm_return);
  return [["interquartile mean of returns, 95% interval", words]];
}

export function metricNames(view) {
  const found = view.kind === "run" ? (view.curves?.columns ?? {}) : (view.bands ?? {});
  const names = Object.keys(found).filter((name) => !OF_TIME.has(name));
  const values = (name) => seriesOf(view, name).flatMap((one) => one.y.filter(isNumber));
  const still = new Set(names.filter((name) => new Set(values(name)).size < 2)); // such as restarts, where there were none
  const order = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : name.includes("loss") ? 10 : 20) + (still.has(name) ? 100 : 0);
  return names.sort((a, b) => order(a) - order(b) || a.localeCompare(b));
}

// The series that show a metric: that of a run, or the bands of several.
export function seriesOf(view, metric) {
  if (view.kind !== "run") {
    const bands = Object.hasOwn(view.bands, metric) ? view.bands[metric] : [];
    return bands.map((band) => ({ ...band, name: bandName(band), x: band.steps, y: band.values }));
  }
  const { steps, columns, returns } = view.curves;
  if (metric === "mean_return" && returns.length) return [{ name: metric, x: returns.map((p) => p[0]), y: returns.map((p) => p[1]) }];
  return [{ name: metric, x: steps, y: Object.hasOwn(columns, metric) ? columns[metric] : [] }];
}

function bandName({ name, members }) {
  const count = `${members} member${members === 1 ? "" : "s"}`;
  return name ? `${name} (${count})` : count;
}

export function withSmoothing(series, weight) {
  if (!weight) return series;
  return series.flatMap((one, number) => {
    const colour = one.colour ?? number;
    const [y, low, high] = [one.y, one.low, one.high].map((values) => values && smoothed(values, weight));
    return [{ ...one, colour, faint: true, low: null, high: null }, { ...one, colour, y, low, high }];
  });
}

export function clockOf(view) {
  return view.kind === "run" ? { steps: view.curves.steps, seconds: view.curves.columns.wall_seconds ?? [] } : view.clock;
}

export function curves(view, chosen, weight, timed = false) {
  const over = (series) => (timed ? overTime(series, clockOf(view)) : series);
  const drawn = chosen.map((metric) => [metric, seriesOf(view, metric)]);
  const charts = drawn.map(([metric, series]) => h("figure", {}, chart(over(withSmoothing(series, weight)), { yName: metric, height: 210, timed })));
  const several = view.kind !== "run" && drawn.length > 0;
  return [
    h("div", { class: "charts" }, charts),
    several && legend(drawn.map(([, series]) => series).reduce((a, b) => (b.length > a.length ? b : a))),
    several && h("p", { class: "dim" }, BANDS),
  ];
}

export function legend(series) {
  return h("ul", { class: "legend" }, series.map((one, i) => h("li", {}, sample(look(one, i)), one.name)));
}

export function plan(view) {
  const whose = view.of_member ? `Plan of each member, with what was measured of ${view.of_member}` : "Plan";
  return view.plan && card(whose, planPicture(view.plan));
}

export function workers(view) {
  const rows = view.usage?.workers ?? [];
  if (!rows.length) return null;
  const waits = (row) => Object.entries(row.waits ?? {}).map(([cause, seconds]) => `${cause} ${duration(seconds)}`).join(", ");
  const phases = (row) => Object.entries(row.phases ?? {}).map(([name, seconds]) => `${name} ${duration(seconds)}`).join(", ");
  const counted = (row) => (isNumber(row.env_steps) ? `${whole(row.env_steps)} steps` : isNumber(row.updates) ? `${whole(row.updates)} updates` : "");
  const columns = [
    { name: "worker", cell: (row) => [row.name, row.host && h("span", { class: "dim" }, ` ${row.host}`)] },
    { name: "busy", cell: (row) => meter(row.busy) },
    { name: "counted", cell: counted },
    { name: "waited for, or spent", cell: (row) => waits(row) || phases(row) },
  ];
  return card(view.of_member ? `Workers of ${view.of_member}` : "Workers", table(columns, rows), streams(view));
}

function streams(view) {
  const rows = view.usage?.streams ?? [];
  if (!rows.length) return null;
  const carries = { unroll: "unrolls", request: "observations", reply: "actions", value: "values" };
  const columns = [
    { name: "stream", cell: (row) => `${row.source} → ${row.target}` },
    { name: "carries", cell: (row) => carries[row.kind] ?? row.kind },
    { name: "filled", cell: (row) => meter(row.fill) },
    { name: "messages/s", numeric: true, cell: (row) => short(row.messages_per_second) },
    { name: "MB/s", numeric: true, cell: (row) => short(row.megabytes_per_second) },
  ];
  return [h("h3", {}, "Streams"), table(columns, rows)];
}

function meter(share) {
  if (!isNumber(share)) return "–";
  return h("span", { class: "meter" }, h("meter", { min: 0, max: 1, value: share }), " ", percent(share));
}

export function faults(view) {
  return view.events.length > 0 && card("Faults and events", timeline(view.events, spanOf(view)));
}

const LOOK_MS = 10_000; // the line of a run in progress grows in steps of this: it is drawn again with each

// When a run was started, and when it ended, in milliseconds, as far as that is known. Of one in progress: until now.
export function spanOf(view) {
  const starts = view.starts.map((start) => Date.parse(start.time)).filter(Number.isFinite);
  if (view.status === "running") return [...starts, LOOK_MS * Math.ceil(Date.now() / LOOK_MS)];
  return isNumber(view.until) ? [...starts, 1000 * view.until] : starts;
}

export function evaluationResults(view) {
  const found = view.evaluations ?? [];
  if (!found.length) return null;
  const x = found.map((one) => one.env_steps);
  const groups = [...new Set(found.flatMap((one) => Object.keys(one.group_returns ?? {})))].slice(0, MOST_GROUPS);
  const series = {
    name: groups.length ? "all groups" : "evaluation", x, y: found.map((one) => one.mean_return),
    low: found.map((one) => one.return_interval[0]), high: found.map((one) => one.return_interval[1]), colour: 1,
  };
  const last = found.at(-1);
  const ofGroup = (name) => found.map((one) => (Object.hasOwn(one.group_returns ?? {}, name) ? one.group_returns[name] : null));
  const all = [series, ...groups.map((name, i) => ({ name, x, y: ofGroup(name), colour: i + 2 }))];
  const words = `Newest: ${short(last.mean_return)} over ${last.episodes} episodes, after ${whole(last.env_steps)} steps. Band: 95% interval.`;
  const columns = [{ name: "group", cell: (row) => row.name }, { name: "mean return, newest", numeric: true, cell: (row) => short(row.y.at(-1)) }];
  return card(
    "Evaluations",
    chart(all, { yName: "mean return", height: 210 }),
    groups.length > 0 && [legend(all), table(columns, all.slice(1), { class: "groups" })],
    h("p", { class: "dim" }, words),
  );
}

export function payoffMatrices(view) {
  const found = view.payoffs ?? [];
  return found.length > 0 && card("Policies against each other", found.map(payoffTable));
}

function payoffTable({ role, players, opponents, scores, ratings, intervals, games }) {
  const interval = (i) => {
    const [low, high] = intervals?.[i] ?? [];
    return isNumber(low) && isNumber(high) && low < high ? ` (${Math.round(low)} to ${Math.round(high)})` : "";
  };
  const cell = (score, count) =>
    h("td", { class: isNumber(score) ? `score s${Math.round(10 * Math.min(1, Math.max(0, score)))}` : "", title: `${count} games` }, isNumber(score) ? score.toFixed(2) : "");
  const head = h("tr", {}, h("th", {}, "score of, against"), opponents.map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col" }, "rating, 95% interval"));
  const rows = players.map((name, i) =>
    h("tr", {}, h("th", { scope: "row" }, name), scores[i].map((score, j) => cell(score, games[i][j])), h("td", { class: "numeric rating" }, short(ratings[i]), h("span", { class: "dim" }, interval(i)))),
  );
  return [role && h("h3", {}, role), h("div", { class: "scroll" }, h("table", { class: "payoffs" }, h("thead", {}, head), h("tbody", {}, rows)))];
}

export function lineageOf(view) {
  const found = view.lineage;
  if (!found || !found.rounds.length) return null;
  const members = found.first.length;
  const names = [...new Set(found.first.flatMap((one) => Object.keys(one)))].slice(0, 4);
  const charts = names.map((name) => {
    const series = Array.from({ length: Math.min(members, 32) }, (_, m) => ({
      name: `member ${m}`,
      x: [0, ...found.rounds.map((round) => round.env_steps)],
      y: [found.first[m][name], ...found.rounds.map((round) => round.settings[m]?.[name])],
    }));
    return h("figure", {}, chart(series, { yName: name, height: 190 }));
  });
  const columns = [
    { name: "round", numeric: true, cell: (row) => row.round },
    { name: "steps", numeric: true, cell: (row) => whole(row.env_steps) },
    { name: "copies", cell: (row) => row.parents.map((parent, m) => (parent === m ? "" : `${m} from ${parent}`)).filter(Boolean).join(", ") || "none" },
  ];
  return card("Lineage", h("div", { class: "charts" }, charts), table(columns, [...found.rounds].reverse().slice(0, 40)));
}

export function trials(view) {
  const found = Array.isArray(view.result.trials) ? view.result.trials.filter((one) => one && typeof one === "object") : [];
  if (!found.length) return null;
  const columns = [
    { name: "trial", numeric: true, cell: (row) => row.trial },
    { name: "status", cell: (row) => row.status },
    { name: "objective", numeric: true, cell: (row) => short(row.objective) },
    { name: "settings", cell: (row) => pairs(row.settings) },
  ];
  const ranked = [...found].sort((a, b) => (b.objective ?? -Infinity) - (a.objective ?? -Infinity));
  return card("Trials, the best first", table(columns, ranked.slice(0, 200)));
}

function pairs(settings) {
  return Object.entries(settings ?? {}).map(([name, value]) => `${name}=${typeof value === "number" ? short(value) : value}`).join(", ");
}

// `pick`: {names, compare}: the directories that are selected, and what compares them; a report has neither.
export function memberTable(view, link, pick) {
  const found = view.members ?? [];
  if (!found.length) return null;
  const compare = pick && h("button", { type: "button", class: "button", "data-key": "compare members", onclick: () => pick.compare() });
  const update = () => {
    compare.textContent = pick.names.size ? `Compare ${pick.names.size}` : "Compare selected members";
    compare.disabled = !pick.names.size;
  };
  const box = (row) => {
    const element = h("input", { type: "checkbox", checked: pick.names.has(row.directory), "aria-label": `select ${row.directory}` });
    element.addEventListener("change", () => {
      element.checked ? pick.names.add(row.directory) : pick.names.delete(row.directory);
      update();
    });
    return element;
  };
  if (pick) update();
  const columns = [
    ...(pick ? [{ name: "", cell: box }] : []),
    { name: "member", cell: (row) => (link ? h("a", { href: link(row.directory) }, row.directory) : row.directory) },
    { name: "seed", numeric: true, cell: (row) => row.seed },
    { name: "status", cell: (row) => [row.status === "gone" ? "ended without a result" : (row.status ?? ""), row.reason && h("span", { class: "dim" }, ` ${row.reason}`)] },
    { name: "steps", numeric: true, cell: (row) => whole(row.env_steps) },
    { name: "return", numeric: true, cell: (row) => short(row.return) },
    ...(found.some((row) => Object.keys(row.settings).length) ? [{ name: "settings", cell: (row) => pairs(row.settings) }] : []),
  ];
  const winner = view.winner && link && h("p", {}, h("a", { href: link("winner") }, "the best settings, trained again on unseen seeds"));
  return card("Members", winner, compare && h("div", { class: "bar" }, compare), table(columns, found, { class: "members" }), view.notes.map((words) => h("p", { class: "dim" }, words)));
}

export function settingsOf(view) {
  const about = view.about ?? {};
  const rows = Object.entries({ ...(about.asked ?? {}), ...(about.settings ?? {}) });
  if (!rows.length) return null;
  const pair = ([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("code", {}, value)));
  return card("Settings", h("dl", { class: "pairs" }, rows.map(pair)));
}

export function reproduce(view) {
  const start = view.starts[0] ?? {};
  const versions = Object.entries(start.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
  const lines = [view.command, view.again && view.again !== view.command ? `# every setting as recorded:\n${view.again}` : ""].filter(Boolean);
  const machine = start.machine ?? {};
  return card(
    "Train it again",
    lines.length > 0 && h("pre", { tabindex: "0" }, lines.join("\n")),
    view.config && h("details", {}, h("summary", {}, "config.json"), h("pre", { tabindex: "0" }, JSON.stringify(view.config, null, 2))),
    versions && h("p", { class: "dim" }, versions),
    machine.system && h("p", { class: "dim" }, `${machine.system}, ${machine.cpus} CPUs; started ${start.time}`),
    h("p", { class: "dim" }, view.directory),
  );
}
