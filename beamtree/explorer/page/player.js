// The transport: a slider over the merges, one at a time or playing. Several panes follow one player.

import { byId } from "./dom.js";

const WHOLE_SHOW = 30_000; // at most this long, however many merges there are
const SLOWEST = 900;
const QUICKEST = 50;

export class Player {
  // `show(step)`: draw that step; `words(step)`: say what happens in it
  constructor({ show, words }) {
    this.show = show;
    this.words = words;
    this.step = this.steps = 0;
    this.timer = null;
    byId("first").addEventListener("click", () => this.stopAt(0));
    byId("previous").addEventListener("click", () => this.stopAt(this.step - 1));
    byId("next").addEventListener("click", () => this.stopAt(this.step + 1));
    byId("last").addEventListener("click", () => this.stopAt(this.steps));
    byId("play").addEventListener("click", () => this.toggle());
    byId("step").addEventListener("input", (event) => this.stopAt(Number(event.target.value)));
    document.addEventListener("keydown", (event) => this.press(event));
  }

  take(steps, step = steps) {
    this.pause();
    this.steps = steps;
    byId("player").hidden = steps === 0;
    byId("step").max = steps;
    this.go(step);
  }

  go(step) {
    this.step = Math.min(this.steps, Math.max(0, step));
    byId("step").value = this.step;
    this.show(this.step);
    const words = this.words(this.step);
    byId("step-text").textContent = words;
    byId("step").setAttribute("aria-valuetext", words);
    for (const name of ["first", "previous"]) disable(byId(name), this.step === 0);
    for (const name of ["next", "last"]) disable(byId(name), this.step === this.steps);
  }

  stopAt(step) {
    this.pause();
    this.go(step);
  }

  toggle() {
    if (this.timer !== null) {
      this.pause();
      return;
    }
    if (this.step === this.steps) this.go(0);
    const pause = Math.min(SLOWEST, Math.max(QUICKEST, WHOLE_SHOW / this.steps));
    this.timer = setInterval(() => {
      this.go(this.step + 1);
      if (this.step === this.steps) this.pause();
    }, pause);
    this.label();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.label();
  }

  label() {
    const playing = this.timer !== null;
    const words = playing ? "Pause" : "Play the merges";
    byId("player").classList.toggle("playing", playing);
    byId("play").setAttribute("aria-label", words);
    byId("play").title = words;
    byId("step-text").setAttribute("aria-live", playing ? "off" : "polite"); // nobody can listen that fast
  }

  press(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || this.steps === 0) return;
    if (event.target.closest("input, textarea, select, button, summary, a")) return;
    const act = {
      " ": () => this.toggle(),
      ",": () => this.stopAt(this.step - 1),
      ".": () => this.stopAt(this.step + 1),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}

// A button that has focus keeps it, so that a keyboard is not thrown back to the top of the page.
function disable(button, wanted) {
  button.setAttribute("aria-disabled", String(wanted));
}
