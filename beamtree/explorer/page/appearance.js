// How the page looks: colours light, dark or as the system has them, remembered where the browser allows; and for a
// lecture only player, trees and beams, on the whole screen where the browser allows.

import { byId } from "./dom.js";

const NAMES = { auto: "colours as the system has them", light: "light colours", dark: "dark colours" };

export function setUpTheme() {
  let theme = "auto";
  try {
    theme = localStorage.getItem("beamtree-theme") ?? "auto";
  } catch {
    // A file or a private window may have no storage: the choice then lasts as long as the page.
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
  window.dispatchEvent(new Event("resize")); // there is another room for the trees now
}

// The Escape key leaves the whole screen without asking the page; where the browser gave none, it asks the page.
document.addEventListener("fullscreenchange", () => document.fullscreenElement || project(false));
document.addEventListener("keydown", (event) => event.key === "Escape" && project(false));
