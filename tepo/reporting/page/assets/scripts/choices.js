// What would change a verdict: family, margin and seeds are picked; each strip frames the choice and says its word and interval. Everything is looked up.
(() => {
  async function build(fold) {
    const { seeds, margins, declared, legend, strips } = await unpack(`data-${fold.id}`);
    const table = fold.querySelector(".strips"), names = [["Family", ["alone", "as declared"]], ["Seeds", seeds], [table.tHead.rows[1].cells[0].textContent, margins]];
    const bodies = [...table.tBodies].map((body) => ({
      said: body.querySelector(".said span:last-child"),
      cells: [...body.rows].slice(-2).map((row) => [...row.cells].slice(1)),
    }));
    const status = make("p", { className: "note" });
    status.setAttribute("role", "status");
    let chosen = [...declared];

    const fields = names.map(([name, values], axis) => make("fieldset", {}, make("legend", { textContent: name }), ...values.map((value, index) => {
      const radio = make("input", { type: "radio", name: `${fold.id}-${axis}`, value: index });
      radio.addEventListener("change", () => pick(chosen.with(axis, index)));
      return make("label", {}, radio, ` ${value}`);
    })));

    function pick(choice) {
      chosen = choice;
      const [family, seed, margin] = chosen, counts = {};
      fields.forEach((field, axis) => { field.querySelectorAll("input")[chosen[axis]].checked = true; });
      table.querySelectorAll(".chosen").forEach((cell) => cell.classList.remove("chosen"));
      strips.forEach(([intervals, words], index) => {
        const cell = bodies[index].cells[family][seed * margins.length + margin], mark = cell.textContent;
        cell.classList.add("chosen");
        bodies[index].said.textContent = `${words[family][seed][margin]}; ${intervals[seed]}`;
        counts[mark] = (counts[mark] ?? 0) + 1;
      });
      status.textContent = `${names.map(([name, values], axis) => `${name} ${values[chosen[axis]]}`).join(", ")}: ${Object.entries(legend).filter(([mark]) => counts[mark]).map(([mark, word]) => `${word}: ${counts[mark]}`).join("; ")}.`;
    }

    table.addEventListener("click", (event) => {
      const cell = event.target.closest("td");
      const family = bodies.flatMap((body) => body.cells.map((own, index) => (own.includes(cell) ? index : -1))).find((index) => index >= 0);
      if (family === undefined) return;
      pick([family, Math.floor((cell.cellIndex - 1) / margins.length), (cell.cellIndex - 1) % margins.length]);
    });
    table.classList.add("live");
    table.before(...fields, status);
    pick(chosen);
  }

  for (const fold of document.querySelectorAll("details.choices")) fold.addEventListener("toggle", () => build(fold), { once: true });
})();
