"use strict";
// Shared by the other scripts: data, formats, theme. Text from the data goes into the page as text only.
const report = JSON.parse(document.getElementById("report-data").textContent);
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

window.addEventListener("error", (event) => { root.dataset.error = event.message; });

const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const colour = (i) => css(`--s${i % 8}`);
const DASHES = ["solid", [7, 3], [2, 3], [10, 3, 2, 3], [14, 4], [4, 2, 1, 2], [1, 2], [10, 2, 2, 2, 2, 2]];
const dash = (i) => DASHES[(i + Math.floor(i / 8)) % DASHES.length];  // 64 pairs of colour and dash

const escapeHtml = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

function trim(value, digits) {
  return Number(value.toFixed(digits)).toLocaleString("en-US", { maximumFractionDigits: digits });
}
function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return trim(value, size >= 1000 ? 0 : size >= 100 ? 1 : 2);
}
const UNITS = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]];
function unitFor(seconds, least = 2) {
  let best = UNITS[0];
  for (const unit of UNITS) if (seconds >= least * unit[1] - 1e-9) best = unit;
  return best;
}
function duration(seconds, least = 2) {
  if (seconds === null || seconds === undefined) return "–";
  const [name, size] = unitFor(Math.abs(seconds), least);
  return `${shortNumber(seconds / size)} ${name}`;
}
const percent = (value) => (value === null || value === undefined ? "–" : `${trim(100 * value, 1)} %`);

// What a figure means, for the mouse and for screen readers.
function explain(element, text) {
  element.title = text || "";
  element.setAttribute("aria-description", text || "");
}

function fillSelect(select, entries) {
  select.replaceChildren();
  for (const [label, value, group] of entries) {
    const option = new Option(label, value);
    let parent = select;
    if (group) {
      parent = [...select.children].find((c) => c.label === group);
      if (!parent) {
        parent = document.createElement("optgroup");
        parent.label = group;
        select.append(parent);
      }
    }
    parent.append(option);
  }
}

function sortedBy(rows, key, descending) {
  const sign = descending ? -1 : 1;
  return rows.slice().sort((a, b) => {
    const x = key(a), y = key(b);
    const noX = x === null || x === undefined || x === "", noY = y === null || y === undefined || y === "";
    if (noX || noY) return noX - noY;           // what is unknown comes last either way
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  });
}
