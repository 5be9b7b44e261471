// Buttons that copy a table as Markdown, LaTeX or CSV, a command, and how a figure is cited; and those that download a
// figure. Where the clipboard is closed: a text to select.
(() => {
  // text: gives what is copied, or a promise of it
  function button(name, text, said, parent) {
    const one = document.createElement("button");
    one.type = "button";
    one.textContent = name;
    one.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(await text());
        said.textContent = "copied";
      } catch {
        const area = parent.querySelector("textarea") ?? document.createElement("textarea");
        area.readOnly = true;
        area.value = await text();
        area.setAttribute("aria-label", `${name}, to copy by hand`);
        parent.append(area);
        area.select();
        said.textContent = "copy it from here";
      }
    });
    return one;
  }

  function status() {
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    return said;
  }

  for (const result of document.querySelectorAll(".result")) {
    const bar = document.createElement("p"), said = status();
    bar.className = "copy";
    const text = (format) => async () => (await unpack("table-texts"))[result.id][format];
    bar.append("Copy as ", ...["Markdown", "LaTeX", "CSV"].map((format) => button(format, text(format), said, bar)), said);
    result.querySelector(".notes").before(bar);
  }
  for (const code of document.querySelectorAll(".fill code")) {
    const said = status();
    code.after(" ", button("Copy", () => code.textContent, said, code.parentElement), " ", said);
  }

  // beside each figure, map and plot: how it is cited, and its drawing or its numbers as a file
  function save(name, type, text) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
  }
  function svg(figure) {
    const source = figure.querySelector("noscript")?.textContent ?? figure.querySelector(".scroll > svg").outerHTML;
    return source.includes("xmlns=") ? source : source.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"');
  }
  function csv(table) {
    const field = (cell) => `"${cell.textContent.replace(/\s+/g, " ").trim().replace(/^(?=[=+@])/, "'").replaceAll('"', '""')}"`;
    return [...table.rows].map((row) => [...row.cells].filter((cell) => !cell.matches(".plot")).map(field).join(",")).join("\n");
  }
  for (const one of document.querySelectorAll("figure, .sweep, .plots")) {
    const caption = one.querySelector("figcaption, .caption, caption span"), title = caption.firstChild.textContent.trim();
    const study = one.closest(".study")?.querySelector("h2").firstChild.textContent.trim();
    const words = [document.querySelector("main").dataset.cite, study, title].filter(Boolean).join(". ");
    const said = status(), cite = button("Cite", () => `${words}. ${location.href.split("#")[0]}#${one.id}`, said, caption);
    const drawn = one.matches("figure"), kind = drawn ? "SVG" : "CSV";
    const file = make("button", { type: "button", textContent: kind });
    file.addEventListener("click", () => (drawn ? save(`${one.id}.svg`, "image/svg+xml", svg(one)) : save(`${one.id}.csv`, "text/csv", csv(one.querySelector("table")))));
    cite.setAttribute("aria-label", `Cite ${title}`);
    file.setAttribute("aria-label", `Download ${title} as ${kind}`);
    for (const tool of [cite, file]) tool.className = "download";
    caption.append(" ", cite, " ", file, " ", said);
  }
})();
