// Runs, drawn when they are asked for: all in groups, with means and ranges; and settings down, rows across, with what
// became of every seed.
(() => {
  const root = document.getElementById("runs-view");
  if (root === null) return;
  const MOST = 6;
  let ready = null;

  async function build() {
    const { usual, rows } = await unpack("run-data");
    const chosen = rows.length ? [...new Set([0, Math.min(1, rows.length - 1)])] : [];
    const select = make("select", { id: "runs-row" }, ...rows.map((row, index) => new Option(`${row.label} (${row.seeds.length} seed${row.seeds.length === 1 ? "" : "s"})`, index)));
    const every = make("input", { type: "checkbox" });
    const add = make("button", { type: "button", textContent: "Add" });
    const table = make("div", { className: "scroll", tabIndex: 0 });
    table.setAttribute("role", "group");
    table.setAttribute("aria-label", "Settings of the chosen rows");
    const value = (row, key) => row.settings[key] ?? usual[key];

    const line = (head, cells, differs = false) => {
      const row = make("tr", { className: differs ? "differs" : "" }, make("th", { scope: "row", textContent: head }));
      row.append(...cells.map((cell) => make("td", { className: "text" }, ...[cell].flat())));
      return row;
    };
    const fact = ([seed, id, facts, recorded]) => {
      const words = Object.entries(facts).filter(([name]) => name !== "run").map(([name, text]) => (name === "status" ? text : `${text} ${name}`));
      return make("span", { className: "fact", id: `run-${id}` }, make("b", { textContent: `seed ${seed}` }), " ", make("code", { textContent: id }), ` ${words.join(", ")}${recorded ? ", from a record" : ""}`);
    };

    function draw() {
      const shown = chosen.map((index) => rows[index]);
      const apart = (key) => new Set(shown.map((row) => value(row, key))).size > 1;
      const keys = Object.keys(usual).filter((key) => every.checked || (shown.length > 1 ? apart(key) : key in shown[0].settings));
      const heads = shown.map((row, at) => {
        const head = make("th", { scope: "col", className: "text" }), remove = make("button", { type: "button", textContent: "×", className: "remove" });
        head.innerHTML = row.swatch;
        remove.setAttribute("aria-label", `Remove ${row.label}`);
        remove.addEventListener("click", () => { chosen.splice(at, 1); draw(); });
        head.append(" ", row.label, ...(shown.length > 1 ? [" ", remove] : []));
        return head;
      });
      const none = keys.length ? [] : [line("settings", shown.map(() => (shown.length > 1 ? "the same" : "those of most rows")))];
      const body = make("tbody", {}, ...none, ...keys.map((key) => line(key, shown.map((row) => value(row, key)), apart(key))));
      const ends = make("tbody", {}, line("runs", shown.map((row) => row.seeds.map(fact))), line("command", shown.map((row) => make("code", { textContent: row.command }))));
      const caption = every.checked ? "all settings" : shown.length > 1 ? "the settings in which they differ" : "the settings in which it differs from most rows";
      table.replaceChildren(make("table", {}, make("caption", {}, make("span", { textContent: caption })), make("thead", {}, make("tr", {}, make("th", { scope: "col", textContent: "Setting" }), ...heads)), body, ends));
      add.disabled = chosen.length >= MOST;
    }
    // all runs by row, by objective, or by a setting in which some differ
    function groups() {
      const differ = Object.keys(usual).filter((key) => key !== "objective.name" && rows.some((row) => key in row.settings));
      const by = make("select", { id: "runs-by" }, new Option("objective", "objective.name"), new Option("row", ""), ...differ.map((key) => new Option(key, key)));
      const box = make("div", { className: "scroll grouped", tabIndex: 0 });
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "Runs in groups");
      const spread = (runs, name) => {
        const known = runs.map(([, , facts]) => facts[name]).filter((number) => typeof number === "number");
        if (known.length === 0) return { mean: -1, text: "–" };
        const mean = known.reduce((sum, number) => sum + number, 0) / known.length, [low, high] = [Math.min(...known), Math.max(...known)];
        return { mean, text: `${mean.toFixed(1)}${low < high ? ` (${low.toFixed(1)} to ${high.toFixed(1)})` : ""}` };
      };
      const show = () => {
        const found = new Map();
        for (const row of rows) {
          const name = by.value === "" ? row.label : value(row, by.value) || "none";
          found.set(name, [...(found.get(name) ?? []), ...row.seeds]);
        }
        const lines = [...found].map(([name, runs]) => ({ name, runs, right: spread(runs, "% right") })).sort((a, b) => b.right.mean - a.right.mean);
        const body = lines.map(({ name, runs, right }) => make("tr", {}, make("th", { scope: "row", textContent: name }), ...[runs.length, right.text, runs.filter(([, , facts]) => facts.status !== "finished").length, spread(runs, "CPU seconds").text].map((text) => make("td", { textContent: text }))));
        const heads = [by.selectedOptions[0].textContent, "Runs", "% right: mean (range of runs)", "Not finished", "CPU seconds: mean (range)"].map((textContent) => make("th", { scope: "col", textContent }));
        box.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body)));
      };
      by.addEventListener("change", show);
      show();
      return [make("p", { className: "controls" }, make("label", {}, "All runs by ", by)), box];
    }

    add.addEventListener("click", () => { if (!chosen.includes(Number(select.value))) { chosen.push(Number(select.value)); draw(); } });
    every.addEventListener("change", draw);
    root.append(...groups(), make("p", { className: "controls" }, make("label", {}, "Row ", select), add, make("label", {}, every, " all settings")), table);
    draw();

    // the row of a run, in the place of the last
    return (id) => {
      const index = rows.findIndex((row) => row.seeds.some(([, known]) => known === id));
      if (index < 0) return;
      if (!chosen.includes(index)) { chosen.splice(1, chosen.length >= MOST ? 1 : 0, index); draw(); }
      const fact = document.getElementById(`run-${id}`);
      root.querySelectorAll(".fact.sought").forEach((one) => one.classList.remove("sought"));
      fact.classList.add("sought");
      fact.scrollIntoView({ block: "center" });
    };
  }

  const drawn = () => (ready ??= build());
  root.addEventListener("toggle", () => { if (root.open) drawn(); });
  const follow = async () => {
    if (!location.hash.startsWith("#run-")) return;
    root.open = true;
    (await drawn())?.(decodeURIComponent(location.hash.slice(5)));
  };
  addEventListener("hashchange", follow);
  follow();
})();
