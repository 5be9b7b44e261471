// A sweep's map: a cell shows the curves of its seeds, a slider picks a value and sorts the rows by it.
(() => {
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#767676"];
  const NEAR = 4; // points below the first

  // the seeds of a cell as rows of their own, in the panels that show a collapse
  function seedRows(data, label, seeds) {
    const row = data.rows.find((one) => one.label === label), panels = data.panels.map((panel, at) => [panel, at]).filter(([panel]) => ["Reward", "Entropy"].includes(panel.title));
    return {
      panels: panels.map(([panel]) => ({ ...panel, log: false })),
      axes: [["steps", "training step"]],
      lifted: [],
      rows: row.seeds.map((seed, at) => {
        const ending = seeds.find(([known]) => known === seed)?.[2] ?? "";
        return {
          label: `seed ${seed}`, colour: COLOURS[at % COLOURS.length], dash: [], seeds: [seed], at: { steps: row.at.steps },
          curves: panels.map(([, panel]) => [row.curves[panel][at]]),
          ends: row.ends.filter((end) => end.seed === seed).map((end) => ({ ...end, values: panels.map(([, panel]) => end.values[panel]) })),
          fall: ending ? { step: Number(/step (\d+)/.exec(ending)?.[1]), word: ending.split(" at ")[0] } : null,
        };
      }),
    };
  }

  // what runs of these seeds answered before and after they fell, as the page's maker wrote and escaped it
  async function excerpts(sweep, seeds) {
    const packed = seeds.map(([, id]) => `excerpt-${sweep.id}-${id}`).filter((id) => document.getElementById(id));
    return Promise.all(packed.map(async (id) => make("div", { className: "excerpt", innerHTML: await unpack(id) })));
  }

  async function build(sweep) {
    const data = await unpack(`data-${sweep.id}`);
    const table = sweep.querySelector("table"), body = table.tBodies[0], original = [...body.rows];
    const panel = make("div", { className: "seeds", hidden: true, id: `${sweep.id}-seeds` });
    panel.setAttribute("role", "region");
    panel.setAttribute("aria-label", "Seeds of the chosen cell");
    let chosen = null;

    async function show(button, row, at) {
      const [label, cells] = data.rows[row], [, text, interval, runs] = cells[at];
      const again = chosen === button;
      chosen?.setAttribute("aria-pressed", "false");
      chosen = again ? null : button;
      panel.hidden = again;
      if (again) return;
      button.setAttribute("aria-pressed", "true");
      panel.replaceChildren(make("h3", { textContent: `${label} at ${data.axis}=${data.values[at]}: ${text} ${interval}` }));
      if (runs === null) { panel.append(make("p", { className: "note", textContent: "Nothing of it was run." })); return; }
      const [figure, name, seeds, recorded] = runs;
      panel.append(make("ul", {}, ...seeds.map(([seed, id, ending]) => make("li", {}, make("a", { href: `#run-${id}`, textContent: `seed ${seed}` }), ending ? `: ${ending}` : ": trained to its last step"))));
      if (figure) {
        const place = make("figure", { className: "live", id: `${panel.id}-curves` });
        panel.append(place);
        curves.build(place, seedRows(structuredClone(await unpack(`data-figure-${figure}`)), name, seeds));
      }
      const said = await excerpts(sweep, seeds);
      if (chosen !== button) return; // another cell since
      panel.append(...(said.length ? said : [make("p", { className: "note", textContent: recorded ? "Read from records, which hold responses of a few runs that fell, chosen by rule: those of these runs were not kept." : "No responses: train.token_dump_every=1 keeps those of a run whose reward falls." })]));
    }

    const buttons = original.map((line, row) => [...line.cells].slice(1).map((cell, at) => {
      const [label, cells] = data.rows[row], span = cell.firstElementChild;
      const button = make("button", { type: "button", className: "cell", tabIndex: row || at ? -1 : 0 }, ...span.childNodes);
      button.setAttribute("aria-label", `${label} at ${data.axis}=${data.values[at]}: ${[...button.childNodes].map((node) => node.textContent).join(", ")} ${cells[at][2]}`);
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => show(button, row, at));
      span.replaceWith(button);
      return button;
    }));
    table.addEventListener("keydown", (event) => {
      const lines = [...body.rows], line = lines.indexOf(event.target.closest("tr")), at = event.target.closest("td")?.cellIndex;
      const to = { ArrowRight: [line, at + 1], ArrowLeft: [line, at - 1], ArrowDown: [line + 1, at], ArrowUp: [line - 1, at], Home: [line, 1], End: [line, data.values.length] }[event.key];
      const next = to && at && lines[to[0]]?.cells[to[1]]?.querySelector("button");
      if (!next || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      next.focus();
    });
    table.addEventListener("focusin", (event) => {
      if (!event.target.matches("button.cell")) return;
      buttons.flat().forEach((button) => { button.tabIndex = button === event.target ? 0 : -1; });
    });

    const range = make("input", { type: "range", min: 0, max: data.values.length, value: 0, step: 1 });
    const said = make("output");
    function pick() {
      const at = Number(range.value) - 1, mean = (line) => data.rows[original.indexOf(line)][1][at]?.[0] ?? -Infinity;
      const lines = at < 0 ? original : [...original].sort((a, b) => mean(b) - mean(a));
      body.append(...lines);
      table.querySelectorAll(".picked").forEach((cell) => cell.classList.remove("picked"));
      if (at >= 0) for (const line of table.rows) line.cells[at + 1].classList.add("picked");
      const known = lines.filter((line) => at >= 0 && mean(line) > -Infinity), name = (line) => `${data.rows[original.indexOf(line)][0]} ${mean(line).toFixed(1)}`;
      const near = known.filter((line) => mean(line) >= mean(known[0]) - NEAR).length;
      said.textContent = known.length === 0 ? "none yet: the rows are sorted by what they lose over the grid" : `${data.values[at]}: ${name(known[0])} is highest, ${name(known.at(-1))} lowest; ${near} of ${known.length} within ${NEAR} points of the highest`;
      range.setAttribute("aria-valuetext", said.textContent);
    }
    range.addEventListener("input", pick);
    sweep.prepend(make("p", { className: "controls pick" }, make("label", {}, `I pick this ${data.axis.replaceAll("_", " ")} `, range), said));
    pick();
    sweep.querySelector(".scroll").after(panel);
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((one) => one.isIntersecting)) { seen.unobserve(target); build(target); }
  }, { rootMargin: "800px" });
  for (const sweep of document.querySelectorAll(".sweep")) seen.observe(sweep);
})();
