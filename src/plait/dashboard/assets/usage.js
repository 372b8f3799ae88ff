// Charts of what a job uses over time, on one time axis. A table of the page has the same in words.
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const COLOURS = ["--h0", "--h1", "--h2", "--h3"];
  const bytes = (v) => { let i = 0; for (; v >= 1024 && i < 4; i++) v /= 1024; return `${+v.toPrecision(3)} ${"KMGT"[i - 1] ?? ""}${i ? "i" : ""}B`; };
  const said = (v, unit) => v == null ? "-" : unit === "share" ? `${(100 * v).toFixed(0)} %` : unit === "bytes" ? bytes(v)
    : unit === "bytes/s" ? `${bytes(v)}/s` : unit === "s" ? (v < 1 ? `${+(1000 * v).toPrecision(3)} ms` : `${+v.toPrecision(3)} s`) : `${+v.toPrecision(3)}`;
  const span = (s) => s < 120 ? `${s} s` : s < 7200 ? `${+(s / 60).toFixed(1)} min` : `${+(s / 3600).toFixed(1)} h`;
  const TIMES = [1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, ...[1, 2, 3, 6, 12, 24, 48, 96, 192].map((h) => 3600 * h)];
  let plots = [], drawn = "";
  const chart = (title, series, xs, box) => {
    const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const unit = series[0].unit, place = box.appendChild(document.createElement("div"));
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${title} over time; the table below has the same`);
    return new uPlot({
      width: box.clientWidth, height: 120, cursor: { sync: { key: "usage" }, y: false, drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, unit === "share" ? 1 : (most || 1) * 1.05] } },
      axes: [{ ...axis, size: 28, incrs: TIMES, space: 70, values: (_, at) => at.map(span) }, { ...axis, size: 70,
        ...(unit.startsWith("bytes") && { incrs: [...Array(50).keys()].map((i) => 2 ** i) }), values: (_, at) => at.map((v) => said(v, unit)) }],
      series: [{ label: "after", value: (_, v) => v == null ? "-" : span(v) }, ...series.map((one, i) => ({
        label: one.text, stroke: css(COLOURS[i]), width: 1.5, points: { show: xs.length < 40, size: 4 }, value: (_, v) => said(v, unit),
      }))],
    }, [xs, ...series.map((one) => one.values)], place);
  };
  const draw = () => {
    const source = document.getElementById("usage-data"), boxes = document.getElementById("usage-charts");
    if (!source || !boxes) return;
    const { interval_s, series } = JSON.parse(source.dataset.usage), charts = Map.groupBy(series, (one) => one.chart);
    const xs = (series[0]?.values ?? []).map((_, i) => i * interval_s), way = [...series.map((one) => one.text), boxes.clientWidth, css("--dim"), xs.length < 40].join();
    if (way === drawn) { [...charts.values()].forEach((some, i) => plots[i].setData([xs, ...some.map((one) => one.values)])); return; }
    plots.forEach((one) => one.destroy());
    boxes.textContent = "";
    const figures = [...charts.keys()].map((title) => {  // all of them, before one is as wide as it will be
      const box = boxes.appendChild(document.createElement("figure"));
      box.append(Object.assign(document.createElement("figcaption"), { textContent: title }));
      return box;
    });
    plots = [...charts].map(([title, some], i) => chart(title, some, xs, figures[i]));
    drawn = way;
  };
  draw();
  addEventListener("resize", draw); addEventListener("theme", draw);
  document.addEventListener("htmx:after:swap", draw);
})();
