"use strict";
// Bars of jobs on GPUs over time, on a plain canvas: tens of thousands of bars redraw in a few milliseconds.
function startGantt() {
  const canvas = byId("gantt-canvas"), tip = byId("gantt-tip"), select = byId("gantt-run"), find = byId("gantt-find");
  const paint = canvas.getContext("2d");
  const LEFT = 74, AXIS = 26;
  let data = null, view = null, hover = -1, found = null, frame = 0;

  const height = () => canvas.clientHeight - AXIS;
  const width = () => canvas.clientWidth - LEFT;
  const xOf = (t) => LEFT + ((t - view.from) / (view.to - view.from)) * width();
  const yOf = (gpu) => (gpu - view.gpu) * view.row;

  function show(index) {
    data = report.runs[index].gantt;
    data.order = [...data.job.keys()].sort((a, b) => guest(a) - guest(b));  // guests last, so that they are seen
    hover = -1;
    reset();
    search();
    const rest = data.total - data.shown;
    byId("gantt-note").textContent = `${data.shown.toLocaleString("en-US")} of ${data.total.toLocaleString("en-US")} allocations shown` +
      (rest > 0 ? `: those that began in the first ${duration(data.until_s)}; ${rest.toLocaleString("en-US")} later ones are left out.` : ".");
  }
  function reset() {
    const end = data.until_s === null ? data.end_s : data.until_s;
    view = { from: 0, to: Math.max(end, 1), gpu: 0, row: Math.max(height() / Math.max(data.gpus, 1), 2) };
    redraw();
  }
  function search() {
    const text = find.value.trim().toLowerCase();
    found = text ? data.names.map((n, i) => [n, data.users[i], data.models[i]].join("\n").toLowerCase().includes(text)) : null;
    redraw();
  }
  function redraw() {
    if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); });
  }

  function hue(job) { return Math.round((job * 137.508) % 360); }

  const guest = (i) => Boolean(data.guest && data.guest[i]);
  function rectangle(i) {
    const part = data.count[i] === 1 && view.row < 3 ? 0 : 1;
    const x = xOf(data.from[i]), w = Math.max(xOf(data.to[i]) - x, 0.6);
    const y0 = yOf(data.gpu[i]), h0 = data.count[i] * view.row - part;
    if (guest(i)) return [x, y0 + h0 * 0.7, w, h0 * 0.3];  // over whatever else runs there
    const h = h0 / data.members[i];
    return [x, y0 + h * data.member[i], w, h];
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.fillStyle = css("--card");
    paint.fillRect(0, 0, w, h);
    paint.save();
    paint.beginPath();
    paint.rect(LEFT, 0, width(), height());
    paint.clip();
    drawNodes(false);
    const sat = css("--bar-sat"), light = css("--bar-light"), ink = css("--bar-ink");
    paint.font = "11px system-ui, sans-serif";
    paint.textBaseline = "middle";
    for (const i of data.order) {
      if (data.to[i] < view.from || data.from[i] > view.to) continue;
      const [x, y, bw, bh] = rectangle(i);
      if (y > height() || y + bh < 0) continue;
      const faint = found && !found[data.job[i]];
      paint.globalAlpha = faint ? 0.13 : 1;
      paint.fillStyle = `hsl(${hue(data.job[i])} ${sat} ${light})`;
      paint.fillRect(x, y, bw, bh);
      if (bw > 3 && bh > 3) {
        paint.strokeStyle = css_card;
        paint.lineWidth = 1;
        paint.strokeRect(x + 0.5, y + 0.5, bw - 1, bh - 1);
      }
      if (data.job[i] === hover) {
        paint.strokeStyle = css_ink;
        paint.lineWidth = 2;
        paint.strokeRect(x + 1, y + 1, Math.max(bw - 2, 1), Math.max(bh - 2, 1));
      }
      const visible = Math.max(x, LEFT);
      if (x + bw - visible > 34 && bh >= 10 && !faint) label(data.names[data.job[i]], visible + 4, y + bh / 2, x + bw - visible - 8, ink);
    }
    paint.globalAlpha = 1;
    drawDown();
    paint.restore();
    drawNodes(true);
    drawAxis();
  }
  let css_card = "", css_ink = "";
  function colours() { css_card = css("--card"); css_ink = css("--ink"); }

  function label(text, x, y, room, ink) {
    const letters = Math.floor(room / 6.2);
    if (letters < 2) return;
    paint.fillStyle = ink;
    paint.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, x, y);
  }

  function drawNodes(names) {
    paint.strokeStyle = css("--line");
    paint.fillStyle = css("--soft");
    paint.font = "12px system-ui, sans-serif";
    paint.textBaseline = "middle";
    paint.lineWidth = 1;
    let free = -1;
    for (let n = 0; n < data.nodes.length; n++) {
      const top = yOf(data.first_gpu[n]), bottom = yOf(data.first_gpu[n + 1]);
      if (bottom < 0 || top > height()) continue;
      const middle = (Math.max(top, 0) + Math.min(bottom, height())) / 2;
      if (!names) {
        paint.beginPath(); paint.moveTo(LEFT, Math.round(bottom) + 0.5); paint.lineTo(canvas.clientWidth, Math.round(bottom) + 0.5); paint.stroke();
      } else if (middle - 7 > free) {
        paint.fillText(data.nodes[n].length > 9 ? `${data.nodes[n].slice(0, 8)}…` : data.nodes[n], 8, middle);
        free = middle + 7;
      }
    }
    if (names) { paint.beginPath(); paint.moveTo(LEFT - 0.5, 0); paint.lineTo(LEFT - 0.5, height()); paint.stroke(); }
  }

  function drawDown() {
    for (const [node, from, to] of data.down) {
      const x = xOf(from), w = xOf(to) - x, y = yOf(data.first_gpu[node]), h = yOf(data.first_gpu[node + 1]) - y;
      if (x + w < LEFT || x > canvas.clientWidth || y > height() || y + h < 0 || w <= 0) continue;
      paint.save();
      paint.beginPath(); paint.rect(x, y, w, h); paint.clip();
      paint.strokeStyle = css("--soft");
      paint.globalAlpha = 0.6;
      const left = Math.max(x, LEFT) - h, right = Math.min(x + w, canvas.clientWidth);
      paint.beginPath();
      for (let at = left - (left % 7); at < right; at += 7) { paint.moveTo(at, y + h); paint.lineTo(at + h, y); }
      paint.stroke();
      paint.restore();
      if (w > 40 && h > 12) { paint.font = "11px system-ui, sans-serif"; paint.fillStyle = css_ink; paint.fillText("down", Math.max(x, LEFT) + 4, y + Math.min(h / 2, 12)); }
    }
  }

  function drawAxis() {
    const span = view.to - view.from, [unit, size] = unitFor(view.to);
    const rough = span / size / Math.max(width() / 110, 2), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) * size;
    paint.fillStyle = css("--soft");
    paint.strokeStyle = css("--line");
    paint.font = "12px system-ui, sans-serif";
    paint.textBaseline = "top";
    paint.textAlign = "center";
    paint.beginPath(); paint.moveTo(LEFT, height() + 0.5); paint.lineTo(canvas.clientWidth, height() + 0.5); paint.stroke();
    for (let k = Math.ceil(view.from / step); k * step <= view.to; k++) {
      const x = xOf(k * step);
      paint.beginPath(); paint.moveTo(x, height()); paint.lineTo(x, height() + 5); paint.stroke();
      if (x > LEFT + 10 && x < canvas.clientWidth - 24) paint.fillText(`${trim((k * step) / size, step / size < 0.01 ? 4 : 2)} ${unit}`, x, height() + 8);
    }
    paint.textAlign = "left";
  }

  function zoom(factor, at) {
    const full = Math.max(data.end_s, 1), span = Math.min(Math.max((view.to - view.from) * factor, full / 1e5), full);
    const share = (at - view.from) / (view.to - view.from);
    view.from = Math.min(Math.max(at - share * span, 0), full - span);
    view.to = view.from + span;
    redraw();
  }
  function rows(factor, y) {
    const least = Math.max(height() / Math.max(data.gpus, 1), 2), old = view.row;
    view.row = Math.min(Math.max(old * factor, least), 60);
    view.gpu += y / old - y / view.row;
    pan(0, 0);
  }
  function pan(dx, dy) {
    const span = view.to - view.from, full = Math.max(data.end_s, 1);
    view.from = Math.min(Math.max(view.from - (dx / width()) * span, 0), Math.max(full - span, 0));
    view.to = view.from + span;
    view.gpu = Math.min(Math.max(view.gpu - dy / view.row, 0), Math.max(data.gpus - height() / view.row, 0));
    redraw();
  }

  const middle = () => (view.from + view.to) / 2;
  const actions = {
    left: () => pan(width() / 4, 0), right: () => pan(-width() / 4, 0), up: () => pan(0, 40), down: () => pan(0, -40),
    in: () => zoom(0.6, middle()), out: () => zoom(1 / 0.6, middle()), taller: () => rows(1.5, 0), flatter: () => rows(1 / 1.5, 0), reset,
  };
  document.querySelectorAll("[data-gantt]").forEach((b) => b.addEventListener("click", () => actions[b.dataset.gantt]()));
  const KEYS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", "=": "in", "-": "out", "+": "in", _: "flatter", "*": "taller", 0: "reset" };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const name = event.shiftKey && event.key === "+" ? "taller" : KEYS[event.key];
    if (name) { actions[name](); event.preventDefault(); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey || document.activeElement === canvas)) return;
    event.preventDefault();
    const factor = Math.exp(event.deltaY * 0.0015);
    if (event.shiftKey) rows(1 / factor, event.offsetY);
    else zoom(factor, view.from + ((event.offsetX - LEFT) / width()) * (view.to - view.from));
  }, { passive: false });

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); canvas.classList.add("drag"); });
  canvas.addEventListener("pointerup", () => { drag = null; canvas.classList.remove("drag"); });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      pan(event.clientX - drag[0], event.clientY - drag[1]);
      drag = [event.clientX, event.clientY];
      tip.hidden = true;
    } else point(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; if (hover >= 0) { hover = -1; redraw(); } });

  function point(x, y) {
    let hit = -1;
    if (x >= LEFT && y < height()) {
      for (let k = data.order.length - 1; k >= 0 && hit < 0; k--) {
        const i = data.order[k];
        const [bx, by, bw, bh] = rectangle(i);
        if (x >= bx && x <= bx + Math.max(bw, 2) && y >= by && y <= by + bh) hit = i;
      }
    }
    const job = hit < 0 ? -1 : data.job[hit];
    if (job !== hover) { hover = job; redraw(); }
    tip.hidden = hit < 0;
    if (hit >= 0) describe(hit, x, y);
  }
  function describe(i, x, y) {
    const name = document.createElement("strong");
    name.textContent = data.names[data.job[i]];
    const range = data.count[i] === 1 ? `GPU ${data.gpu[i]}` : `GPUs ${data.gpu[i]} to ${data.gpu[i] + data.count[i] - 1}`;
    const who = [["user", data.users], ["model", data.models]].map(([what, of]) => [what, of[data.job[i]]]).filter(([, text]) => text)
      .map(([what, text]) => `${what} ${text}`).join(", ");
    const lines = [who, guest(i) ? `${range}, as a guest` : range, `${duration(data.from[i])} to ${duration(data.to[i])} (${duration(data.to[i] - data.from[i])})`,
      data.members[i] > 1 ? `shared by ${data.members[i]} jobs` : "", `then: ${data.ends[data.ended[i]]}`];
    const parts = lines.filter(Boolean).map((text) => { const div = document.createElement("div"); div.textContent = text; return div; });
    tip.replaceChildren(name, ...parts);
    tip.style.left = `${Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(y + 14, canvas.clientHeight - tip.offsetHeight - 8)}px`;
  }

  fillSelect(select, report.runs.map((run, i) => [run.label, i]));
  select.addEventListener("change", () => show(Number(select.value)));
  find.addEventListener("input", search);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours(); redraw(); });
  new ResizeObserver(() => pan(0, 0)).observe(canvas.parentElement);
  colours();
  show(0);
  draw();
}
