// Contents: what is in view is marked; a link into a part that is folded opens it; figures can be downloaded.
(() => {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const nav = document.querySelector("nav");
  const inView = new Set();
  const mark = () => {
    const first = [...links.keys()].find((id) => inView.has(id));
    for (const [id, link] of links) {
      if (id !== first) { link.removeAttribute("aria-current"); continue; }
      if (link.hasAttribute("aria-current")) continue;
      link.setAttribute("aria-current", "true");
      const [box, one] = [nav, link].map((element) => element.getBoundingClientRect());
      nav.scrollBy(nav.scrollWidth > nav.clientWidth ? one.left - box.left - 20 : 0, one.bottom > box.bottom || one.top < box.top ? one.top - box.top - box.height / 2 : 0);
    }
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) inView[isIntersecting ? "add" : "delete"](target.id);
    mark();
  }, { rootMargin: "-60px 0px -55% 0px" });
  for (const id of links.keys()) if (document.getElementById(id)) seen.observe(document.getElementById(id));

  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target === null) return;
    for (let part = target; part; part = part.parentElement) if (part instanceof HTMLDetailsElement) part.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  if (location.hash) open();

  // the drawing of a figure as a file
  for (const figure of document.querySelectorAll("figure")) {
    const button = make("button", { type: "button", className: "download", textContent: "SVG" });
    button.setAttribute("aria-label", `Download ${figure.querySelector("figcaption").firstChild.textContent.trim()} as SVG`);
    button.addEventListener("click", () => {
      const source = figure.querySelector("noscript")?.textContent ?? figure.querySelector(".scroll > svg").outerHTML;
      const svg = source.includes("xmlns=") ? source : source.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"');
      const link = make("a", { href: URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" })), download: `${figure.id}.svg` });
      link.click();
      URL.revokeObjectURL(link.href);
    });
    figure.querySelector("figcaption").append(button);
  }
})();
