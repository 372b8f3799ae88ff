"use strict";
// Sorting of the comparison table, and the paged job table.
function startComparison() {
  const table = byId("compare-table"), heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const descending = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((h) => h.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column], text = cell.dataset.value;
      return text === undefined ? cell.textContent : text === "" ? null : Number(text);
    };
    body.append(...sortedBy([...body.rows], key, descending));
  }));
  byId("show-extra").addEventListener("change", (event) => table.classList.toggle("all", event.target.checked));
}

const JOB_COLUMNS = [
  ["id", "Job", "text", "Its name in the trace or on the cluster."], ["user", "User", "text", "Who submitted it."], ["model", "Model", "text", "What it trains."],
  ["gpus", "GPUs", "number", "GPUs that it asked for."], ["submit_s", "Submitted", "time", "Time from the first submission of the run."],
  ["jct_s", "JCT", "time", "Job completion time: submission to completion."], ["queue_s", "Waited", "time", "Time without GPUs, all waits."],
  ["run_s", "Ran", "time", "Time with GPUs."], ["duration_s", "Alone", "time", "How long it takes alone on the GPUs that it asked for."],
  ["slowdown", "Slowdown", "ratio", "Completion time over the time alone."], ["starts", "Starts", "number", "Times it was started."],
  ["preemptions", "Preempted", "number", "Times the scheduler stopped it."], ["failures", "Failures", "number", "Times its processes failed."],
  ["state", "State", "text", "How it ended."], ["reason", "Reason", "text", "Why it failed or was refused."],
];
const PAGE = 50;

function startJobs() {
  const select = byId("jobs-run"), search = byId("jobs-search"), table = byId("jobs-table"), head = table.tHead.rows[0], body = table.tBodies[0];
  let jobs = null, rows = [], page = 0, sort = "", descending = false, columns = JOB_COLUMNS;

  function load(index) {
    jobs = report.runs[index].jobs;
    columns = JOB_COLUMNS.filter(([key], i) => i === 0 || jobs[key].some((v) => v !== "" && v !== null));
    const left = jobs.total - jobs.shown;
    byId("jobs-note").textContent = left > 0
      ? `The first ${jobs.shown.toLocaleString("en-US")} of ${jobs.total.toLocaleString("en-US")} jobs by submission; ${left.toLocaleString("en-US")} are left out to keep this file small.`
      : `All ${jobs.total.toLocaleString("en-US")} jobs.`;
    head.replaceChildren(...columns.map(([key, label, kind, means]) => {
      const th = document.createElement("th"), button = document.createElement("button");
      th.scope = "col";
      th.className = kind === "text" ? "" : "num";
      th.setAttribute("aria-sort", key === sort ? (descending ? "descending" : "ascending") : "none");
      button.type = "button";
      button.textContent = label;
      explain(button, means);
      button.addEventListener("click", () => { descending = sort === key && !descending; sort = key; load(index); body.scrollIntoView({ block: "nearest" }); });
      th.append(button);
      return th;
    }));
    filter();
  }
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fields = ["id", "user", "model", "state", "reason"];
    rows = [];
    for (let i = 0; i < jobs.shown; i++) {
      const text = words.length ? fields.map((f) => jobs[f][i]).join("\n").toLowerCase() : "";
      if (words.every((word) => text.includes(word))) rows.push(i);
    }
    if (sort) rows = sortedBy(rows, (i) => jobs[sort][i], descending);
    page = 0;
    render();
  }
  function render() {
    const pages = Math.max(Math.ceil(rows.length / PAGE), 1);
    page = Math.min(Math.max(page, 0), pages - 1);
    body.replaceChildren(...rows.slice(page * PAGE, (page + 1) * PAGE).map((i) => {
      const tr = document.createElement("tr");
      columns.forEach(([key, , kind], c) => {
        const cell = document.createElement(c === 0 ? "th" : "td"), value = jobs[key][i];
        if (c === 0) cell.scope = "row";
        cell.className = kind === "text" ? "text" : "num";
        cell.textContent = kind === "time" ? duration(value) : kind === "ratio" ? (value === null ? "–" : value.toFixed(2)) : kind === "number" ? shortNumber(value) : value;
        if (kind === "time" && value !== null) cell.title = `${value} s`;
        if (key === "reason") cell.title = value;
        tr.append(cell);
      });
      return tr;
    }));
    byId("jobs-page").textContent = rows.length
      ? `${page * PAGE + 1} to ${Math.min((page + 1) * PAGE, rows.length)} of ${rows.length.toLocaleString("en-US")}` : "no job matches";
    byId("jobs-back").disabled = page === 0;
    byId("jobs-next").disabled = page >= pages - 1;
  }
  fillSelect(select, report.runs.map((run, i) => [run.label, i]));
  select.addEventListener("change", () => load(Number(select.value)));
  search.addEventListener("input", filter);
  byId("jobs-back").addEventListener("click", () => { page--; render(); });
  byId("jobs-next").addEventListener("click", () => { page++; render(); });
  load(0);
}

startComparison();
if (report.runs.length) {
  startCharts();
  startGantt();
  startJobs();
}
root.dataset.charts = String(charts.filter((c) => c.element.querySelector("canvas")).length);
root.dataset.jobs = String(byId("jobs-table").tBodies[0].rows.length);
root.dataset.ready = "1";
