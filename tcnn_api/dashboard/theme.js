// Before the first paint, so that nobody sees the wrong colours flash: light, dark, or whatever the system prefers.
const chosen = (() => {
  try {
    return localStorage.getItem("tcnn-theme");
  } catch {
    return null; // storage is switched off
  }
})();
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
