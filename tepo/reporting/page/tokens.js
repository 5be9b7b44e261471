// The token view: one response at a time, every token coloured by one of its values.
(() => {
  const root = document.getElementById("token-view");
  if (root === null) return;
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const box = byId("response");
  const state = { dump: 0, response: 0, view: null, token: 0 };
  const titled = ([name, title]) => (name === "mask" && !dump().applied ? "A > 0 ∧ ΔH < 0" : title);
  const kinds = Object.fromEntries(data.views.map(([name, , kind]) => [name, kind]));
  const dump = () => data.dumps[state.dump];
  const response = () => dump().responses[state.response];
  const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(3))).replace("-", "−"));
  const scaled = (name, value) => (kinds[name] === "log" ? Math.log(Math.max(value, 1e-9)) : value);

  // The end of a colour scale: the 98th percentile of the sizes in the dump, so that one outlier does not bleach the rest.
  const ends = new Map();
  function end(name) {
    const id = `${state.dump}/${name}`;
    if (!ends.has(id)) {
      const sizes = dump().responses.flatMap((one) => (one.values[name] ?? []).filter((v) => v !== null).map((v) => Math.abs(scaled(name, v))));
      sizes.sort((a, b) => a - b);
      const exact = sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(0.98 * sizes.length))] : 0;
      ends.set(id, exact || sizes[sizes.length - 1] || 1);
    }
    return ends.get(id);
  }

  const tint = (colour, share) => `rgba(var(--${colour}), ${(0.75 * Math.min(1, Math.abs(share))).toFixed(3)})`;
  function colour(name, value) {
    if (value === null || value === undefined) return "transparent";
    if (kinds[name] === "mask") return value ? tint("cold", 0.7) : "transparent";
    const share = scaled(name, value) / end(name);
    if (kinds[name] === "sequential") return tint("warm", share);
    return tint(share > 0 ? "hot" : "cold", share);
  }

  function drawScale() {
    const name = state.view, kind = kinds[name], ramp = byId("ramp"), limit = end(name);
    const [low, high] = { mask: [0, 1], sequential: [0, limit], log: [Math.exp(-limit), Math.exp(limit)], diverging: [-limit, limit] }[kind];
    byId("low").textContent = kind === "mask" ? "no" : number(low);
    byId("high").textContent = kind === "mask" ? "yes" : number(high);
    const stops = { mask: ["transparent 50%", `${tint("cold", 0.7)} 50%`], sequential: ["transparent", tint("warm", 1)] }[kind] ?? [tint("cold", 1), "transparent", tint("hot", 1)];
    ramp.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  }

  function visible(text) {
    return text.replace(/\n/g, "↵\n").replace(/\t/g, "→\t") || "∅";
  }

  function drawResponse() {
    const one = response();
    byId("prompt").textContent = one.prompt;
    byId("verdict").textContent = `${one.reward > 0 ? "✓ right" : "✗ wrong"}, reward ${number(one.reward)}, gold answer ${one.answer}${one.finished ? "" : ", cut off at the length limit"}`;
    byId("place").textContent = ` ${state.response + 1} of ${dump().responses.length} `;
    const mask = one.values.mask ?? [];
    box.replaceChildren(...one.tokens.map((text, index) => {
      const span = document.createElement("span");
      span.id = `t${index}`;
      span.setAttribute("role", "option");
      span.textContent = visible(text);
      if (mask[index]) span.classList.add("masked");
      return span;
    }));
    state.token = Math.min(state.token, one.tokens.length - 1);
    drawColours();
  }

  function drawColours() {
    const values = response().values[state.view] ?? [];
    [...box.children].forEach((span, index) => { span.style.backgroundColor = colour(state.view, values[index]); });
    drawScale();
    select(state.token);
  }

  function select(index) {
    const one = response();
    state.token = Math.max(0, Math.min(one.tokens.length - 1, index));
    for (const span of box.querySelectorAll("[aria-selected]")) span.removeAttribute("aria-selected");
    const span = box.children[state.token];
    if (span === undefined) { byId("token").replaceChildren(); return; }
    span.setAttribute("aria-selected", "true");
    box.setAttribute("aria-activedescendant", span.id);
    if (document.activeElement === box) span.scrollIntoView({ block: "nearest" });
    const facts = [["token", `${state.token + 1} of ${one.tokens.length}`], ["text", JSON.stringify(one.tokens[state.token])], ["class", data.classes[one.classes[state.token]]]];
    for (const view of data.views) if (one.values[view[0]]) facts.push([titled(view), number(one.values[view[0]][state.token])]);
    byId("token").replaceChildren(...facts.map(([title, text]) => {
      const entry = document.createElement("span"), label = document.createElement("b");
      label.textContent = `${title} `;
      entry.append(label, text);
      return entry;
    }));
  }

  function setView(name) {
    state.view = name;
    byId(`view-${name}`).checked = true;
    drawColours();
  }

  function setResponse(index) {
    const count = dump().responses.length;
    state.response = (index + count) % count;
    drawResponse();
  }

  function setDump(index) {
    Object.assign(state, { dump: index, response: 0, token: 0 });
    for (const counts of document.querySelectorAll(".counts")) counts.hidden = Number(counts.dataset.dump) !== index;
    const known = data.views.filter(([name]) => dump().responses.some((one) => one.values[name]));
    byId("views").replaceChildren(byId("views").firstElementChild, ...known.map((view, place) => {
      const [name] = view;
      const label = document.createElement("label"), input = document.createElement("input");
      Object.assign(input, { type: "radio", name: "view", id: `view-${name}`, value: name });
      input.addEventListener("change", () => setView(name));
      label.append(input, ` ${place + 1} ${titled(view)}`);
      return label;
    }));
    if (!known.some(([name]) => name === state.view)) state.view = known.length ? known[0][0] : null;
    if (state.view !== null) byId(`view-${state.view}`).checked = true;
    if (dump().responses.length) drawResponse();
  }

  byId("dump").append(...data.dumps.map((one, index) => new Option(one.label, String(index))));
  byId("dump").addEventListener("change", (event) => setDump(Number(event.target.value)));
  byId("previous").addEventListener("click", () => setResponse(state.response - 1));
  byId("next").addEventListener("click", () => setResponse(state.response + 1));
  box.addEventListener("click", (event) => {
    const span = event.target.closest("[role=option]");
    if (span !== null) select([...box.children].indexOf(span));
  });
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const inputs = [...byId("views").querySelectorAll("input")];
    const act = {
      ArrowRight: () => select(state.token + 1),
      ArrowLeft: () => select(state.token - 1),
      Home: () => select(0),
      End: () => select(Infinity),
      ArrowDown: () => setResponse(state.response + 1),
      ArrowUp: () => setResponse(state.response - 1),
    }[event.key] ?? (/^[1-9]$/.test(event.key) && inputs[Number(event.key) - 1] ? () => setView(inputs[Number(event.key) - 1].value) : null);
    if (act === null) return;
    event.preventDefault();
    act();
  });
  root.hidden = false;
  setDump(0);
})();
