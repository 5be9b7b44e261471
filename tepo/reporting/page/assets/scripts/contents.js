// Contents: what is in view is marked; a link into a part that is folded opens it.
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
})();
