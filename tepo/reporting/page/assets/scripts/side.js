// Runs side by side: the answers of two runs to the same problem, from benchmarks and from the token dumps of training.
(async () => {
  const root = document.getElementById("side-view");
  if (root === null) return;
  const { runs, problems } = await unpack("samples");
  const tokens = document.getElementById("token-view") === null ? { dumps: [], views: [] } : await unpack("token-data");
  const byId = (id) => document.getElementById(id);
  const TRAINING = "training (tokens)";
  const FILTERS = { disagree: "where they disagree, largest difference first", all: "all", left: "left right, right wrong", right: "right right, left wrong", both: "both right", none: "both wrong" };
  const state = { shown: [], at: 0 };

  const benchmarkEntries = problems.map(([benchmark, id, prompt, gold, answers, picks]) => ({
    benchmark, id, prompt, gold,
    answers: (run) => picks[run]?.map(([index, count]) => { const [text, extracted, right, reason, length, finished] = answers[index]; return { text, extracted, right, reason, length, finished, count }; }),
  }));

  // training problems that the dumps of both runs have
  const ofTraining = new Map();
  for (const { run, step, responses } of tokens.dumps) {
    for (const one of responses) {
      const known = ofTraining.get(one.prompt) ?? { benchmark: TRAINING, id: "training", prompt: one.prompt, gold: one.answer, byRun: new Map() };
      const answer = { text: one.tokens.join(""), right: one.reward > 0, reason: `reward ${tokenColours.number(one.reward)} at step ${step}`, length: one.tokens.length, finished: one.finished, count: 1, tokens: one };
      known.byRun.set(run, [...(known.byRun.get(run) ?? []), answer]);
      ofTraining.set(one.prompt, known);
    }
  }
  const trainingEntries = [...ofTraining.values()].map((one) => ({ ...one, answers: (run) => one.byRun.get(runs[run][1]) }));

  const share = (answers) => answers.reduce((sum, one) => sum + one.right * one.count, 0) / answers.reduce((sum, one) => sum + one.count, 0);
  const percent = (part) => `${Math.round(100 * part)}%`;

  function wanted(pair) {
    const [left, right] = pair.shares.map((part) => part >= 0.5);
    return { all: true, disagree: left !== right, left: left && !right, right: right && !left, both: left && right, none: !left && !right }[byId("side-filter").value];
  }

  function refresh() {
    const [left, right] = [byId("left-run"), byId("right-run")].map((select) => Number(select.value));
    const benchmark = byId("side-benchmark").value, text = byId("search").value.toLowerCase();
    const least = Number(byId("least").value || 0), most = Number(byId("most").value || Infinity);
    const kept = [];
    for (const entry of [...benchmarkEntries, ...trainingEntries]) {
      if (benchmark !== "" && entry.benchmark !== benchmark) continue;
      const sides = [entry.answers(left), entry.answers(right)];
      if (sides.some((side) => side === undefined)) continue;
      const every = sides.flat();
      if (!every.some(({ length }) => length >= least && length <= most)) continue;
      if (text !== "" && ![entry.prompt, ...every.map((one) => one.text)].some((one) => one.toLowerCase().includes(text))) continue;
      const pair = { ...entry, sides, shares: sides.map(share) };
      if (wanted(pair)) kept.push(pair);
    }
    const gap = ({ shares: [a, b] }) => Math.abs(a - b);
    if (byId("side-filter").value === "disagree") kept.sort((a, b) => gap(b) - gap(a));
    state.shown = kept;
    byId("side-problem").replaceChildren(...kept.map((pair, index) => new Option(`${pair.benchmark} · ${pair.prompt.trim().replace(/\s+/g, " ").slice(0, 48)} · ${pair.shares.map(percent).join(" / ")}`, index)));
    byId("side-count").textContent = kept.length ? `${kept.length} problem${kept.length > 1 ? "s" : ""}` : "no problem fits";
    show(0);
  }

  function answerBox(one, view) {
    const verdict = `${one.right ? "✓ right" : "✗ wrong"}${one.count > 1 ? ` × ${one.count}` : ""}`;
    const facts = [one.reason, `${one.length} token${one.length === 1 ? "" : "s"}`, one.finished ? "" : "cut off at the length limit", one.extracted === undefined ? "" : one.extracted === null ? "no answer read" : `answer ${one.extracted}`];
    const text = one.tokens === undefined ? one.text : one.tokens.tokens.map((token, index) => {
      const span = make("span", { textContent: tokenColours.visible(token) });
      span.style.backgroundColor = tokenColours.colour(view.kind, view.end, one.tokens.values[view.name]?.[index]);
      return span;
    });
    return make("div", { className: `answer ${one.right ? "right" : "wrong"}` },
      make("p", {}, make("b", { textContent: verdict }), ` ${facts.filter(Boolean).join(" · ")}`),
      make("pre", {}, ...(one.tokens === undefined ? [text] : text)));
  }

  function show(index) {
    const count = state.shown.length;
    for (const id of ["side-previous", "side-next", "side-problem"]) byId(id).disabled = count === 0;
    if (count === 0) { byId("side-shown").replaceChildren(); byId("side-colour").hidden = true; return; }
    state.at = (index + count) % count;
    byId("side-problem").value = String(state.at);
    const pair = state.shown[state.at], trained = pair.benchmark === TRAINING;
    byId("side-colour").hidden = !trained;
    const name = byId("side-view-name").value, kind = tokens.views.find(([known]) => known === name)?.[2];
    const view = { name, kind, end: trained ? tokenColours.end(kind, pair.sides.flat().map((one) => one.tokens), name) : 1 };
    const columns = pair.sides.map((answers, side) => {
      const run = runs[Number(byId(side === 0 ? "left-run" : "right-run").value)];
      const sorted = [...answers].sort((a, b) => b.count - a.count);
      const column = make("div", { className: "side" }, make("h3", { textContent: run[1] }), make("p", { className: "note", textContent: `${percent(pair.shares[side])} of ${answers.reduce((sum, one) => sum + one.count, 0)} responses right · run ${run[0]}` }), ...sorted.map((one) => answerBox(one, view)));
      return column;
    });
    byId("side-shown").replaceChildren(
      make("p", { className: "prompt" }, make("code", { textContent: pair.prompt }), ` gold answer ${pair.gold} `, make("span", { className: "note", textContent: `${pair.benchmark}, ${pair.id}` })),
      make("div", { className: "sides" }, ...columns));
  }

  const labels = runs.map(([, label], index) => new Option(label, index));
  byId("left-run").append(...labels);
  byId("right-run").append(...labels.map((option) => option.cloneNode(true)));
  // two rows that were trained, rather than two seeds of one
  const row = (index) => runs[index][1].replace(/, seed \d+$/, "");
  const trained = [...runs.keys()].filter((index) => !runs[index][0].startsWith("base-"));
  const left = trained[0] ?? 0, right = trained.find((index) => row(index) !== row(left)) ?? runs.length - 1;
  [byId("left-run").value, byId("right-run").value] = [left, right].map(String);
  const names = [...new Set(benchmarkEntries.map((entry) => entry.benchmark)), ...(trainingEntries.length ? [TRAINING] : [])];
  byId("side-benchmark").append(new Option("all benchmarks", ""), ...names.map((name) => new Option(name, name)));
  byId("side-filter").append(...Object.entries(FILTERS).map(([value, title]) => new Option(title, value)));
  byId("side-view-name").append(...tokens.views.map(([name, title]) => new Option(title, name)));
  for (const id of ["left-run", "right-run", "side-benchmark", "side-filter"]) byId(id).addEventListener("change", refresh);
  for (const id of ["search", "least", "most"]) byId(id).addEventListener("input", refresh);
  byId("side-problem").addEventListener("change", (event) => show(Number(event.target.value)));
  byId("side-view-name").addEventListener("change", () => show(state.at));
  byId("side-previous").addEventListener("click", () => show(state.at - 1));
  byId("side-next").addEventListener("click", () => show(state.at + 1));
  root.hidden = false;
  refresh();
})();
