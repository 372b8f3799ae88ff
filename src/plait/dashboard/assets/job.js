// The timeline of a job or node on a canvas; on a job's page its log as it grows, with search.
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const draw = () => {
    const canvas = document.querySelector("canvas.timeline");
    if (!canvas) return;
    const { from, to, lanes, bars, ago } = JSON.parse(canvas.dataset.bars), ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth, lane = lanes.length > 16 ? 10 : 20, left = width < 500 ? 70 : 120, foot = 18;
    const height = lanes.length * lane + foot, span = Math.max(to - from, 1e-3), pen = canvas.getContext("2d");
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
    const x = (at) => left + (width - left - 4) * (at - from) / span;
    const text = (words, at, y, most) => { pen.fillStyle = css("--dim"); pen.fillText(words, at, y, most); };
    lanes.forEach((name, i) => {
      pen.fillStyle = css("--free"); pen.fillRect(left, (i + 0.5) * lane, width - left - 4, 1);
      if (lane > 10 || i % 2 === 0) text(name, 0, (i + 0.5) * lane, left - 8);
    });
    for (const [row, begin, end, words, how, other] of bars) {
      const wide = Math.max(x(end) - x(begin), 2), low = lane > 10 ? 6 : 3;
      pen.fillStyle = css(other ? "--dim" : /^h\d/.test(how) ? `--${how}` : how === "running" ? "--h2" : how === "finished" ? "--h0" : how === "failed" ? "--h5" : "--h1");
      pen.fillRect(x(begin), row * lane + (other ? lane - low : 2), wide, other ? low - 1 : lane - 3 - low);
      if (!other && wide > 30 && lane > 10) { pen.fillStyle = "#fff"; pen.fillText(words, x(begin) + 4, (row + 0.5) * lane - 2, wide - 6); }
    }
    // One unit for the whole axis, and as many marks as fit beside each other.
    const unit = span < 180 ? [1, "s"] : span < 3 * 3600 ? [60, "min"] : [3600, "h"], marks = width < 500 ? 2 : 4;
    const said = (s) => `${(s / unit[0]).toFixed(span / unit[0] < 20 ? 1 : 0)} ${unit[1]}`;
    for (let i = 0; i <= marks; i++) {
      pen.textAlign = i === marks ? "right" : i ? "center" : "left";
      text(ago ? i < marks ? `${said(span * (marks - i) / marks)} ago` : "now" : i ? said(span * i / marks) : "submitted", x(from + span * i / marks), height - foot / 2);
    }
    pen.textAlign = "left";
  };
  draw();
  addEventListener("resize", draw); addEventListener("theme", draw);
  document.addEventListener("htmx:after:swap", draw);

  const box = document.getElementById("log-text");
  if (!box) return;
  const MOST = 500000, rank = document.getElementById("rank"), wanted = document.getElementById("log-search");
  const found = document.getElementById("log-found");
  let stream, all = "";
  const show = (more) => {
    const stays = box.scrollTop + box.clientHeight < box.scrollHeight - 30, word = wanted.value;
    if (!word && more !== undefined) box.append(more);
    else {
      box.textContent = "";
      const parts = word ? all.split(word) : [all];
      parts.forEach((part, i) => {
        if (i) box.append(Object.assign(document.createElement("mark"), { textContent: word }));
        box.append(part);
      });
      found.textContent = word ? `${parts.length - 1} found` : "";
      const first = box.querySelector("mark");
      if (first && more === undefined) { box.scrollTop = first.offsetTop - box.offsetTop - 20; return; }
    }
    if (!stays) box.scrollTop = box.scrollHeight;
  };
  const add = (text) => {
    all += text;
    if (all.length > MOST) { all = `[plait: what came before is not shown here; "all of it as text" has it]\n${all.slice(-MOST / 2)}`; show(); } else show(text);
  };
  const follow = () => {
    stream?.close();
    all = ""; box.textContent = "";
    let offset = 0;
    document.getElementById("log-file").href = `${box.dataset.tail.replace(/tail$/, "log")}?rank=${rank.value || 0}`;
    const open = () => {
      stream = new EventSource(`${box.dataset.tail}?rank=${rank.value || 0}&offset=${offset}`);
      stream.onmessage = (event) => { const part = JSON.parse(event.data); offset = part.next; add(part.text); };
      stream.addEventListener("notice", (event) => add(`\n[${JSON.parse(event.data).message}]\n`));
      stream.addEventListener("end", () => stream.close());
      stream.onerror = (event) => {
        stream.close();
        if (event.data) add(`\n[${JSON.parse(event.data).message}]\n`); else setTimeout(open, 3000);
      };
    };
    open();
  };
  rank.addEventListener("change", follow);
  wanted.addEventListener("input", () => show());
  follow();
})();
