"use strict";
// Line charts. Lines differ in colour and in dashes; each chart is rebuilt when the colour scheme changes.
const charts = [];

function addChart(name, option) {
  const element = document.querySelector(`[data-chart="${name}"]`);
  const chart = echarts.init(element, null, { renderer: "canvas" });
  const legend = document.createElement("ul");
  legend.className = "legend";
  legend.setAttribute("aria-label", "Lines of the chart; press one to hide or show it");
  element.before(legend);
  const draw = () => { const made = option(); chart.setOption(made, true); fillLegend(legend, chart, made.series); };
  charts.push({ chart, draw, element });
  draw();
  return draw;
}

// All lines are named, in as many rows as that takes.
function fillLegend(legend, chart, series) {
  legend.replaceChildren(...series.map((s) => {
    const item = document.createElement("li"), button = document.createElement("button"), key = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of Object.entries({ x1: 0, x2: 34, y1: 6, y2: 6, stroke: s.lineStyle.color, "stroke-width": 2.5 })) stroke.setAttribute(name, value);
    if (Array.isArray(s.lineStyle.type)) stroke.setAttribute("stroke-dasharray", s.lineStyle.type.join(" "));
    key.setAttribute("width", 34); key.setAttribute("height", 12); key.setAttribute("aria-hidden", "true");
    key.append(stroke);
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(key, s.name);
    button.addEventListener("click", () => {
      chart.dispatchAction({ type: "legendToggleSelect", name: s.name });
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    });
    item.append(button);
    return item;
  }));
}

function baseOption(xAxis, yAxis, series, tooltip) {
  const axis = { axisLine: { lineStyle: { color: css("--line") } }, axisLabel: { color: css("--soft"), hideOverlap: true },
    splitLine: { lineStyle: { color: css("--grid") } }, nameTextStyle: { color: css("--soft") } };
  return {
    animation: false, aria: { enabled: true }, textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
    grid: { left: 12, right: 24, top: 16, bottom: 34, containLabel: true },
    legend: { show: false },
    tooltip: { trigger: "axis", backgroundColor: css("--card"), borderColor: css("--line"), textStyle: { color: css("--ink"), fontSize: 13 },
      axisPointer: { lineStyle: { color: css("--soft") } }, confine: true, ...tooltip },
    dataZoom: [{ type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false }],
    xAxis: { ...axis, nameLocation: "middle", nameGap: 28, ...xAxis },
    yAxis: { ...axis, nameGap: 14, ...yAxis },
    series,
  };
}

function line(i, name, data, step) {
  return { name, type: "line", data, step: step ? "end" : false, showSymbol: false, symbol: "circle", symbolSize: 5,
    lineStyle: { color: colour(i), width: 2, type: dash(i) }, itemStyle: { color: colour(i) }, emphasis: { disabled: true } };
}

function tooltipRows(points, head, show) {
  const rows = points.filter((p) => p.value[1] !== null)
    .map((p) => `${p.marker} ${escapeHtml(p.seriesName)} <b>${escapeHtml(show(p.value[1]))}</b>`);
  return [`<b>${escapeHtml(head)}</b>`, ...rows].join("<br>");
}

// Distributions are drawn over log10 of the value, with ticks where people expect them.
const TIME_TICKS = [1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000, 86400000];
const TEN_TICKS = Array.from({ length: 12 }, (_, i) => 10 ** (i - 2));

function cdfOption(key, format, least, allTicks) {
  const log = (x) => Math.log10(Math.max(x, least));
  const series = report.runs.map((run, i) => line(i, run.label, run[key].map(([x, y]) => [log(x), y]), true));
  series.forEach((s) => { if (s.data.length) s.data.unshift([s.data[0][0], 0]); });
  const ends = series.flatMap((s) => (s.data.length ? [s.data[0][0], s.data[s.data.length - 1][0]] : []));
  const low = ends.length ? Math.min(...ends) : 0, high = ends.length ? Math.max(...ends) : 1;
  const below = allTicks.filter((t) => log(t) <= low + 1e-9).pop() || least, above = allTicks.find((t) => log(t) >= high - 1e-9) || 10 ** high;
  const ticks = allTicks.filter((t) => t >= below && t <= above).map(log);
  const label = (x) => format(10 ** x), tick = (x) => format(10 ** x, 1);
  const option = baseOption(
    { type: "value", min: log(below), max: log(above), axisTick: { customValues: ticks }, splitLine: { show: false },
      axisLabel: { color: css("--soft"), customValues: ticks, formatter: tick, hideOverlap: true } },
    { type: "value", min: 0, max: 1, axisLabel: { color: css("--soft"), formatter: (v) => `${Math.round(v * 100)} %` } }, series,
    { formatter: (points) => {
      const at = points[0].axisValue;
      const rows = series.map((s, i) => {
        let share = 0;
        for (const [x, y] of s.data) { if (x > at + 1e-12) break; share = y; }
        return `<span style="color:${colour(i)}">●</span> ${escapeHtml(s.name)} <b>${percent(share)}</b>`;
      });
      return [`<b>≤ ${escapeHtml(label(at))}</b>`, ...rows].join("<br>");
    } });
  option.grid.bottom = 6;
  if (!ends.length) option.title = nothing();
  return option;
}

const nothing = () => ({ text: "not known for these runs", left: "center", top: "middle", textStyle: { color: css("--soft"), fontSize: 14 } });

const ratioLabel = (v) => `${shortNumber(v)}×`;

function timeOption(entries, share) {
  const longest = Math.max(...entries.map((e) => e.t[e.t.length - 1] || 0), 1);
  const [unit, size] = unitFor(longest);
  const show = share ? percent : shortNumber;
  const lines = entries.map((e, i) => line(e.style === undefined ? i : e.style, e.name, e.t.map((t, k) => [t / size, e.y[k]]), false));
  const option = baseOption(
    { type: "value", min: 0, max: "dataMax", name: `time since the first submission (${unit})`, axisLabel: { color: css("--soft"), formatter: shortNumber, hideOverlap: true } },
    { type: "value", min: 0, axisLabel: { color: css("--soft"), formatter: share ? (v) => `${Math.round(v * 100)} %` : shortNumber } },
    lines, { formatter: (points) => tooltipRows(points, `${shortNumber(points[0].axisValue)} ${unit}`, show) });
  option.grid.bottom = 30;
  if (!entries.length) option.title = nothing();
  return option;
}

const QUEUE = { queue_length: ["Waiting jobs", false, "Jobs that have been submitted and hold no GPUs."], running_jobs: ["Running jobs", false, "Jobs that hold GPUs."],
  blocking_index: ["Blocking index, each ratio capped at 100", false, "Mean over waiting jobs of time waited over work left (Muri, SIGCOMM'22)."],
  fragmentation: ["Free GPUs on partly used nodes while jobs wait", true, "Share of the free GPUs that are on nodes of which other GPUs are held."] };
const MEANS = { gpu_utilisation: "GPU time held over the GPU time of nodes that are up.", gpu_busy: "GPU stages of useful work over the capacity.",
  cpu_utilisation: "CPU stages of useful work over the capacity.", storage_utilisation: "Storage stages of useful work over the capacity.",
  network_utilisation: "Network stages of useful work over the capacity." };
const RESOURCES = { gpu_utilisation: "GPUs held", gpu_busy: "GPU busy", cpu_utilisation: "CPU busy", storage_utilisation: "Storage busy", network_utilisation: "Network busy" };

const known = (name) => report.runs.some((run) => run.series[name]);
const perRun = (name) => report.runs.map((run, i) => ({ name: run.label, t: run.series.t, y: run.series[name], style: i })).filter((e) => e.y);

// Averages of neighbouring intervals, for a calmer line; all intervals are equally long.
function coarser(entry, points) {
  const size = Math.ceil(entry.t.length / points);
  if (size <= 1) return entry;
  const mean = (values) => { const ok = values.filter((v) => v !== null); return ok.length ? ok.reduce((a, b) => a + b, 0) / ok.length : null; };
  const parts = (values) => Array.from({ length: Math.ceil(values.length / size) }, (_, k) => mean(values.slice(k * size, (k + 1) * size)));
  return { ...entry, t: parts(entry.t), y: parts(entry.y) };
}

const TRAINING = { batch: ["Batch size, examples of a step", false], efficiency: ["Worth of an example, relative to the first batch size", true],
  noise: ["Gradient noise scale, examples", false], gpus: ["GPUs", false] };

function startTraining() {
  const metric = byId("training-metric"), which = byId("training-run");
  fillSelect(metric, Object.keys(TRAINING).map((key) => [TRAINING[key][0], key]));
  fillSelect(which, report.runs.map((run, i) => [run.label, String(i)]).filter(([, i]) => report.runs[Number(i)].training.length));
  const draw = addChart("training", () => {
    const [text, share] = TRAINING[metric.value], jobs = report.runs[Number(which.value)].training;
    byId("training-caption").textContent = `${text}; the jobs that trained longest`;
    const option = timeOption(jobs.map((job, i) => ({ name: job.name, t: job.t, y: job[metric.value], style: i })), share);
    option.series.forEach((s) => { s.step = "end"; });
    return option;
  });
  [metric, which].forEach((select) => select.addEventListener("change", draw));
}

function startCharts() {
  addChart("jct", () => cdfOption("jct", duration, 1, TIME_TICKS));
  addChart("slowdown", () => cdfOption("slowdown", ratioLabel, 0.01, TEN_TICKS));
  addChart("rho", () => cdfOption("rho", ratioLabel, 0.01, TEN_TICKS));

  const queue = byId("queue-metric");
  fillSelect(queue, Object.keys(QUEUE).filter(known).map((key) => [QUEUE[key][0], key]));
  const drawQueue = addChart("queue", () => {
    const [text, share] = QUEUE[queue.value] || ["", false];
    byId("queue-caption").textContent = text ? `${text}; average of each interval` : "";
    explain(byId("queue-caption"), (QUEUE[queue.value] || [])[2]);
    return timeOption(perRun(queue.value), share);
  });
  queue.addEventListener("change", drawQueue);

  const usage = byId("utilisation-metric");
  fillSelect(usage, [
    ...Object.keys(RESOURCES).filter(known).map((key) => [RESOURCES[key], `all:${key}`, "One resource, all policies"]),
    ...report.runs.map((run, i) => [run.label, `run:${i}`, "All resources, one policy"]),
  ]);
  const points = byId("utilisation-points");
  const drawUsage = addChart("utilisation", () => {
    const [kind, value] = usage.value.split(/:(.*)/), run = report.runs[Number(value)];
    const entries = (kind === "run"
      ? Object.keys(RESOURCES).filter((k) => run.series[k]).map((k, i) => ({ name: RESOURCES[k], t: run.series.t, y: run.series[k], style: i }))
      : perRun(value)).map((entry) => coarser(entry, Number(points.value)));
    const first = entries[0], each = first && first.t.length > 1 ? ` of each ${duration(first.t[1] - first.t[0])}` : "";
    byId("utilisation-caption").textContent = `${kind === "run" ? run.label : RESOURCES[value] || ""}: share of the cluster's capacity, average${each}`;
    explain(byId("utilisation-caption"), kind === "run" ? Object.values(MEANS).join(" ") : MEANS[value]);
    return timeOption(entries, true);
  });
  points.addEventListener("change", drawUsage);
  usage.addEventListener("change", drawUsage);

  if (byId("training")) startTraining();

  new ResizeObserver(() => charts.forEach((c) => c.chart.resize())).observe(document.querySelector("main"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((c) => c.draw()));
}
