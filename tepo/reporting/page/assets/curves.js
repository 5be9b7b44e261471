// Curves: each figure of training curves becomes one chart a panel (uPlot), with one legend and one set of controls.
// Values are read by pointer or by arrow keys; a button of the legend hides its row. The static drawing is for print.
(() => {
  const source = document.getElementById("curves");
  if (source === null) return;
  const HEIGHT = 230, NEAR = 9, MINUS = "−";
  const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(4))).replace("-", MINUS));
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };

  function sample(row) {
    const dash = row.dash.map((part) => part * 2).join(" ");
    const span = make("span", { className: "sample" });
    span.innerHTML = `<svg width="30" height="8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" stroke-width="2.5"/></svg>`;
    span.querySelector("line").setAttribute("stroke", row.colour);
    span.querySelector("line").setAttribute("stroke-dasharray", dash);
    return span;
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

  function build(figure, data) {
    const state = { axis: data.axes[0][0], width: data.rows[0].at.steps.length > 12 ? 1 : 0, log: false, hidden: new Set() };
    const charts = [];

    // what is drawn of a panel: uPlot's aligned columns, its series and bands
    function drawn(panel) {
      const tables = [], series = [{}], bands = [];
      for (const [index, row] of data.rows.entries()) {
        const at = row.at[state.axis], curve = row.curves[panel];
        if (state.hidden.has(index) || at === undefined || !curve.mean.some((value) => value !== null)) continue;
        // before smoothing: on a logarithmic scale a smoothed zero would look like a tiny value
        const shown = (values) => (state.log ? values.map((value) => (value > 0 ? value : null)) : values);
        const line = { stroke: row.colour, dash: row.dash.map((part) => part * 1.7), width: 1.7, points: { show: at.length === 1 }, spanGaps: true };
        const columns = [at, smooth(shown(curve.mean), state.width)];
        const first = series.length;
        series.push(line);
        if (state.width > 0) {
          columns.push(shown(curve.mean));
          series.push({ ...line, dash: [], width: 1, alpha: 0.28 });
        }
        if (curve.low !== undefined) {
          columns.push(smooth(shown(curve.high), state.width), smooth(shown(curve.low), state.width));
          const bare = { points: { show: false }, spanGaps: true, width: 0 };
          bands.push({ series: [series.length, series.length + 1], fill: `${row.colour}26` });
          series.push(bare, { ...bare });
        }
        series[first].row = index;
        tables.push(columns);
      }
      return { series, bands, columns: tables.length ? uPlot.join(tables) : [[0, 1]] };
    }

    // crosses where a seed ended early
    function ends(chart, panel) {
      const { ctx, bbox } = chart, size = 4 * devicePixelRatio;
      ctx.save();
      ctx.lineWidth = 2 * devicePixelRatio;
      for (const [index, row] of data.rows.entries()) {
        for (const end of state.hidden.has(index) ? [] : row.ends) {
          const [at, value] = [end.at[state.axis], end.values[panel]];
          if (at === undefined || value === null || (state.log && value <= 0)) continue;
          const x = chart.valToPos(at, "x", true), y = chart.valToPos(value, "y", true);
          if (x < bbox.left || x > bbox.left + bbox.width) continue;
          ctx.strokeStyle = row.colour;
          ctx.beginPath();
          for (const side of [-1, 1]) { ctx.moveTo(x - size, y - side * size); ctx.lineTo(x + size, y + side * size); }
          ctx.stroke();
        }
      }
      ctx.restore();
    }

    // the rows that are drawn with their values at the step nearest to a position on the axis, highest first
    function values(panel, x) {
      const found = [];
      for (const [index, row] of data.rows.entries()) {
        const at = row.at[state.axis], { mean, low, high } = row.curves[panel];
        if (state.hidden.has(index) || at === undefined) continue;
        let best = -1;
        for (let k = 0; k < at.length; k++) if (mean[k] !== null && (best < 0 || Math.abs(at[k] - x) < Math.abs(at[best] - x))) best = k;
        if (best >= 0) found.push({ row, at: at[best], step: row.at.steps[best], mean: mean[best], low: low?.[best], high: high?.[best] });
      }
      return found.sort((a, b) => b.mean - a.mean);
    }

    const words = (one) => `${number(one.mean)}${one.low === undefined ? "" : ` (${number(one.low)} to ${number(one.high)})`}`;

    function read(one) {
      const { chart, panel, tip, box } = one, { left, top } = chart.cursor;
      if (left === undefined || left < 0) { tip.hidden = true; return; }
      const x = chart.posToVal(left, "x"), all = values(panel, x);
      if (all.length === 0) return;
      const pointed = top >= 0 ? chart.posToVal(top, "y") : all[0].mean;
      const near = new Set([...all].sort((a, b) => Math.abs(a.mean - pointed) - Math.abs(b.mean - pointed)).slice(0, NEAR));
      const nearest = all.reduce((a, b) => (Math.abs(b.at - x) < Math.abs(a.at - x) ? b : a));
      const head = make("b", { textContent: state.axis === "steps" ? `step ${nearest.step}` : `${number(x)} ${data.axes.find(([name]) => name === state.axis)[1]}` });
      const lines = all.filter((entry) => near.has(entry)).map((entry) => make("span", { className: "entry" }, sample(entry.row), make("span", { textContent: entry.row.label }), make("span", { className: "value", textContent: words(entry) })));
      const more = all.length > near.size ? [make("span", { textContent: `and ${all.length - near.size} further away` })] : [];
      tip.replaceChildren(head, ...lines, ...more);
      tip.hidden = one !== charts.active;
      const wide = box.clientWidth, right = chart.over.offsetLeft + left;
      tip.style.left = `${Math.max(0, Math.min(right + 14, wide - tip.offsetWidth))}px`;
      if (right + 14 + tip.offsetWidth > wide && right > tip.offsetWidth + 14) tip.style.left = `${right - 14 - tip.offsetWidth}px`;
      box.setAttribute("aria-valuenow", String(nearest.step));
      box.setAttribute("aria-valuetext", `${head.textContent}: ${all.map((entry) => `${entry.row.label} ${words(entry)}`).join("; ")}`);
    }

    function draw(one) {
      const { box, panel } = one, { series, bands, columns } = drawn(panel);
      const axis = { stroke: "#444", grid: { stroke: "#ddd", width: 1 }, ticks: { stroke: "#ddd", width: 1 }, font: "12px system-ui, sans-serif" };
      one.chart?.destroy();
      one.chart = new uPlot({
        width: Math.max(160, box.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: figure.id }, points: { show: false }, y: false },
        scales: { x: { time: false }, y: { distr: state.log ? 3 : 1 } },
        axes: [{ ...axis, size: 36, space: 60 }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
        series,
        bands,
        hooks: { draw: [(chart) => ends(chart, panel)], setCursor: [(chart) => { one.chart = chart; read(one); }] },
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
      const axis = make("select", {}, ...data.axes.map(([name, title]) => new Option(title, name)));
      axis.addEventListener("change", () => { state.axis = axis.value; grid.querySelectorAll(".axis").forEach((span) => { span.textContent = axis.selectedOptions[0].textContent; }); redraw(); });
      const range = make("input", { type: "range", min: 0, max: 10, value: state.width });
      const width = make("output", { textContent: state.width });
      range.addEventListener("input", () => { state.width = Number(range.value); width.textContent = range.value; redraw(); });
      const log = make("input", { type: "checkbox" });
      log.addEventListener("change", () => { state.log = log.checked; redraw(); });
      return make("p", { className: "controls" }, make("label", {}, "Against ", axis), make("label", {}, "Smoothing (steps) ", range, " ", width), make("label", {}, log, " Logarithmic"));
    }

    function legend() {
      const buttons = data.rows.map((row, index) => {
        const button = make("button", { type: "button", className: "row" }, sample(row), row.label);
        button.addEventListener("click", () => { state.hidden.has(index) ? state.hidden.delete(index) : state.hidden.add(index); show(); });
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
      box.addEventListener("pointerleave", () => { tip.hidden = true; });
      box.addEventListener("blur", () => { tip.hidden = true; });
      box.append(tip);
      return make("div", { className: "panel" }, make("p", { className: "title" }, make("b", { textContent: panel.title }), panel.unit ? ` ${panel.unit}` : ""), box, make("p", { className: "axis", textContent: data.axes[0][1] }));
    }));
    figure.prepend(controls(), grid, legend());
    figure.classList.add("live");
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      charts.forEach(draw);
      new ResizeObserver(() => charts.forEach((one) => {
        const width = Math.max(160, one.box.clientWidth);
        if (width !== one.chart.width) one.chart.setSize({ width, height: HEIGHT });
      })).observe(grid);
    }, { rootMargin: "800px" });
    seen.observe(grid);
  }

  for (const [name, data] of Object.entries(JSON.parse(source.textContent))) build(document.getElementById(`figure-${name}`), data);
})();
