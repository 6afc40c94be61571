// The transport: a slider over the merges, one at a time or playing. Several panes follow one player.

import { byId } from "./dom.js";

const WHOLE_SHOW = 30_000; // at most this long, however many merges there are
const SLOWEST = 900;
const QUICKEST = 50;
const TOLD = { least: 4000, letter: 45 }; // milliseconds for a merge with sentences to read

export class Player {
  // `show(step)`: draw that step; `words(step)`: say in few words what happens in it, `tell(step)`: in sentences
  constructor({ show, words, tell }) {
    this.show = show;
    this.words = words;
    this.sentences = tell;
    this.told = false; // whether this search was explained before
    this.telling = false; // whether it plays slowly, until somebody touches anything
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
    byId("tell").hidden = !told; // nobody reads every step of a long text
  }

  stopAt(step) {
    this.pause();
    this.go(step);
  }

  toggle() {
    if (this.stopped) return; // this very touch stopped it
    if (this.timer !== null) {
      this.pause();
      return;
    }
    if (this.step === this.steps) this.go(0);
    const each = Math.min(SLOWEST, Math.max(QUICKEST, WHOLE_SHOW / this.steps));
    this.run(() => each);
  }

  // From the start, with time to read.
  tell() {
    this.pause();
    this.told = this.telling = true;
    this.go(0);
    this.run(() => Math.max(TOLD.least, TOLD.letter * byId("story").textContent.length));
  }

  // `pause()`: how long a step stands
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
    byId("tell").textContent = this.told && !playing ? "Tell it again" : "Explain";
    const heard = !playing || this.telling; // nobody can listen to more
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

// A button that has focus keeps it, so that a keyboard is not thrown back to the top of the page.
function disable(button, wanted) {
  button.setAttribute("aria-disabled", String(wanted));
}
