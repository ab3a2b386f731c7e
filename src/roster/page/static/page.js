// The page: a list of groups, or one group, both told by server-sent events. It asks this server alone.
import { chart, count, h, noun, rate, span, spark, strip, time, trend } from "./draw.js";

const $ = (id) => document.getElementById(id);
const main = $("main"), dialog = $("partition"), root = document.documentElement;
const MORE = 100, TREND = 40;
const MOVING = ["PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"];
let source = null, view = null, only = null, retry = 0;

// Dark and light: as the system has it, until somebody chooses.
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(chosen) {
  if (chosen) localStorage.setItem("theme", chosen);
  const now = localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
  root.dataset.theme = now;
  $("theme").textContent = now === "dark" ? "☀ Light" : "☾ Dark";
  view?.redraw?.();
}
$("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme());

function live(text, kind = "") {
  if ($("live").textContent !== text) $("live").textContent = text;
  $("live").className = kind;
}
const stateOf = (state) => h("span", { class: `state ${MOVING.includes(state) ? "moving" : state === "Stable" ? "" : state && state !== "Dead" ? "idle" : "gone"}` }, state || "no such group");
const fact = (name, value, kind = "") => h("div", {}, h("b", { class: `${kind} ${value.length > 9 ? "long" : ""}` }, value), h("span", {}, name));
const ages = (seconds) => (seconds > 600 ? "bad" : seconds > 60 ? "warn" : "");

function connect() {
  source?.close();
  clearTimeout(retry);
  source = null;
  if (!view || document.hidden) return;
  live("connecting", "warn");
  const from = (source = new EventSource(view.url));
  for (const kind of ["state", "change"]) {
    from.addEventListener(kind, (event) => { live("live"); view.take(JSON.parse(event.data), kind === "state"); });
  }
  from.onerror = () => {
    live("the server does not answer", "bad");
    if (from.readyState !== EventSource.CLOSED || from !== source) return;
    fetch(view.url.replace("/live?", "/group?").replace(/live$/, "groups")).then((answer) => {
      if (answer.status === 401) location.reload();  // the browser asks for the token
      else if (answer.status === 404) main.replaceChildren(h("p", { class: "empty" }, "This server does not watch that group. ", h("a", { href: "#" }, "All groups")));
      else throw new Error(answer.status);
    }).catch(() => { retry = setTimeout(connect, 2000); });
  };
}

// All groups.
function groupsView() {
  const rows = new Map(), body = h("tbody"), facts = h("div", { class: "tiles" }), note = h("div"), more = h("p", { class: "bar" });
  let head = {}, shown = MORE, by = "lag", down = true;
  const find = h("input", { type: "search", placeholder: "Find a group", "aria-label": "Find a group", oninput: () => { shown = MORE; order(); } });
  const states = h("select", { "aria-label": "State", onchange: () => order() }, ...["All states", "With lag", "Rebalancing", "Stable", "Empty"].map((text) => h("option", {}, text)));
  const columns = [["name", "Group"], ["state", "State"], ["members", "Members"], ["lag", "Lag"], [null, "Over time"], ["seconds", "Behind by"], [null, "Trend"], ["rebalances", "Rebalances"]];
  const heads = columns.map(([key, text]) => h("th", { scope: "col", class: ["members", "lag", "seconds", "rebalances"].includes(key) ? "num" : "" },
    key ? h("button", { type: "button", onclick: () => { down = by === key ? !down : key !== "name"; by = key; order(); } }, text) : text));
  const keep = { "All states": () => true, "With lag": (row) => row.lag > 0, Rebalancing: (row) => MOVING.includes(row.state), Stable: (row) => row.state === "Stable", Empty: (row) => row.state === "Empty" };
  const table = h("table", { class: "groups" }, h("thead", {}, h("tr", {}, ...heads)), body);

  function rowOf(name) {
    const cells = columns.map(([key, text]) => h("td", { class: key === "name" ? "name" : ["members", "lag", "seconds", "rebalances"].includes(key) ? "num" : text === "Over time" ? "spark" : text === "Trend" ? "trend" : "", "data-label": key === "name" || key === "state" || !key ? null : text }));
    cells[0].append(h("a", { href: `#group=${encodeURIComponent(name)}`, title: name }, name));
    return { cells, tr: h("tr", {}, ...cells) };
  }
  function draw(row) {
    if (!row.tr) Object.assign(row, rowOf(row.name));
    const { cells } = row, [text, kind] = trend(row);
    const values = [null, stateOf(row.state), count(row.members), count(row.lag), row.trend.length > 1 && row.trend.some(Boolean) ? spark(row.trend) : "", row.seconds === null ? "–" : span(row.seconds), h("span", { class: kind }, text), row.rebalances ? count(row.rebalances) : ""];
    values.forEach((value, index) => { if (index) cells[index].replaceChildren(value ?? ""); });
    cells[5].className = `num ${ages(row.seconds)}`;
    cells[1].append(...(row.kind && row.kind !== "classic" ? [h("small", { class: "soft" }, ` ${row.kind}`)] : []), ...(row.trouble ? [h("small", { class: "warn", title: row.trouble }, " ⚠ ", row.trouble.slice(0, 60))] : []));
  }
  function order() {
    const wanted = find.value.toLowerCase();
    const found = [...rows.values()].filter((row) => row.name.toLowerCase().includes(wanted) && keep[states.value](row));
    const sign = down ? -1 : 1, value = (row) => row[by] ?? -1;
    found.sort((a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : a.name < b.name ? -1 : 1));
    const visible = found.slice(0, shown);
    visible.forEach(draw);
    const trs = visible.map((row) => row.tr), focused = document.activeElement;
    if (trs.length !== body.children.length || trs.some((tr, index) => body.children[index] !== tr)) {
      body.replaceChildren(...trs);
      if (body.contains(focused)) focused.focus();
    }
    heads.forEach((th, index) => th.setAttribute("aria-sort", columns[index][0] === by ? (down ? "descending" : "ascending") : "none"));
    more.replaceChildren(h("span", { class: "soft" }, `${count(visible.length)} of ${count(found.length)} groups`), found.length > shown ? h("button", { type: "button", onclick: () => { shown += 2 * MORE; order(); } }, "Show more") : "");
    if (!rows.size) body.replaceChildren(h("tr", {}, h("td", { colspan: columns.length, class: "empty" }, head.at ? "The cluster has no consumer groups yet, or none that --groups names." : "Looking at the cluster…")));
  }
  function take(told, whole) {
    head = told.head;
    only = head.only;
    if (only !== null) return location.replace(`#group=${encodeURIComponent(only)}`);
    if (whole) rows.clear();
    for (const name of told.gone ?? []) rows.delete(name);
    for (const [name, values] of Object.entries(told.groups)) {
      if (!rows.has(name)) rows.set(name, { trend: [] });
      Object.assign(rows.get(name), { name, lag: null, seconds: null, read: null, written: null, trouble: "" }, values);
    }
    for (const row of rows.values()) row.trend = whole ? (told.trends[row.name] ?? []) : [...row.trend, row.lag].slice(-TREND);
    const all = [...rows.values()], sum = (of) => all.reduce((total, row) => total + of(row), 0), oldest = Math.max(0, ...all.map((row) => row.seconds ?? 0));
    facts.replaceChildren(fact("groups", count(all.length)), fact("rebalancing", count(sum((row) => MOVING.includes(row.state)))), fact("with lag", count(sum((row) => row.lag > 0))), fact("records behind", count(sum((row) => row.lag ?? 0))), fact("behind by at most", span(oldest), ages(oldest)));
    note.replaceChildren(head.error ? h("p", { class: "card note", role: "alert" }, h("b", {}, "The cluster does not answer. "), "What is shown is what was seen last. ", h("span", { class: "soft" }, head.error)) : "");
    $("crumbs").replaceChildren(head.bootstrap);
    order();
    if (!main.contains(table)) main.replaceChildren(note, facts, h("section", { class: "card", "aria-label": "Groups" }, h("div", { class: "bar" }, find, states), table, more));
  }
  document.title = "Groups – Roster";
  return { url: "/page/live", take, redraw: () => order() };
}

// One group.
function groupView(name) {
  const doc = { points: [], events: [], all_rows: [] }, strips = new Map(), parts = {};
  let shown = MORE, opened = null;
  for (const id of ["title", "note", "tiles", "charts", "members", "tasks", "rebalances", "events", "table"]) parts[id] = h("div");
  const find = h("input", { type: "search", placeholder: "topic or number", "aria-label": "Find a partition", oninput: () => { shown = MORE; table(); } });
  const page = [parts.title, parts.note, parts.tiles, parts.charts, section("Who reads what", parts.members), parts.tasks,
    h("div", { class: "pair" }, section("Rebalances", parts.rebalances), section("Events", parts.events)), section("Partitions, those furthest behind first", h("div", { class: "bar" }, find), parts.table)];
  parts.tiles.className = "tiles"; parts.charts.className = "pair";
  function section(title, ...children) { return h("section", { class: "card" }, h("h2", {}, title), ...children); }
  const rowOf = ([topic, number, owner, committed, end, lag, seconds, read]) => ({ topic: doc.topics[topic], number, owner: doc.members[owner], committed, end, lag, seconds, read });
  const label = (row) => `${row.topic} ${row.number}: ${row.lag === null ? "lag not known" : `lag ${count(row.lag)}`}${row.seconds ? `, ${span(row.seconds)} behind` : ""}${row.owner ? `, ${row.owner.name}${row.owner.left ? " (gone)" : ""}` : ", no owner"}`;
  const mark = (member, small) => { const made = h("span", { class: `mark ${small}`, "aria-hidden": "true" }, member?.mark ?? "–"); made.style.setProperty("--colour", member ? `var(--c${member.colour})` : "var(--soft)"); return made; };

  function headline() {
    const { head } = doc;
    const by = [doc.kind && `${doc.kind} group`, head.protocol && `assignor ${head.protocol}`, head.epoch !== null ? `epoch ${head.epoch}` : head.generation !== null && `generation ${head.generation} or later`, head.coordinator && `coordinator ${head.coordinator}`, head.results && `results ${head.results}`];
    parts.title.replaceChildren(h("h1", {}, name), h("p", {}, stateOf(head.state), " ", h("span", { class: "soft" }, by.filter(Boolean).join(" · "))));
    const notes = [head.away && ["Its coordinator does not answer.", `What is shown is what was seen last. ${head.away}`], !head.state && !head.away && ["There is no such group now.", "It was deleted, or its first member is yet to join."], head.trouble && !head.away && ["Not all could be read.", head.trouble], head.lost && ["Records are lost.", `Retention deleted ${count(head.lost)} before the group had read them.`]];
    parts.note.replaceChildren(...notes.filter(Boolean).map(([bold, text]) => h("p", { class: "card note", role: "alert" }, h("b", {}, bold), " ", text)));
    const [text, kind] = trend(head);
    parts.tiles.replaceChildren(fact(head.unknown ? `records behind; ${count(head.unknown)} ${noun(head.unknown, "partition")} not known` : "records behind", count(head.lag)), fact("behind by", span(head.seconds), ages(head.seconds)), fact("trend", text || "–", kind), fact("read", rate(head.read)), fact("written", rate(head.written)), fact(noun(head.members, "member"), count(head.members)), fact(noun(doc.all_rows.length, "partition"), count(doc.all_rows.length)));
  }
  function charts() {
    const bands = doc.rebalances.map((each) => [each.began, each.ended ?? doc.head.at]);
    const column = (number) => doc.points.map((point) => [point[0], point[number]]);
    parts.charts.replaceChildren(h("div", { class: "card" }, chart("Lag", [["records", column(1)]], bands, count)), h("div", { class: "card" }, chart("Records a second", [["written", column(3)], ["read", column(2)]], bands, rate)));
  }
  function members() {
    const owned = new Map(), most = Math.max(1, ...doc.all_rows.map((row) => row[5] ?? 0)), split = doc.topics.length > 1 && doc.topics.length <= 12;
    for (const row of doc.all_rows) {
      const topic = split ? row[0] : -1;
      if (!owned.has(row[2])) owned.set(row[2], new Map());
      if (!owned.get(row[2]).has(topic)) owned.get(row[2]).set(topic, []);
      owned.get(row[2]).get(topic).push(row);
    }
    const draws = [], made = [...doc.members.map((member, index) => [member, index]), ...(owned.has(-1) ? [[null, -1]] : [])].map(([member, index]) => {
      const has = owned.get(index) ?? new Map(), lag = member?.lag ?? [...has.values()].flat().reduce((sum, row) => sum + (row[5] ?? 0), 0);
      const cells = [...has].map(([topic, rows]) => {
        const key = `${member?.id ?? ""} ${topic}`;
        if (!strips.has(key)) strips.set(key, strip((row) => label(rowOf(row)), (row) => open(doc.topics[row[0]], row[1])));
        draws.push([strips.get(key), rows, member ? `--c${member.colour}` : "--soft", member?.name ?? "no member"]);
        return [topic >= 0 ? h("small", { class: "soft" }, doc.topics[topic]) : null, strips.get(key).canvas];
      });
      const who = member ? h("div", {}, h("b", { title: member.id }, member.name), h("br"), h("small", { class: "soft" }, member.left ? "gone; its partitions wait" : `${count(member.partitions)} partitions · lag ${count(lag)} · ${rate(member.read)}`), h("br"), h("small", { class: "soft" }, member.host))
        : h("div", {}, h("b", {}, "No member"), h("br"), h("small", { class: "soft" }, `lag ${count(lag)}`));
      return h("div", { class: `member ${member?.left ? "left" : ""}` }, h("div", { class: "who" }, mark(member, ""), who), h("div", {}, ...cells));
    });
    const focused = document.activeElement;
    parts.members.replaceChildren(...(made.length ? made : [h("p", { class: "empty" }, "Nobody is in the group, and it has committed nothing.")]));
    if (parts.members.contains(focused)) focused.focus({ preventScroll: true });
    // All are as wide as the first; to ask each would lay the page out as often.
    const width = draws[0]?.[0].canvas.clientWidth, style = getComputedStyle(root);
    for (const [drawn, cells, colour, whose] of draws) drawn.show(cells, doc.all_rows.length, most, colour, whose, width, style);
  }
  function tasks() {
    const found = doc.tasks ?? [], of = (id) => doc.members.find((member) => member.id === id);
    const told = (id, text) => h("span", {}, mark(of(id), "small"), of(id)?.name ?? "–", text);
    parts.tasks.replaceChildren(found.length ? section("Tasks with state, and their standby copies", h("table", {}, h("thead", {}, h("tr", {}, ...["Task", "Runs on", "Copies, and how far each was behind when its member joined"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...found.slice(0, 500).map((each) => h("tr", {}, h("td", {}, each.task), h("td", {}, told(each.owner, "")), h("td", {}, ...each.standbys.map(([id, gap]) => h("div", {}, told(id, gap === null ? " · had no copy" : ` · ${count(gap)} records`))), each.standbys.length ? "" : h("span", { class: found.some((other) => other.standbys.length) ? "warn" : "soft" }, "none"))))))) : "");
  }
  function rebalances() {
    const made = doc.rebalances.toReversed().map((each) => {
      const ended = each.ended ?? doc.head.at, steps = each.phases.map(([state, at], index) => [state, (each.phases[index + 1]?.[1] ?? ended) - at]);
      const bar = h("div", { class: "phases", "aria-hidden": "true" }, ...steps.map(([, ms]) => { const part = h("i"); part.style.flexGrow = Math.max(1, ms); return part; }));
      const length = each.ended === null ? "under way" : steps.length ? `about ${span((ended - each.began) / 1000)}` : "over between two looks";
      return h("li", { class: "rebalance" }, h("span", { class: "time" }, time(each.began)), h("div", {}, h("b", {}, each.causes.join("; ") || "Cause not seen"), steps.length ? bar : "", h("div", {}, h("small", { class: "soft" }, [length, ...steps.map(([state, ms]) => `${state} ${span(ms / 1000)}`), each.ended !== null && `${count(each.moved)} ${noun(each.moved, "partition")} moved`, each.ended !== null && `${count(each.members)} ${noun(each.members, "member")}`].filter(Boolean).join(" · ")))));
    });
    parts.rebalances.replaceChildren(made.length ? h("ol", { class: "events" }, ...made) : h("p", { class: "empty" }, "None since the looking began."));
  }
  const events = () => parts.events.replaceChildren(h("ol", { class: "events", tabindex: 0, "aria-label": "Events" }, ...doc.events.toReversed().map((each) => h("li", {}, h("span", { class: "time" }, time(each.at)), h("span", {}, each.text)))));
  function table() {
    const wanted = find.value.trim().toLowerCase(), focused = document.activeElement?.dataset?.key;
    const found = doc.all_rows.filter((row) => !wanted || String(row[1]) === wanted || doc.topics[row[0]].toLowerCase().includes(wanted)).sort((a, b) => (b[5] ?? -1) - (a[5] ?? -1));
    const cell = (value, kind = "num") => h("td", { class: kind }, value);
    parts.table.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...["Partition", "Owner"].map((text) => h("th", { scope: "col" }, text)), ...["Committed", "End", "Lag", "Behind by", "Read"].map((text) => h("th", { scope: "col", class: `num ${["Committed", "End", "Read"].includes(text) ? "wide" : ""}` }, text)))),
      h("tbody", {}, ...found.slice(0, shown).map(rowOf).map((row) => h("tr", {}, h("td", {}, h("button", { type: "button", "data-key": `${row.number} ${row.topic}`, onclick: () => open(row.topic, row.number) }, `${row.topic} ${row.number}`)), cell(h("span", {}, mark(row.owner, "small"), h("span", { class: "wide" }, row.owner?.name ?? "")), ""), cell(count(row.committed), "num wide"), cell(count(row.end), "num wide"), cell(count(row.lag)), cell(span(row.seconds)), cell(rate(row.read), "num wide"))))),
      found.length > shown ? h("p", { class: "bar" }, h("button", { type: "button", onclick: () => { shown += 2 * MORE; table(); } }, `Show more of ${count(found.length)}`)) : "");
    if (focused) parts.table.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
  async function open(topic, number) {
    opened = [topic, number];
    const life = await fetch(`/page/partition?${new URLSearchParams({ group: name, topic, partition: number })}`).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
    if (!life || opened?.[0] !== topic || opened[1] !== number) return;
    const row = doc.all_rows.find((each) => doc.topics[each[0]] === topic && each[1] === number), found = row && rowOf(row);
    const focused = dialog.contains(document.activeElement), moves = life.events.toReversed().map((each) => h("li", {}, h("span", { class: "time" }, time(each.at)), h("span", {}, each.moved ? `${each.source || "no member"} → ${each.target || "no member"}` : each.text)));
    dialog.replaceChildren(h("h2", { id: "partition-title" }, `${topic}, partition ${number}`), h("p", {}, mark(found?.owner, "small"), found?.owner ? found.owner.id : "no owner"),
      h("div", { class: "tiles" }, fact("committed", count(found?.committed)), fact("end", count(found?.end)), fact("lag", count(found?.lag)), fact("read", rate(found?.read))), chart("Lag", [["records", life.lags]], [], count), h("h2", {}, "Owners as far as seen"),
      moves.length ? h("ol", { class: "events" }, ...moves) : h("p", { class: "soft" }, "It has not moved since the looking began."), h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close"));
    if (!dialog.open) dialog.showModal();
    else if (focused) dialog.querySelector("button").focus({ preventScroll: true });
  }
  function take(told, whole) {
    const { points, events: new_, rows, ...fields } = told;
    Object.assign(doc, fields);
    for (const [index, ...row] of rows ?? []) doc.all_rows[index] = row;
    doc.points = [...(whole ? [] : doc.points), ...points].slice(-120);
    doc.events = [...(whole ? [] : doc.events), ...new_].slice(-100);
    headline(); charts();
    if (!main.contains(parts.title)) main.replaceChildren(...page);
    if (whole || rows?.length || fields.all_rows || fields.members) { members(); table(); }
    if (whole || fields.tasks || fields.members) tasks();
    if (whole || fields.rebalances) rebalances();
    if (whole || new_.length) events();
    if (opened && dialog.open) open(...opened);
    $("crumbs").replaceChildren(...(only === null ? [h("a", { href: "#" }, "Groups"), " / "] : []), name);
  }
  dialog.onclose = () => { opened = null; };
  document.title = `${name} – Roster`;
  return { url: `/page/live?${new URLSearchParams({ group: name })}`, take, redraw: () => { if (doc.head) members(); } };
}

function route() {
  const given = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("group");
  if (dialog.open) dialog.close();
  view = given === null ? groupsView() : groupView(given);
  $("crumbs").replaceChildren(given ?? "");
  main.replaceChildren(h("p", { class: "empty" }, "Loading…"));
  connect();
  main.focus({ preventScroll: true });
}
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", connect);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select, dialog")) { event.preventDefault(); main.querySelector("input[type=search]")?.focus(); }
});
theme();
route();
