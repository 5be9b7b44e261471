"use strict";
const $ = (id) => document.getElementById(id);
const make = (name, properties = {}, ...children) => { const made = Object.assign(document.createElement(name), properties); made.append(...children); return made; };
const options = (select, texts) => select.replaceChildren(...texts.map((text, index) => new Option(text, index)));

// What the page holds compressed, unpacked when it is first asked for.
const known = new Map();
function unpack(id) {
  if (!known.has(id)) {
    const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
    known.set(id, new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
  }
  return known.get(id);
}

// Charts: each is drawn when it comes into sight. A click on a mark or in a legend selects its method in all charts; the
// same again, or a click beside them, selects none.
let vega, selected;
const drawn = new Map(), selecting = new Set(); // figure -> its view, and those views in which methods can be selected
const methods = new Set(); // of the charts that were drawn: they can be selected without a pointer too
const select = (view) => view.data("method_store", selected === undefined ? [] : [{ fields: [{ type: "E", field: "method" }], values: [selected] }]).runAsync();

function fitted(spec, width) { // as in tepo.reporting.charts.style
  const { beside = 55, letters = 0 } = spec.usermeta ?? {};
  const across = Math.max(1, Math.min(spec.columns ?? 1, Math.floor(width / 330)));
  spec.config.legend.columns = Math.max(1, Math.floor(width / (50 + 7 * letters)));
  const fit = (panel) => ({ ...panel, width: Math.floor(width / across) - beside });
  return spec.concat ? { ...spec, columns: across, concat: spec.concat.map(fit) } : fit(spec);
}

async function draw(figure) {
  drawn.set(figure, null);
  vega ??= unpack("vega").then((code) => document.head.append(make("script", { textContent: code })));
  await vega;
  const place = figure.querySelector(".chart"), spec = JSON.parse(await unpack(figure.dataset.chart));
  const actions = { export: true, source: false, compiled: false, editor: false };
  const { view } = await vegaEmbed(place, fitted(spec, place.clientWidth), { renderer: "svg", actions, downloadFileName: figure.id });
  drawn.set(figure, view);
  place.querySelector("summary").setAttribute("aria-label", "Save this chart");
  for (const empty of place.querySelectorAll(".role-mark:empty")) empty.removeAttribute("role"); // it would be an image without a name
  if (!spec.params?.some(({ name }) => name === "method")) return;
  selecting.add(view);
  for (const { method } of Object.values(spec.datasets ?? {}).flat()) if (!methods.has(method)) $("method").append(methods.add(method) && new Option(method));
  $("choice").hidden = methods.size < 2 || $("figure-opening-claims") !== null; // nothing to choose from, and sentences are no methods
  if (selected !== undefined) select(view);
  view.addEventListener("click", async (_, item) => {
    const method = item?.mark.role.startsWith("legend") ? item.datum?.value : item?.datum?.method;
    selected = method === selected ? undefined : method;
    $("method").value = selected ?? "";
    await view.runAsync(); // what Vega-Lite alone makes of the click in this chart
    selecting.forEach(select);
  });
}
$("method")?.addEventListener("change", ({ target }) => {
  selected = target.value || undefined;
  selecting.forEach(select);
});

const inSight = (figure) => figure.closest("details:not([open])") === null;
const drawAll = () => Promise.all([...document.querySelectorAll("[data-chart]")].filter((figure) => !drawn.has(figure) && inSight(figure)).map(draw));
document.addEventListener("toggle", drawAll, true);
let width = innerWidth, waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    if (innerWidth === width) return;
    width = innerWidth;
    for (const view of drawn.values()) view?.finalize();
    for (const known of [drawn, selecting]) known.clear();
    drawAll(); // what is folded has no width, and is drawn anew when it is opened
  }, 200);
});

async function listRuns() {
  const fold = $("runs-fold"), rows = await unpack("run-rows");
  if (fold.childElementCount === 1) fold.insertAdjacentHTML("beforeend", rows); // written by this page's own template
}
$("runs-fold")?.addEventListener("toggle", listRuns);

for (const button of document.querySelectorAll("[data-csv]")) button.addEventListener("click", async ({ target }) => {
  const link = make("a", { download: `${target.dataset.csv.slice(4)}.csv`, href: URL.createObjectURL(new Blob([await unpack(target.dataset.csv)])) });
  link.click();
  URL.revokeObjectURL(link.href);
});

// A link to something that is folded opens it.
async function reveal() {
  if ($("run-rows") && location.hash.startsWith("#run-")) await listRuns();
  for (let at = $(decodeURIComponent(location.hash.slice(1))); at; at = at.parentElement) if (at.matches("details")) at.open = true;
  $(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}
addEventListener("hashchange", reveal);

const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(3))).replace("-", "−"));

// Two runs side by side: what they answered to the same problem.
async function sideBySide() {
  const { runs, problems } = JSON.parse(await unpack("samples"));
  const filters = { "where they disagree": (l, r) => l >= 0.5 !== r >= 0.5, all: () => true, "both wrong": (l, r) => l < 0.5 && r < 0.5 };
  const names = [...new Set(problems.map(([benchmark]) => benchmark))];
  let shown = [], at = 0;
  const total = (picks) => picks.reduce((sum, [, count]) => sum + count, 0);
  const rightOnes = (picks, answers) => picks.reduce((sum, [index, count]) => sum + answers[index][2] * count, 0);
  const share = (picks, answers) => rightOnes(picks, answers) / total(picks);
  function side(run, picks, answers) {
    const parts = picks.map(([index, count]) => {
      const [text, , right, reason, tokens, finished] = answers[index];
      const words = `${right ? "✓ right" : "✗ wrong"}${count > 1 ? `, ${count} times` : ""}, ${tokens} token${tokens === 1 ? "" : "s"}${finished ? "" : ", cut off"}${right ? "" : `, ${reason}`}`;
      return make("div", { className: right ? "answer" : "answer wrong" }, make("b", { textContent: words }), make("pre", { textContent: text || "∅" }));
    });
    return make("div", {}, make("h3", { textContent: `${runs[run][1]}: ${rightOnes(picks, answers)} of ${total(picks)} responses to this problem right` }), ...parts);
  }
  function show() {
    $("where").textContent = shown.length ? `${at + 1} of ${shown.length}` : "no such problem";
    if (!shown.length) return $("answers").replaceChildren();
    const [benchmark, , prompt, gold, answers, picks] = shown[at], chosen = [$("left").value, $("right").value];
    const asked = make("p", {}, `${benchmark}: `, make("code", { textContent: prompt }), ` right answer: ${gold}`);
    $("answers").replaceChildren(asked, ...chosen.map((run) => side(run, picks[run], answers)));
  }
  function choose() {
    const [left, right] = [$("left").value, $("right").value], test = Object.values(filters)[$("filter").value];
    shown = problems.filter(([name, , , , answers, picks]) => name === names[$("benchmark").value] && picks[left] && picks[right] && test(share(picks[left], answers), share(picks[right], answers)));
    at = 0;
    show();
  }
  for (const id of ["left", "right"]) options($(id), runs.map(([, label]) => label));
  $("right").value = Math.min(1, runs.length - 1);
  options($("benchmark"), names);
  options($("filter"), Object.keys(filters));
  for (const id of ["left", "right", "benchmark", "filter"]) $(id).addEventListener("change", choose);
  for (const [id, by] of [["before", -1], ["after", 1]]) $(id).addEventListener("click", () => { at = (at + by + shown.length) % (shown.length || 1); show(); });
  choose();
  if (!shown.length) { $("filter").value = 1; choose(); }
}

// Tokens of training: one response, each token coloured by one of its values.
async function tokenView() {
  const { views, dumps } = JSON.parse(await unpack("token-data"));
  const runs = [...new Set(dumps.map(({ run }) => run))];
  let steps = [], dump, shown = [];
  const scaled = (kind, value) => (kind === "log" ? Math.log(Math.max(value, 1e-9)) : value);
  function show() {
    const one = dump.responses[$("dump-response").value], view = shown[$("dump-view").value], [name, title, kind, text] = view;
    // the end of the colours is the 98th percentile of the sizes: one outlier does not bleach the rest
    const sizes = dump.responses.flatMap((each) => (each.values[name] ?? []).filter((v) => v !== null).map((v) => Math.abs(scaled(kind, v)))).sort((a, b) => a - b);
    const end = sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes.at(-1) || 1;
    const colour = (value) => {
      if (value === null || value === undefined) return "transparent";
      const part = kind === "mask" ? (value ? -1 : 0) : scaled(kind, value) / end;
      const tint = kind === "sequential" ? "warm" : part > 0 ? "hot" : "cold";
      return `rgba(var(--${tint}), ${(0.75 * Math.min(1, Math.abs(part))).toFixed(3)})`;
    };
    const limit = kind === "mask" ? "" : ` Full colour from ${number(kind === "log" ? Math.exp(end) : end)}${kind === "log" ? ` or ${number(Math.exp(-end))}` : ""}.${one.values.kl_mask ? " Underlined: taken by the mask." : ""}`;
    $("explained").textContent = text + limit;
    $("prompt").textContent = one.prompt;
    $("verdict").textContent = `${one.reward > 0 ? "✓ right" : "✗ wrong"}, reward ${number(one.reward)}, right answer ${one.answer}${one.finished ? "" : ", cut off at the length limit"}`;
    const values = one.values[name] ?? [], mask = one.values.kl_mask ?? [];
    $("response").replaceChildren(...one.tokens.map((token, at) => {
      const span = make("span", { textContent: token.replace(/\n/g, "↵\n") || "∅", title: `${title} ${number(values[at])}`, className: mask[at] ? "masked" : "" });
      span.style.backgroundColor = colour(values[at]);
      return span;
    }));
    const cells = (name, texts) => make("tr", {}, ...texts.map((text, at) => make(name ?? (at ? "td" : "th"), { textContent: text, ...(name || !at) && { scope: name ? "col" : "row" } })));
    const rows = one.tokens.map((text, at) => cells(null, [JSON.stringify(text), ...shown.map(([key]) => number(one.values[key]?.[at]))]));
    $("values").replaceChildren(make("thead", {}, cells("th", ["Token", ...shown.map(([, title]) => title)])), make("tbody", {}, ...rows));
  }
  function chooseStep() {
    dump = steps[$("dump-step").value];
    const before = shown[$("dump-view").value]?.[0];
    shown = views.filter(([name]) => dump.responses.some((one) => one.values[name]));
    options($("dump-response"), dump.responses.map((one, at) => `${at + 1} ${one.reward > 0 ? "✓" : "✗"} ${one.prompt.slice(-40)}`));
    options($("dump-view"), shown.map(([, title]) => title));
    const differs = ([name]) => dump.responses.some(({ values }) => (values[name] ?? []).some((value) => value !== values[name][0]));
    $("dump-view").value = Math.max(0, before ? shown.findIndex(([name]) => name === before) : shown.findIndex(differs));
    show();
  }
  function chooseRun() {
    steps = dumps.filter(({ run }) => run === runs[$("dump-run").value]);
    options($("dump-step"), steps.map(({ step }) => (step === 1 ? "1, before training" : step)));
    $("dump-step").value = steps.length - 1;
    chooseStep();
  }
  options($("dump-run"), runs);
  $("dump-run").addEventListener("change", chooseRun);
  $("dump-step").addEventListener("change", chooseStep);
  for (const id of ["dump-response", "dump-view"]) $(id).addEventListener("change", show);
  chooseRun();
}

document.documentElement.classList.add("scripts");
for (const box of document.querySelectorAll(".scroll:not([tabindex])")) box.tabIndex = 0; // keys scroll what has the focus
await Promise.all([drawAll(), $("samples") && sideBySide(), $("token-data") && tokenView()]).finally(reveal); // when all has its height
