"use strict";
// What is shown is kept in the address: suite, filter, tracks, order, task, the two plans, and the open card.
const suites = JSON.parse(document.getElementById("data").textContent);
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const FULLEST = 2; // times its memory that a device is drawn to hold
const state = {};

const bySelector = (where, selector) => [...where.querySelectorAll(selector)];
const sectionOf = (key) => document.getElementById("suite-" + key);
const suiteNow = () => suites.find((suite) => suite.key === state.suite) || suites[0];

const aPicture = document.createElement("template");
aPicture.innerHTML = "<svg></svg>";
const SVG = aPicture.content.firstChild.namespaceURI;

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "path", "text", "line"].includes(name);
  const found = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children.filter((child) => child !== null));
  return found;
}

// The address

function readAddress() {
  const told = new URLSearchParams(location.hash.slice(1));
  const suite = suites.some((one) => one.key === told.get("suite")) ? told.get("suite") : suites[0].key;
  const whole = (name) => (/^\d{1,6}$/.test(told.get(name) || "") ? Number(told.get(name)) : null);
  Object.assign(state, {
    suite,
    q: (told.get("q") || "").slice(0, 200),
    tracks: told.has("tracks") ? told.get("tracks").split(",") : ["search", "blind"],
    sort: told.get("sort") || "",
    down: told.get("down") === "1",
    task: whole("task"),
    a: whole("a"),
    b: whole("b"),
    card: whole("card"),
  });
}

function writeAddress(change) {
  Object.assign(state, change);
  const told = new URLSearchParams({ suite: state.suite });
  if (state.q) told.set("q", state.q);
  if (state.tracks.length < 2) told.set("tracks", state.tracks.join(","));
  if (state.sort) told.set("sort", state.sort);
  if (state.down) told.set("down", "1");
  for (const name of ["task", "a", "b", "card"]) if (state[name] !== null) told.set(name, state[name]);
  history.replaceState(null, "", "#" + told);
  show();
}

function show() {
  for (const suite of suites) sectionOf(suite.key).hidden = suite.key !== state.suite;
  for (const link of bySelector(document, "#suites a")) {
    const current = link.hash === "#suite=" + state.suite;
    current ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  const section = sectionOf(state.suite);
  showOrder(section);
  showFilter(section);
  showTask(section);
  showCard(section);
}

// Tables

function showOrder(section) {
  for (const head of bySelector(section, ".ranked th[data-key]")) {
    const sorted = head.dataset.key === (state.sort || "rank");
    sorted ? head.setAttribute("aria-sort", state.down ? "descending" : "ascending") : head.removeAttribute("aria-sort");
  }
  for (const body of bySelector(section, ".ranked tbody")) {
    const heads = bySelector(body.parentNode, "thead th");
    const column = heads.findIndex((head) => head.dataset.key === state.sort);
    const rank = (row) => Number(row.dataset.a);
    const value = (row) => (column < 0 ? rank(row) : row.cells[column].dataset.v);
    const number = (row) => (value(row) === "inf" ? Infinity : Number(value(row)));
    const words = state.sort === "agent";
    const compare = (x, y) =>
      words ? value(x).localeCompare(value(y)) : number(x) === number(y) ? 0 : number(x) - number(y);
    const rows = [...body.rows].sort((x, y) => (state.down ? -1 : 1) * compare(x, y) || rank(x) - rank(y));
    body.append(...rows);
    const grouped = state.sort === "" || state.sort === "rank";
    rows.forEach((row, i) => {
      const starts = i > 0 && row.cells[0].dataset.v !== rows[i - 1].cells[0].dataset.v;
      row.classList.toggle("group-start", grouped && starts);
    });
  }
}

function showFilter(section) {
  const box = section.querySelector("input[type=search]");
  if (box.value !== state.q) box.value = state.q;
  for (const one of bySelector(section, "input[data-track]")) one.checked = state.tracks.includes(one.dataset.track);
  const wanted = state.q.toLowerCase();
  const agents = suiteNow().agents;
  const fits = (agent) => agent.name.toLowerCase().includes(wanted) && state.tracks.includes(agent.track);
  for (const one of bySelector(section, ".ranked tr[data-a], .card, .mark, .line, .dots, text.name[data-a], .legend li[data-a]")) {
    one.toggleAttribute("hidden", !fits(agents[one.dataset.a]));
    if (one.namespaceURI.endsWith("svg")) one.style.display = one.hasAttribute("hidden") ? "none" : "";
  }
  for (const row of bySelector(section, ".strip g[data-a]")) row.classList.toggle("dim", !fits(agents[row.dataset.a]));
  for (const table of bySelector(section, "table[data-track]")) {
    table.parentNode.hidden = !state.tracks.includes(table.dataset.track);
  }
  const shown = agents.filter(fits).length;
  section.querySelector("output").textContent = shown === agents.length ? "" : `${shown} of ${agents.length} agents`;
}

function workTables(section) {
  section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  section.querySelector("input[type=search]").addEventListener("input", (event) => writeAddress({ q: event.target.value }));
  for (const box of bySelector(section, "input[data-track]")) {
    box.addEventListener("change", () => {
      writeAddress({ tracks: bySelector(section, "input[data-track]:checked").map((one) => one.dataset.track) });
    });
  }
  for (const button of bySelector(section, ".ranked thead button")) {
    button.addEventListener("click", () => {
      const key = button.parentNode.dataset.key;
      const again = key === (state.sort || "rank");
      writeAddress({ sort: key, down: again && !state.down });
    });
  }
  const mark = (event, on) => {
    const found = event.target.closest("[data-a]");
    if (found && section.contains(found) && !found.closest(".strip")) lightUp(section, found.dataset.a, on);
  };
  for (const kind of ["mouseover", "focusin"]) section.addEventListener(kind, (event) => mark(event, true));
  for (const kind of ["mouseout", "focusout"]) section.addEventListener(kind, (event) => mark(event, false));
  for (const table of bySelector(section, ".matrix")) {
    table.addEventListener("mouseover", (event) => tellChance(section, event.target.closest("td")));
  }
}

function lightUp(section, agent, on) {
  for (const one of bySelector(section, `[data-a="${agent}"]`)) one.classList.toggle("on", on);
  for (const chart of bySelector(section, ".chart")) {
    chart.classList.toggle("some-on", on && chart.querySelector(`[data-a="${agent}"]`) !== null);
  }
}

function tellChance(section, cell) {
  if (!cell || !cell.dataset.i) return;
  const names = bySelector(cell.closest("table"), "tbody th").map((head) => head.textContent.replace(/^\d+ /, ""));
  const row = names[cell.parentNode.sectionRowIndex];
  const column = names[cell.cellIndex - 1];
  const told = `is better than ${column} with a probability of ${cell.textContent} % (95 % interval ${cell.dataset.i} %).`;
  bySelector(section, ".detail")[0].replaceChildren(make("b", {}, row), " " + told);
}

// Cards

function showCard(section) {
  const card = state.card === null ? null : section.querySelector(`.card[data-a="${state.card}"]`);
  if (card) card.open = true;
}

function workCards(section) {
  for (const link of bySelector(section, ".ranked tbody th a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      writeAddress({ card: Number(link.closest("tr").dataset.a) });
      const card = document.getElementById(link.hash.slice(1));
      card.scrollIntoView({ block: "center" });
      card.querySelector("summary").focus({ preventScroll: true });
    });
  }
  for (const button of bySelector(section, ".copy")) {
    const { a } = button.closest("[data-a]").dataset;
    button.addEventListener("click", () => copy(section.querySelector(`.card[data-a="${a}"] .copy`).dataset.copy));
  }
}

async function copy(text) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = make("textarea", { class: "hidden-words" });
    box.value = text;
    document.body.append(box);
    box.select();
    done = document.execCommand("copy");
    box.remove();
  }
  say(done ? "Copied: " + (text.length > 80 ? text.slice(0, 79) + "…" : text) : "Copying is not allowed here.");
}

function say(words) {
  const place = document.getElementById("said");
  place.textContent = words;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 4000);
}

// Tasks

const percent = (gap) => `${gap < 0 ? "\u2212" : "+"}${(Math.abs(gap) / 100).toFixed(1)} %`;

function workStrip(section, suite) {
  const strip = section.querySelector(".strip");
  const rows = bySelector(strip, "g[data-a]");
  const [left, cell, high] = ["left", "cell", "row"].map((name) => Number(strip.dataset[name]));
  const cursor = make("rect", { class: "cursor", width: cell, height: high, hidden: "" });
  let at = { row: 0, task: state.task || 0 };
  const place = (box, row, task) => {
    rows[row].append(box);
    box.setAttribute("x", left + task * cell - 0.5);
    box.setAttribute("y", -1);
  };
  const move = (row, task) => {
    at = { row: Math.min(Math.max(row, 0), rows.length - 1), task: Math.min(Math.max(task, 0), suite.tasks.length - 1) };
    place(cursor, at.row, at.task);
    tellCell(section, suite, Number(rows[at.row].dataset.a), at.task);
  };
  const choose = () => {
    const agent = Number(rows[at.row].dataset.a);
    const other = state.b === null || state.b === agent ? (agent === 0 ? Math.min(1, rows.length - 1) : 0) : state.b;
    writeAddress({ task: at.task, a: agent, b: other });
  };
  const under = (event) => {
    const row = rows.indexOf(event.target.closest("g[data-a]"));
    const box = strip.getBoundingClientRect();
    const task = Math.floor((((event.clientX - box.left) / box.width) * strip.viewBox.baseVal.width - left) / cell);
    return row >= 0 && task >= 0 && task < suite.tasks.length ? [row, task] : null;
  };
  strip.setAttribute("tabindex", "0");
  strip.setAttribute("role", "application");
  strip.addEventListener("mousemove", (event) => under(event) && move(...under(event)));
  strip.addEventListener("click", (event) => under(event) && (move(...under(event)), choose()));
  strip.addEventListener("focus", () => move(at.row, at.task));
  strip.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (step) move(at.row + step[0], at.task + step[1]);
    else if (event.key === "Home" || event.key === "End") move(at.row, event.key === "Home" ? 0 : Infinity);
    else if (event.key === "Enter" || event.key === " ") choose();
    else return;
    event.preventDefault();
  });
}

function tellCell(section, suite, agent, task) {
  const { name, gaps, missed } = suite.agents[agent];
  const failed = missed.includes(task) ? ", no feasible plan in some run" : "";
  const told = ` on task ${task + 1}: ${percent(gaps[task])}${failed}`;
  section.querySelector(".strip-detail").replaceChildren(make("b", {}, name), told);
}

function markChosen(section, task, agents) {
  const strip = section.querySelector(".strip");
  bySelector(strip, ".chosen").forEach((one) => one.remove());
  const [left, width, height] = ["left", "cell", "row"].map((name) => Number(strip.dataset[name]));
  for (const agent of agents) {
    const box = { x: left + task * width - 0.5, y: -1, width, height };
    strip.querySelector(`g[data-a="${agent}"]`).append(make("rect", { class: "chosen", ...box }));
  }
}

function showTask(section) {
  const box = section.querySelector(".task");
  const suite = suiteNow();
  const open = suite.agents.length > 0 && state.task !== null && state.task < suite.tasks.length;
  box.classList.toggle("open", open);
  box.hidden = !open;
  if (!open) return suite.agents.length ? markChosen(section, 0, []) : null;
  const task = state.task;
  const count = suite.agents.length;
  const pair = [state.a ?? 0, state.b ?? Math.min(1, count - 1)].map((agent) => Math.min(agent, count - 1));
  markChosen(section, task, pair);
  const names = suite.agents.map((agent, i) => [i, agent.name]);
  const tasks = suite.tasks.map((hash, i) => [i, `${i + 1} (${hash.slice(0, 8)})`]);
  const focused = document.activeElement && box.contains(document.activeElement) ? document.activeElement.name : null;
  const choose = make(
    "div",
    { class: "choose" },
    chooser("Task", "task", tasks, task),
    chooser("Plan of", "a", names, pair[0]),
    chooser("beside that of", "b", names, pair[1]),
  );
  box.replaceChildren(make("h4", {}, `Task ${task + 1}`), choose, ...plansOf(suite, task, pair));
  if (focused) box.querySelector(`select[name="${focused}"]`).focus();
}

function chooser(label, name, options, chosen) {
  const select = make("select", { name });
  for (const [value, words] of options) select.append(new Option(words, value, false, value === chosen));
  select.addEventListener("change", () => writeAddress({ [name]: Number(select.value) }));
  return make("label", {}, label + " ", select);
}

function plansOf(suite, task, pair) {
  const kept = suite.plans[task];
  if (!kept) {
    const held = suite.plans.length;
    return [make("p", {}, held ? `This page holds the plans of the first ${held} tasks.` : "This page holds no plans of a measured judge.")];
  }
  const best = suite.best[task];
  const shown = pair.map((agent) => {
    const { name, gaps, missed } = suite.agents[agent];
    const failed = missed.includes(task) ? ", counted as a random plan in some run" : "";
    return { name, told: `${percent(gaps[task])} over all seeds${failed}`, costs: unpacked(suite, kept.plans[agent], kept.top, kept.slowest[agent]) };
  });
  if (kept.best) shown.push({ name: "Best known plan", told: `${best.toFixed(2)} ms`, costs: unpacked(suite, kept.best, kept.top, best) });
  const top = Math.max(kept.bound || 0, ...shown.filter((one) => one.costs).map((one) => Math.max(...one.costs.total)));
  const panels = shown.map((one) => panel(suite, one, top * 1.06 || 1, kept.bound));
  const why = suite.known[task] ? "The best known plan is not in this page; it takes" : "No best known plan is here; that of this run takes";
  const absent = kept.best ? null : make("p", {}, `${why} ${best.toFixed(2)} ms.`);
  return [make("div", { class: "panels" }, ...panels), legend(suite, kept.bound), absent, numbers(suite, shown)].filter(Boolean);
}

function unpacked(suite, text, top, makespan) {
  if (!text) return null;
  const count = suite.devices;
  const level = (i) => (DIGITS.indexOf(text[2 * i]) * 64 + DIGITS.indexOf(text[2 * i + 1])) / 4095;
  const row = (part, scale) => Array.from({ length: count }, (_, device) => level(part * count + device) * scale);
  const parts = suite.parts.map((_, part) => row(part, top));
  const total = parts[0].map((_, device) => parts.reduce((sum, part) => sum + part[device], 0));
  return { parts, total, makespan, memory: row(suite.parts.length, FULLEST) };
}

function panel(suite, { name, told, costs }, top, bound) {
  const head = [make("h4", {}, name), make("p", {}, told)];
  if (!costs) return make("div", {}, ...head, make("p", {}, "No plan."));
  const [width, left, right, above, below] = [340, 34, 336, 18, 190];
  const slot = (right - left) / suite.devices;
  const bar = Math.max(slot * 0.74, Math.min(slot, 1.5));
  const y = (ms) => below - (ms / top) * (below - above);
  const slowest = costs.total.indexOf(Math.max(...costs.total));
  const label = `${name}: device ${slowest} is the slowest with ${costs.makespan.toFixed(2)} ms`;
  const svg = make("svg", { viewBox: `0 0 ${width} 268`, role: "img", "aria-label": label });
  for (const ms of roundNumbers(top)) {
    svg.append(make("path", { class: "grid", d: `M${left} ${y(ms)}H${right}` }));
    svg.append(make("text", { x: left - 6, y: y(ms) + 4, "text-anchor": "end" }, String(ms)));
  }
  const memory = [214, 250]; // a full device, and an empty one
  for (let device = 0; device < suite.devices; device++) {
    const x = left + device * slot + (slot - bar) / 2;
    let under = 0;
    suite.parts.forEach((_, part) => {
      const ms = costs.parts[part][device];
      svg.append(make("rect", { class: "p" + colourOf(suite, part), x, width: bar, y: y(under + ms), height: (ms / top) * (below - above) }));
      under += ms;
    });
    const held = costs.memory[device];
    const high = Math.min(held, 1.25) * (memory[1] - memory[0]);
    svg.append(make("rect", { class: held > 1 ? "over" : "memory", x, width: bar, y: memory[1] - high, height: high }));
  }
  svg.append(make("path", { class: "axis", d: `M${left} ${below}H${right}M${left} ${memory[1]}H${right}` }));
  svg.append(make("path", { class: "grid", d: `M${left} ${memory[0]}H${right}` }));
  svg.append(make("text", { x: left - 6, y: memory[0] + 4, "text-anchor": "end" }, "full"));
  svg.append(make("text", { x: left, y: 10 }, "ms"), make("text", { x: left, y: memory[0] - 6 }, "memory"));
  svg.append(make("text", { x: right, y: 266, "text-anchor": "end" }, `devices 0 to ${suite.devices - 1}`));
  const over = left + (slowest + 0.5) * slot;
  const anchor = over < left + 60 ? "start" : over > right - 60 ? "end" : "middle";
  svg.append(make("text", { class: "name", x: over, y: y(costs.total[slowest]) - 5, "text-anchor": anchor }, costs.makespan.toFixed(2)));
  if (bound) svg.append(make("path", { class: "bound", d: `M${left} ${y(bound)}H${right}` }));
  return make("div", {}, ...head, svg);
}

function colourOf(suite, part) {
  return suite.parts.length === 2 ? [0, 4][part] : part;
}

function roundNumbers(top) {
  const power = 10 ** Math.floor(Math.log10(top / 4));
  const step = [1, 2, 5, 10].map((m) => m * power).find((one) => top / one <= 5);
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

function legend(suite, bound) {
  const items = suite.parts.map((name, part) => make("li", {}, make("i", { class: "p" + colourOf(suite, part) }), name));
  items.push(make("li", {}, make("i", { class: "memory" }), "memory in use"));
  if (bound) items.push(make("li", {}, `dashed line: no plan is faster than ${bound.toFixed(2)} ms`));
  return make("ul", { class: "legend" }, ...items);
}

function numbers(suite, shown) {
  const tables = shown.filter((one) => one.costs).map(({ name, costs }) => {
    const heads = ["device", ...suite.parts, "total ms", "memory"].map((word) => make("th", { scope: "col" }, word));
    const rows = costs.total.map((total, device) => {
      const cells = [...costs.parts.map((part) => part[device].toPrecision(3)), total.toPrecision(3), Math.round(100 * costs.memory[device]) + " %"];
      return make("tr", {}, make("th", { scope: "row" }, String(device)), ...cells.map((text) => make("td", {}, text)));
    });
    const table = make("table", {}, make("caption", {}, name), make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
    return make("div", { class: "scroll" }, table);
  });
  return make("details", {}, make("summary", {}, "The same as numbers"), ...tables);
}

// Light and dark

function workTheme() {
  const button = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme || "auto") + 1) % themes.length];
    next === "auto" ? delete document.documentElement.dataset.theme : (document.documentElement.dataset.theme = next);
    button.textContent = "Theme: " + next;
  });
}

document.documentElement.classList.add("script");
readAddress();
workTheme();
for (const suite of suites) {
  const section = sectionOf(suite.key);
  workTables(section);
  workCards(section);
  if (suite.agents.length) workStrip(section, suite);
}
show();
addEventListener("hashchange", () => {
  readAddress();
  show();
});
