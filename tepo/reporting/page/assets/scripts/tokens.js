// The token view: one response at a time, every token coloured by one of its values; a run's dumps in step order.
(async () => {
  const root = document.getElementById("token-view");
  if (root === null) return;
  const data = await unpack("token-data");
  const { number, tint, visible } = tokenColours;
  const byId = (id) => document.getElementById(id);
  const box = byId("response");
  const state = { dump: 0, response: 0, view: null, token: 0 };
  const dump = () => data.dumps[state.dump];
  const response = () => dump().responses[state.response];
  const workedOut = (name) => name === "mask" && !dump().applied;
  const titled = ([name, title]) => (workedOut(name) ? data.workedOut[0] : title);
  const explained = ([name, , , sentence]) => (workedOut(name) ? data.workedOut[1] : sentence);
  const kinds = Object.fromEntries(data.views.map(([name, , kind]) => [name, kind]));
  const runs = new Map();
  data.dumps.forEach(({ run }, index) => runs.set(run, [...(runs.get(run) ?? []), index]));

  const ends = new Map();
  function end(name) {
    const id = `${state.dump}/${name}`;
    if (!ends.has(id)) ends.set(id, tokenColours.end(kinds[name], dump().responses, name));
    return ends.get(id);
  }

  function drawScale() {
    const name = state.view, kind = kinds[name], ramp = byId("ramp"), limit = end(name);
    const [low, high] = { mask: [0, 1], sequential: [0, limit], log: [Math.exp(-limit), Math.exp(limit)], diverging: [-limit, limit] }[kind];
    byId("low").textContent = kind === "mask" ? "no" : number(low);
    byId("high").textContent = kind === "mask" ? "yes" : number(high);
    const stops = { mask: ["transparent 50%", `${tint("cold", 0.7)} 50%`], sequential: ["transparent", tint("warm", 1)] }[kind] ?? [tint("cold", 1), "transparent", tint("hot", 1)];
    ramp.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    byId("explained").textContent = explained(data.views.find(([known]) => known === name));
  }

  // The chosen value by token class, over the responses shown: the middle half as a box, 5th to 95th percentile as a line.
  function drawSpread() {
    const name = state.view, kind = kinds[name], mask = kind === "mask";
    const of = (index) => dump().responses.flatMap((one) => (one.values[name] ?? []).filter((v, at) => v !== null && one.classes[at] === index));
    const classes = data.classes.map((title, index) => [title, of(index).sort((a, b) => a - b)]).filter(([, values]) => values.length);
    const at = (values, share) => values[Math.min(values.length - 1, Math.floor(share * values.length))];
    const sizes = classes.flatMap(([, values]) => values.map((v) => Math.abs(tokenColours.scaled(kind, v)))).filter(Boolean).sort((a, b) => a - b);
    const middling = at(sizes, 0.5) || 1;
    // most values are tiny and a few are large: a logarithm on both sides of 0 shows both
    const place = (value) => { const v = tokenColours.scaled(kind, value); return mask ? v : Math.sign(v) * Math.log1p(Math.abs(v) / middling); };
    const low = mask ? 0 : Math.min(0, ...classes.map(([, values]) => place(at(values, 0.05))));
    const high = mask ? 1 : Math.max(0, ...classes.map(([, values]) => place(at(values, 0.95))));
    const across = (position) => (high > low ? (100 * (position - low)) / (high - low) : 50).toFixed(2);
    const rows = classes.flatMap(([title, values]) => {
      const quarters = [0.05, 0.25, 0.5, 0.75, 0.95].map((part) => at(values, part));
      const [a, b, middle, c, d] = quarters.map((value) => across(place(value)));
      const share = values.filter(Boolean).length / values.length;
      const bar = mask
        ? `<rect x="0" y="3" width="${across(share)}" height="8"/>`
        : `<line x1="${a}" x2="${d}" y1="7" y2="7"/><rect x="${b}" y="3" width="${Math.max(0.4, c - b)}" height="8"/><line class="middle" x1="${middle}" x2="${middle}" y1="1" y2="13"/>`;
      const [head, plot, value] = [0, 1, 2].map(() => document.createElement("span"));
      head.textContent = title;
      plot.innerHTML = `<svg viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true"><line class="zero" x1="${across(0)}" x2="${across(0)}" y1="0" y2="14"/>${bar}</svg>`;
      value.textContent = mask ? `${(100 * share).toFixed(1)}% of ${values.length}` : `${number(quarters[2])} (${number(quarters[1])} to ${number(quarters[3])})`;
      return [head, plot, value];
    });
    const caption = document.createElement("p"), count = dump().responses.length;
    const title = titled(data.views.find(([known]) => known === name));
    const how = mask ? "share of the tokens of each class" : `median and middle half of each token class, the line from the 5th to the 95th percentile, a logarithmic scale on both sides of ${kind === "log" ? 1 : 0}`;
    caption.textContent = `${title}: ${how}; ${count === dump().total ? `all ${count}` : `${count} of ${dump().total}`} responses of the dump.`;
    const grid = Object.assign(document.createElement("div"), { className: "classes" });
    grid.append(...rows);
    byId("spread").replaceChildren(caption, grid);
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
    const name = state.view, values = response().values[name] ?? [];
    [...box.children].forEach((span, index) => { span.style.backgroundColor = tokenColours.colour(kinds[name], end(name), values[index]); });
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
    drawSpread();
  }

  function setResponse(index) {
    const count = dump().responses.length;
    state.response = (index + count) % count;
    drawResponse();
  }

  // A value that is not the same at every token of some response: a flat colour says nothing.
  const differs = (name) => dump().responses.some(({ values }) => (values[name] ?? []).some((value) => value !== values[name][0]));

  function setDump(index) {
    const steps = runs.get(data.dumps[index].run), place = steps.indexOf(index);
    Object.assign(state, { dump: index, response: Math.min(state.response, data.dumps[index].responses.length - 1), token: 0 });
    for (const counts of document.querySelectorAll(".counts")) counts.hidden = Number(counts.dataset.dump) !== index;
    Object.assign(byId("dump-step"), { max: steps.length - 1, value: place, disabled: steps.length === 1 });
    byId("dump-step").setAttribute("aria-valuetext", `step ${dump().step}`);
    byId("step").textContent = `${dump().step} (${place + 1} of ${steps.length})`;
    const known = data.views.filter(([name]) => dump().responses.some((one) => one.values[name]));
    byId("views").replaceChildren(byId("views").firstElementChild, ...known.map((view, order) => {
      const [name] = view;
      const label = document.createElement("label"), input = document.createElement("input");
      Object.assign(input, { type: "radio", name: "view", id: `view-${name}`, value: name });
      input.addEventListener("change", () => setView(name));
      label.append(input, ` ${order + 1} ${titled(view)}`);
      return label;
    }));
    if (!known.some(([name]) => name === state.view)) state.view = (known.find(([name]) => differs(name)) ?? known[0])?.[0] ?? null;
    if (state.response < 0 || state.view === null) return;
    drawResponse();
    setView(state.view);
  }

  byId("dump-run").append(...[...runs.keys()].map((run) => new Option(run, run)));
  byId("dump-run").addEventListener("change", (event) => setDump(runs.get(event.target.value).at(-1)));
  byId("dump-step").addEventListener("input", (event) => setDump(runs.get(dump().run)[Number(event.target.value)]));
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
  setDump(runs.get(data.dumps[0].run).at(-1));
})();
