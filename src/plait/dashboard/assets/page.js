// Theme, keys, and the notice that the service does not answer. Everything else is rendered by the service.
(() => {
  const root = document.documentElement, find = (id) => document.getElementById(id);
  const switchTheme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("plait-theme", root.dataset.theme); } catch { /* storage is off */ }
    dispatchEvent(new Event("theme"));
  };
  find("theme")?.addEventListener("click", switchTheme);
  let go = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const link = go && document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    go = event.key === "g";
    if (link) link.click();
    else if (event.key === "t") switchTheme();
    else if (event.key === "/") {
      event.preventDefault();
      const field = document.querySelector("[type=search]");
      if (field) field.focus(); else location.assign("/web/jobs#search");
    }
  });
  if (location.hash === "#search") document.querySelector("[type=search]")?.focus();
  // What somebody opened stays open when the page is drawn again; htmx asks extensions alone about attributes.
  htmx.registerExtension("stay-open", {
    htmx_before_morph_attr: (_, { attrName, newValue }) => attrName !== "open" || newValue !== null,
  });
  const lost = find("lost");
  document.addEventListener("htmx:sse:error", () => { lost.hidden = false; });
  document.addEventListener("htmx:sse:after:connection", () => { lost.hidden = true; });
  document.addEventListener("ended", () => location.assign("/web/login"));
  document.addEventListener("submit", (event) => {
    const ask = event.submitter?.dataset.ask ?? event.target.dataset.ask;
    if (ask && !confirm(ask)) event.preventDefault();
  });
})();
