// Before anything is drawn: the theme that was chosen here, else that of the system.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("plait-theme"); } catch { /* storage is off */ }
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
