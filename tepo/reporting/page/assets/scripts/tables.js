// Tables sort by a click (or Enter) on a column head: falling, rising, as it was. Sections stay where they are; dashes go last.
for (const table of document.querySelectorAll("table:not(.forest, .map, .strips)")) {
  const heads = [...table.querySelectorAll("thead tr:last-child th")];
  const bodies = [...table.tBodies];
  const original = bodies.map((body) => [...body.rows]);
  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell === undefined || cell.classList.contains("missing")) return null;
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const order = { none: "descending", descending: "ascending", ascending: "none" }[head.getAttribute("aria-sort") ?? "none"];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (order !== "none") head.setAttribute("aria-sort", order);
      bodies.forEach((body, index) => {
        const fixed = original[index].filter((row) => row.classList.contains("section"));
        const rows = original[index].filter((row) => !row.classList.contains("section"));
        if (order !== "none") {
          const sign = order === "descending" ? -1 : 1;
          const known = rows.filter((row) => key(row, column) !== null);
          known.sort((a, b) => sign * compare(key(a, column), key(b, column)));
          rows.splice(0, rows.length, ...known, ...rows.filter((row) => key(row, column) === null));
        }
        body.replaceChildren(...fixed, ...rows);
      });
    });
  });
}
