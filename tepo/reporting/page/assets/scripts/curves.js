// Curves: each figure of training curves becomes one chart a panel (uPlot), with one legend and one set of controls,
// once it is opened and near. Values are read by pointer or by arrow keys; a button of the legend hides its row.
const curves = (() => {
  const HEIGHT = 230, NEAR = 9, MINUS = "−", GREY = "#b5b5b5", LINE = 13;
  const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(4))).replace("-", MINUS));

  function sample(row) {
    const dash = row.dash.map((part) => part * 2).join(" ");
    const span = make("span", { className: "sample" });
    span.innerHTML = `<svg width="30" height="8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" stroke-width="2.5"/></svg>`;
    span.querySelector("line").setAttribute("stroke", row.colour);
    span.querySelector("line").setAttribute("stroke-dasharray", dash);
    return span;
  }

  // mean, lowest and highest value over the seeds that have data, at the steps that all of them have
  function summary(seeds) {
    const known = seeds.filter((values) => values.some((value) => value !== null));
    const over = (pick) => (known[0] ?? seeds[0] ?? []).map((_, at) => (known.length && known.every((values) => values[at] !== null) ? pick(known.map((values) => values[at])) : null));
    const mean = over((values) => values.reduce((sum, value) => sum + value, 0) / values.length);
    return known.length > 1 ? { mean, low: over((values) => Math.min(...values)), high: over((values) => Math.max(...values)) } : { mean };
  }

  // A weighted mean over the neighbours on both sides: unlike a running mean it does not shift the curve to the right.
  function smooth(values, width) {
    if (width === 0) return values;
    return values.map((value, at) => {
      if (value === null) return null;
      let sum = 0, weight = 0;
      for (let near = Math.max(0, at - 3 * width); near <= Math.min(values.length - 1, at + 3 * width); near++) {
        if (values[near] === null) continue;
        const share = Math.exp(-0.5 * ((near - at) / width) ** 2);
        sum += share * values[near];
        weight += share;
      }
      return sum / weight;
    });
  }

  // positions near the wanted ones, so far apart that no label lies on another
  function spread(wanted, apart, low, high) {
    const order = [...wanted.keys()].sort((a, b) => wanted[a] - wanted[b]), placed = [...wanted];
    let next = low;
    for (const index of order) { placed[index] = Math.max(wanted[index], next); next = placed[index] + apart; }
    next = high;
    for (const index of order.reverse()) { placed[index] = Math.min(placed[index], next); next = placed[index] - apart; }
    return placed;
  }

  // Charts of `data` (of chart_data) at the top of `figure`, and what draws them.
  function build(figure, data) {
    const longest = Math.max(0, ...data.rows.map((row) => row.at.steps?.length ?? 0));
    const state = { axis: data.axes[0][0], width: longest > 12 ? 1 : 0, scale: "auto", hidden: new Set(), over: null };
    const charts = [];
    for (const row of data.rows) row.shown = row.curves.map(summary);
    const log = (panel) => (state.scale === "auto" ? data.panels[panel].log : state.scale === "log");
    const plain = (index) => data.lifted.length === 0 || data.lifted.includes(index) || state.over === index;
    const colour = (index) => (plain(index) && (state.over === null || state.over === index || data.lifted.length === 0) ? data.rows[index].colour : GREY);
    const named = (panel) => [...data.rows.keys()].filter((index) => !state.hidden.has(index) && plain(index) && data.rows[index].at[state.axis] !== undefined && data.rows[index].shown[panel].mean.some((value) => value !== null));

    // what is drawn of a panel: uPlot's aligned columns, its series and bands; rows in grey lie below the others
    function drawn(panel) {
      const tables = [], series = [{}], bands = [];
      const order = [...data.rows.keys()].sort((a, b) => plain(a) - plain(b));
      for (const index of order) {
        const row = data.rows[index], at = row.at[state.axis], curve = row.shown[panel];
        if (state.hidden.has(index) || at === undefined || !curve.mean.some((value) => value !== null)) continue;
        // before smoothing: on a logarithmic scale a smoothed zero would look like a tiny value
        const shown = (values) => (log(panel) ? values.map((value) => (value > 0 ? value : null)) : values);
        const line = { stroke: () => colour(index), dash: row.dash.map((part) => part * 1.7), width: plain(index) ? 1.7 : 1.2, points: { show: at.length === 1 }, spanGaps: true };
        const columns = [at, smooth(shown(curve.mean), state.width)];
        series.push(line);
        if (state.width > 0 && plain(index)) {
          columns.push(shown(curve.mean));
          series.push({ ...line, dash: [], width: 1, alpha: 0.28 });
        }
        if (curve.low !== undefined && plain(index)) {
          columns.push(smooth(shown(curve.high), state.width), smooth(shown(curve.low), state.width));
          const bare = { points: { show: false }, spanGaps: true, width: 0 };
          bands.push({ series: [series.length, series.length + 1], fill: `${row.colour}26` });
          series.push(bare, { ...bare });
        }
        tables.push(columns);
      }
      return { series, bands, columns: tables.length ? uPlot.join(tables) : [[0, 1]] };
    }

    // crosses where a seed ended early; a line at the step that it did not finish, where a row is a seed
    function ends(chart, panel) {
      const { ctx, bbox } = chart, size = 4 * devicePixelRatio;
      ctx.save();
      ctx.lineWidth = 2 * devicePixelRatio;
      for (const [index, row] of data.rows.entries()) {
        for (const end of state.hidden.has(index) ? [] : row.ends) {
          const [at, value] = [end.at[state.axis], end.values[panel]];
          if (at === undefined || value === null || (log(panel) && value <= 0)) continue;
          const x = chart.valToPos(at, "x", true), y = chart.valToPos(value, "y", true);
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.strokeStyle = colour(index);
          ctx.beginPath();
          for (const side of [-1, 1]) { ctx.moveTo(x - size, y - side * size); ctx.lineTo(x + size, y + side * size); }
          ctx.stroke();
        }
        if (!row.fall || state.hidden.has(index)) continue;
        const x = chart.valToPos(row.fall.step, "x", true);
        ctx.strokeStyle = ctx.fillStyle = row.colour;
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.lineWidth = 2 * devicePixelRatio;
      }
      ctx.restore();
    }

    // names at the ends of the lines that have their colours
    function labels(one) {
      const { ctx, bbox } = one.chart, ratio = devicePixelRatio, room = one.room * ratio - 6 * ratio;
      const wanted = named(one.panel).map((index) => {
        const { mean } = data.rows[index].shown[one.panel], last = mean.findLastIndex((value) => value !== null && (!log(one.panel) || value > 0));
        return { index, y: last < 0 ? null : one.chart.valToPos(mean[last], "y", true) };
      }).filter((label) => label.y !== null);
      const places = spread(wanted.map((label) => label.y), LINE * ratio, bbox.top, bbox.top + bbox.height);
      ctx.save();
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textBaseline = "middle";
      ctx.textAlign = "left";
      one.labels = wanted.map(({ index }, at) => {
        let text = data.rows[index].label;
        while (text.length > 2 && ctx.measureText(text).width > room) text = `${text.replace(/…$/, "").slice(0, -1)}…`;
        ctx.fillStyle = data.rows[index].colour;
        ctx.fillText(text, bbox.left + bbox.width + 5 * ratio, places[at]);
        return { text, top: places[at] / ratio };
      });
      one.box.dataset.labels = JSON.stringify(one.labels);
      ctx.restore();
    }

    // the rows that are drawn with their values at the step nearest to a position on the axis, highest first
    function values(panel, x) {
      const found = [];
      for (const [index, row] of data.rows.entries()) {
        const at = row.at[state.axis], { mean, low, high } = row.shown[panel];
        if (state.hidden.has(index) || at === undefined) continue;
        let best = -1;
        for (let k = 0; k < at.length; k++) if (mean[k] !== null && (best < 0 || Math.abs(at[k] - x) < Math.abs(at[best] - x))) best = k;
        if (best >= 0) found.push({ row, index, at: at[best], step: row.at.steps[best], mean: mean[best], low: low?.[best], high: high?.[best] });
      }
      return found.sort((a, b) => b.mean - a.mean);
    }

    const words = (one) => `${number(one.mean)}${one.low === undefined ? "" : ` (${number(one.low)} to ${number(one.high)})`}`;

    function lift(index) {
      if (state.over === index) return;
      const fits = index === null || data.lifted.length === 0 || data.lifted.includes(index);
      const was = state.over === null || data.lifted.includes(state.over);
      state.over = index;
      charts.filter((one) => one.chart !== undefined).forEach(fits && was ? (one) => one.chart.redraw(false) : draw);
    }

    function read(one) {
      const { chart, panel, tip, box } = one, { left, top } = chart.cursor;
      if (left === undefined || left < 0) { tip.hidden = true; return; }
      const x = chart.posToVal(left, "x"), all = values(panel, x);
      if (all.length === 0) return;
      const pointed = top >= 0 ? chart.posToVal(top, "y") : all[0].mean;
      const by = [...all].sort((a, b) => Math.abs(a.mean - pointed) - Math.abs(b.mean - pointed));
      const near = new Set(by.slice(0, NEAR));
      const nearest = all.reduce((a, b) => (Math.abs(b.at - x) < Math.abs(a.at - x) ? b : a));
      const head = make("b", { textContent: state.axis === "steps" ? `step ${nearest.step}` : `${number(x)} ${data.axes.find(([name]) => name === state.axis)[1]}` });
      const lines = all.filter((entry) => near.has(entry)).map((entry) => make("span", { className: entry === by[0] && top >= 0 ? "entry nearest" : "entry" }, sample(entry.row), make("span", { textContent: entry.row.label }), make("span", { className: "value", textContent: words(entry) })));
      const more = all.length > near.size ? [make("span", { textContent: `and ${all.length - near.size} further away` })] : [];
      tip.replaceChildren(head, ...lines, ...more);
      tip.hidden = one !== charts.active;
      box.setAttribute("aria-valuenow", String(nearest.step));
      box.setAttribute("aria-valuetext", `${head.textContent}: ${all.map((entry) => `${entry.row.label} ${words(entry)}`).join("; ")}`);
    }

    function draw(one) {
      const { box, panel } = one, { series, bands, columns } = drawn(panel);
      const axis = { stroke: "#444", grid: { stroke: "#ddd", width: 1 }, ticks: { stroke: "#ddd", width: 1 }, font: "12px system-ui, sans-serif" };
      const width = Math.max(160, box.clientWidth), letters = Math.max(0, ...named(panel).map((index) => data.rows[index].label.length));
      one.room = data.rows.length > 1 ? Math.min(0.32 * width, 6.2 * letters + 10) : 0;
      one.chart?.destroy();
      one.chart = new uPlot({
        width,
        height: HEIGHT,
        padding: [null, one.room || null, null, null],
        legend: { show: false },
        cursor: { sync: { key: figure.id }, points: { show: false }, y: false },
        scales: { x: { time: false }, y: { distr: log(panel) ? 3 : 1 } },
        axes: [{ ...axis, size: 36, space: 36 }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
        series,
        bands,
        hooks: { draw: [(chart) => { one.chart = chart; ends(chart, panel); if (one.room) labels(one); }], setCursor: [(chart) => { one.chart = chart; read(one); }] },
      }, columns, box);
    }

    const redraw = () => charts.filter((one) => one.chart !== undefined).forEach(draw);

    function moveTo(one, index) {
      const every = [...new Set(data.rows.flatMap((row, at) => (state.hidden.has(at) ? [] : row.at[state.axis] ?? [])))].sort((a, b) => a - b);
      if (every.length === 0 || one.chart === undefined) return;
      one.key = Math.max(0, Math.min(every.length - 1, index));
      charts.active = one;
      one.chart.setCursor({ left: one.chart.valToPos(every[one.key], "x"), top: -1 });
      read(one);
    }

    function keys(one, event) {
      const act = { ArrowRight: () => (one.key ?? -1) + 1, ArrowLeft: () => (one.key ?? 1) - 1, Home: () => 0, End: () => Infinity }[event.key];
      if (act === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      moveTo(one, act());
    }

    function controls() {
      const axis = make("select", { className: "against" }, ...data.axes.map(([name, title]) => new Option(title, name)));
      axis.addEventListener("change", () => { state.axis = axis.value; grid.querySelectorAll(".axis").forEach((span) => { span.textContent = axis.selectedOptions[0].textContent; }); redraw(); });
      const range = make("input", { type: "range", min: 0, max: 10, value: state.width });
      const width = make("output", { textContent: state.width });
      range.addEventListener("input", () => { state.width = Number(range.value); width.textContent = range.value; redraw(); });
      const scale = make("select", { className: "scale-of" }, ...[["where one line flattens the others", "auto"], ["nowhere", "linear"], ["everywhere", "log"]].map(([title, name]) => new Option(title, name)));
      scale.addEventListener("change", () => { state.scale = scale.value; redraw(); });
      return make("p", { className: "controls" }, make("label", {}, "Against ", axis), make("label", {}, "Smoothing (steps) ", range, " ", width), make("label", {}, "Logarithmic ", scale));
    }

    function legend() {
      const buttons = data.rows.map((row, index) => {
        const button = make("button", { type: "button", className: "row" }, sample(row), row.label);
        button.addEventListener("click", () => { state.hidden.has(index) ? state.hidden.delete(index) : state.hidden.add(index); show(); });
        for (const [enter, leave] of [["pointerenter", "pointerleave"], ["focus", "blur"]]) {
          button.addEventListener(enter, () => lift(index));
          button.addEventListener(leave, () => lift(null));
        }
        return button;
      });
      const show = () => { buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(!state.hidden.has(index)))); redraw(); };
      const all = make("button", { type: "button", textContent: "Show all" }), none = make("button", { type: "button", textContent: "Hide all" });
      all.addEventListener("click", () => { state.hidden.clear(); show(); });
      none.addEventListener("click", () => { data.rows.forEach((_, index) => state.hidden.add(index)); show(); });
      show();
      const group = make("div", { className: "legend" }, ...buttons, ...(buttons.length > 2 ? [all, none] : []));
      group.setAttribute("role", "group");
      group.setAttribute("aria-label", "Rows that are drawn");
      return group;
    }

    const last = Math.max(...data.rows.flatMap((row) => row.at.steps ?? [0]));
    const grid = make("div", { className: "charts" }, ...data.panels.map((panel, index) => {
      const tip = make("div", { className: "tip", hidden: true });
      const box = make("div", { className: "chart", tabIndex: 0 });
      for (const [name, value] of Object.entries({ role: "slider", "aria-label": `${panel.title}${panel.unit ? `, ${panel.unit}` : ""}`, "aria-valuemin": 0, "aria-valuemax": last, "aria-valuenow": 0, "aria-valuetext": "arrow keys read the values" })) box.setAttribute(name, value);
      const one = { panel: index, box, tip };
      charts.push(one);
      box.addEventListener("keydown", (event) => keys(one, event));
      box.addEventListener("pointerenter", () => { charts.active = one; });
      box.addEventListener("pointermove", () => {
        if (data.lifted.length === 0 || one.chart === undefined || one.chart.cursor.top < 0) return;
        const y = one.chart.posToVal(one.chart.cursor.top, "y"), found = values(one.panel, one.chart.posToVal(one.chart.cursor.left, "x"));
        if (found.length) lift(found.reduce((a, b) => (Math.abs(b.mean - y) < Math.abs(a.mean - y) ? b : a)).index);
      });
      box.addEventListener("pointerleave", () => { tip.hidden = true; lift(null); });
      box.addEventListener("blur", () => { tip.hidden = true; });
      box.append(tip);
      return make("div", { className: "panel" }, make("p", { className: "title" }, make("b", { textContent: panel.title }), panel.unit ? ` ${panel.unit}` : ""), box, make("p", { className: "axis", textContent: data.axes[0][1] }));
    }));
    figure.prepend(controls(), grid, ...(data.rows.length > 1 ? [legend()] : []));
    charts.forEach(draw);
    new ResizeObserver(() => charts.forEach((one) => {
      const width = Math.max(160, one.box.clientWidth);
      if (width !== one.chart.width) draw(one);
    })).observe(grid);
  }

  // A figure is built when it is first near the window: not while the part that holds it is closed.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      seen.unobserve(entry.target);
      unpack(`data-${entry.target.id}`).then((data) => build(entry.target, data));
    }
  }, { rootMargin: "800px" });
  for (const figure of document.querySelectorAll("figure.live")) seen.observe(figure);

  // On paper canvases are coarse: the drawing that a page without scripts shows is put in their place.
  addEventListener("beforeprint", () => {
    for (const figure of document.querySelectorAll("figure.live:not(:has(> .drawn))")) {
      if (figure.checkVisibility()) figure.insertAdjacentHTML("afterbegin", figure.querySelector("noscript").textContent);
    }
  });
  return { build };
})();
