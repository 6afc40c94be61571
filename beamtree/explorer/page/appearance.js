// The look of the page: light colours, dark colours or the system's, remembered if the browser allows it; and, for a
// lecture, only player, trees and beams, on the whole screen if the browser allows it.

import { byId } from "./dom.js";

const NAMES = { auto: "the colours of your system", light: "light colours", dark: "dark colours" };

export function setUpTheme() {
  let theme = "auto";
  try {
    theme = localStorage.getItem("beamtree-theme") ?? "auto";
  } catch {
    // A file or a private window may have no storage. Then the choice lasts as long as the page.
  }
  apply(theme in NAMES ? theme : "auto");
  byId("theme").addEventListener("click", () => {
    const order = Object.keys(NAMES);
    apply(order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length]);
  });
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  byId("theme-name").textContent = theme;
  button.title = `Theme: ${theme}, ${NAMES[theme]}`;
  button.setAttribute("aria-label", button.title);
  try {
    localStorage.setItem("beamtree-theme", theme);
  } catch {
    // See above.
  }
}

export function toggleProjection() {
  project(!document.body.classList.contains("projecting"));
}

function project(wanted) {
  document.body.classList.toggle("projecting", wanted);
  for (const button of document.querySelectorAll(".project")) button.setAttribute("aria-pressed", String(wanted));
  if (wanted) document.documentElement.requestFullscreen?.().catch(() => {});
  else if (document.fullscreenElement) document.exitFullscreen();
  window.dispatchEvent(new Event("resize")); // the trees have a different amount of space now
}

// Escape makes the browser leave full screen without telling the page; if it never entered it, the page gets the key.
document.addEventListener("fullscreenchange", () => document.fullscreenElement || project(false));
document.addEventListener("keydown", (event) => event.key === "Escape" && project(false));
