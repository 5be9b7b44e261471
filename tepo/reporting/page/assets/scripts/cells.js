// Tooltips of cells, by pointer and by keyboard: Tab comes to one cell of a table, arrows move on, Escape hides.
(() => {
  const tip = document.createElement("div");
  Object.assign(tip, { id: "tip", hidden: true });
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);

  // the measurement that a value rests on
  function words(cell) {
    const row = cell.parentElement, { seeds } = row.dataset, column = row.closest("table").tHead.rows;
    const [low, high, n] = cell.dataset.ends.split(" ");
    const text = (number) => Number(number).toFixed(2).replace(/^-(0\.00)$/, "$1").replace("-", "−");
    const parts = [`${row.cells[0].innerText.trim()}, ${column[column.length - 1].cells[cell.cellIndex].innerText.trim()}: ${text(cell.dataset.value)}`, `95% interval ${text(low)} to ${text(high)}`];
    if (Number(n)) parts.push(`n = ${Number(n).toLocaleString("en")} response${n === "1" ? "" : "s"}`);
    if (seeds) parts.push(`seed${seeds.includes(",") ? "s" : ""} ${seeds}`);
    return parts.join("; ");
  }

  function show(cell) {
    tip.textContent = words(cell);
    tip.hidden = false;
    const place = cell.getBoundingClientRect();
    const left = Math.min(place.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
    tip.style.top = `${place.bottom + 4 + window.scrollY}px`;
  }
  const hide = () => { tip.hidden = true; };

  function next(cell, key) {
    const row = cell.parentElement;
    const inRow = [...row.querySelectorAll("td[data-ends]")];
    const rows = [...row.closest("table").querySelectorAll("tbody tr")].filter((one) => one.cells[cell.cellIndex]?.dataset.ends);
    return {
      ArrowRight: inRow[inRow.indexOf(cell) + 1],
      ArrowLeft: inRow[inRow.indexOf(cell) - 1],
      Home: inRow[0],
      End: inRow[inRow.length - 1],
      ArrowDown: rows[rows.indexOf(row) + 1]?.cells[cell.cellIndex],
      ArrowUp: rows[rows.indexOf(row) - 1]?.cells[cell.cellIndex],
    }[key];
  }

  for (const table of document.querySelectorAll("table")) {
    const cells = [...table.querySelectorAll("td[data-ends]")];
    if (cells.length === 0) continue;
    cells.forEach((cell) => { cell.tabIndex = -1; });
    let current = cells[0];
    current.tabIndex = 0;
    table.addEventListener("focusin", (event) => {
      const cell = event.target.closest("td[data-ends]");
      if (cell === null) return;
      current.tabIndex = -1;
      current.removeAttribute("aria-describedby");
      current = cell;
      current.tabIndex = 0;
      current.setAttribute("aria-describedby", "tip");
      show(cell);
    });
    table.addEventListener("focusout", hide);
    table.addEventListener("pointerover", (event) => {
      const cell = event.target.closest("td[data-ends]");
      if (cell !== null) show(cell); else hide();
    });
    table.addEventListener("pointerleave", hide);
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td[data-ends]");
      if (cell === null || event.ctrlKey || event.altKey || event.metaKey) return;
      const other = next(cell, event.key);
      if (other === undefined) return;
      event.preventDefault();
      other.focus();
    });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
