// For a lecture: only player, trees and beams, on the whole screen where the browser allows.

export function toggleProjection() {
  const projecting = document.body.classList.toggle("projecting");
  if (projecting) document.documentElement.requestFullscreen?.().catch(() => {});
  else if (document.fullscreenElement) document.exitFullscreen();
  label(projecting);
}

function label(projecting) {
  for (const button of document.querySelectorAll(".project")) button.setAttribute("aria-pressed", String(projecting));
}

// The Escape key leaves the whole screen without asking the page.
document.addEventListener("fullscreenchange", () => {
  if (document.fullscreenElement) return;
  document.body.classList.remove("projecting");
  label(false);
});
