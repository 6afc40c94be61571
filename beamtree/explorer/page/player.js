// The player: moves through the merges by slider, step by step, or playing. All panes follow it.

import { byId } from "./dom.js";

const WHOLE_SHOW = 30_000; // milliseconds that playing takes at most, however many merges there are
const SLOWEST = 900;
const QUICKEST = 50;
const TOLD = { least: 4000, letter: 45 }; // milliseconds for a merge, per letter of its story, and at least

export class Player {
  // `show(step)`: draw that step; `words(step)`: what happens in it, in a few words; `tell(step)`: in sentences
  constructor({ show, words, tell }) {
    this.show = show;
    this.words = words;
    this.sentences = tell;
    this.told = false; // has this search been explained before?
    this.telling = false; // is it playing slowly, until the user touches anything?
    this.step = this.steps = 0;
    this.timer = null;
    byId("first").addEventListener("click", () => this.stopAt(0));
    byId("previous").addEventListener("click", () => this.stopAt(this.step - 1));
    byId("next").addEventListener("click", () => this.stopAt(this.step + 1));
    byId("last").addEventListener("click", () => this.stopAt(this.steps));
    byId("play").addEventListener("click", () => this.toggle());
    byId("tell").addEventListener("click", () => this.tell());
    for (const touch of ["pointerdown", "keydown", "wheel"])
      document.addEventListener(touch, (event) => this.touched(event), { capture: true, passive: true });
    byId("step").addEventListener("input", (event) => this.stopAt(Number(event.target.value)));
    document.addEventListener("keydown", (event) => this.press(event));
  }

  take(steps, step = steps) {
    this.told = false;
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
    this.speak();
    for (const name of ["first", "previous"]) disable(byId(name), this.step === 0);
    for (const name of ["next", "last"]) disable(byId(name), this.step === this.steps);
  }

  speak() {
    const words = this.words(this.step);
    byId("step-text").textContent = words;
    byId("step").setAttribute("aria-valuetext", words);
    const told = this.sentences(this.step);
    byId("story").textContent = told;
    byId("tell").hidden = !told; // there is no story of a long text
  }

  stopAt(step) {
    this.pause();
    this.go(step);
  }

  toggle() {
    if (this.stopped) return; // the same click has just stopped it
    if (this.timer !== null) {
      this.pause();
      return;
    }
    if (this.step === this.steps) this.go(0);
    const each = Math.min(SLOWEST, Math.max(QUICKEST, WHOLE_SHOW / this.steps));
    this.run(() => each);
  }

  // Play from the start, with time to read.
  tell() {
    this.pause();
    this.told = this.telling = true;
    this.go(0);
    this.run(() => Math.max(TOLD.least, TOLD.letter * byId("story").textContent.length));
  }

  // `pause()`: how long to show a step
  run(pause) {
    this.timer = setTimeout(() => {
      this.go(this.step + 1);
      if (this.step === this.steps) this.pause();
      else this.run(pause);
    }, pause());
    this.label();
  }

  touched({ target, type, key }) {
    if (!this.telling) return;
    this.pause();
    this.stopped = key === " " || (type !== "wheel" && target.closest?.("#play") !== null);
    setTimeout(() => (this.stopped = false), 400);
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.telling = false;
    this.label();
  }

  label() {
    const playing = this.timer !== null;
    const words = playing ? "Pause" : "Play the merges";
    byId("player").classList.toggle("playing", playing);
    byId("play").setAttribute("aria-label", words);
    byId("play").title = words;
    byId("tell").textContent = this.told && !playing ? "Explain again" : "Explain";
    const heard = !playing || this.telling; // while playing fast, steps change too quickly to be spoken
    for (const name of ["step-text", "story"]) byId(name).setAttribute("aria-live", heard ? "polite" : "off");
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

// Not `disabled`: a button would lose the focus, and keyboard users would be thrown back to the top of the page.
function disable(button, wanted) {
  button.setAttribute("aria-disabled", String(wanted));
}
