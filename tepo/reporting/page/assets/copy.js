// Buttons that copy a table as Markdown, LaTeX or CSV, and a command. Where the clipboard is closed: a text to select.
(() => {
  const texts = JSON.parse(document.getElementById("table-texts").textContent);

  function button(name, text, said, parent) {
    const one = document.createElement("button");
    one.type = "button";
    one.textContent = name;
    one.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        said.textContent = "copied";
      } catch {
        const area = parent.querySelector("textarea") ?? document.createElement("textarea");
        area.readOnly = true;
        area.value = text;
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

  for (const section of document.querySelectorAll("section.result")) {
    const bar = document.createElement("p"), said = status();
    bar.className = "copy";
    const buttons = Object.entries(texts[section.id] ?? {}).map(([name, text]) => button(name, text, said, bar));
    bar.append("Copy as ", ...buttons, said);
    section.querySelector(".notes").before(bar);
  }
  for (const code of document.querySelectorAll(".fill code")) {
    const said = status();
    code.after(" ", button("Copy", code.textContent, said, code.parentElement), " ", said);
  }

  // A link to a run opens its entry.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", open);
  open();
})();
