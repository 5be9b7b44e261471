// Tooltips of cells, by pointer and by keyboard: Tab comes to one cell of a table, arrows move on, Escape hides.
(() => {
  const tip = document.createElement("div");
  Object.assign(tip, { id: "tip", hidden: true });
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);

  function show(cell) {
    tip.textContent = cell.dataset.tip;
    tip.hidden = false;
    const place = cell.getBoundingClientRect();
    const left = Math.min(place.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
    tip.style.top = `${place.bottom + 4 + window.scrollY}px`;
  }
  const hide = () => { tip.hidden = true; };

  function next(cell, key) {
    const row = cell.parentElement;
    const inRow = [...row.querySelectorAll("td[data-tip]")];
    const rows = [...row.closest("table").querySelectorAll("tbody tr")].filter((one) => one.cells[cell.cellIndex]?.dataset.tip);
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
    const cells = [...table.querySelectorAll("td[title]")];
    if (cells.length === 0) continue;
    for (const cell of cells) {
      cell.dataset.tip = cell.title;
      cell.removeAttribute("title");
      cell.tabIndex = -1;
    }
    let current = cells[0];
    current.tabIndex = 0;
    table.addEventListener("focusin", (event) => {
      const cell = event.target.closest("td[data-tip]");
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
      const cell = event.target.closest("td[data-tip]");
      if (cell !== null) show(cell); else hide();
    });
    table.addEventListener("pointerleave", hide);
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest("td[data-tip]");
      if (cell === null || event.ctrlKey || event.altKey || event.metaKey) return;
      const other = next(cell, event.key);
      if (other === undefined) return;
      event.preventDefault();
      other.focus();
    });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
