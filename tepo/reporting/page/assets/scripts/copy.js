// Buttons that copy a table as Markdown, LaTeX or CSV, and a command. Where the clipboard is closed: a text to select.
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
})();
