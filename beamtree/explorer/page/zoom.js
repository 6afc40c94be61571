// Zooms and moves a picture in its scrolling stage: buttons, keys, Ctrl and wheel, dragging with the mouse.

const STEP = 1.3; // for a button or key
const SMALLEST = 0.02;
const LARGEST = 4;
const LARGEST_UNASKED = 1.5;
const LEAST_ROOM = 220; // least height of a stage, in pixels
const ENOUGH = 380; // pixels; the rest of a large window is for what is below
const BORDER = 2; // of the stage, both sides together, in pixels
const WHOLE = 0.55; // of the window height, for a whole sideways tree

export class Zoom {
  constructor(stage, svg) {
    this.stage = stage;
    this.svg = svg;
    this.scale = 1;
    this.asked = false; // has the user chosen the size?
    stage.addEventListener("keydown", (event) => this.press(event));
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("pointerdown", (event) => this.drag(event));
  }

  // The space for the stage if what follows it, `below` pixels high, is to be in the same window, wherever the page is
  // scrolled to. A whole sideways tree, which is looked at and not played, may push that further down.
  room(below, whole) {
    const top = this.stage.getBoundingClientRect().top + window.scrollY;
    const left = top < window.innerHeight ? window.innerHeight - top - below : window.innerHeight; // or the stage starts below the first window
    const most = document.body.classList.contains("projecting") ? left : Math.max(ENOUGH, 0.42 * window.innerHeight);
    const tall = Math.max(LEAST_ROOM, Math.min(left, most));
    const tallest = whole ? Math.max(tall, WHOLE * window.innerHeight) : tall;
    return { wide: Math.max(200, this.stage.clientWidth - BORDER), tall: tall - BORDER, tallest: tallest - BORDER };
  }

  // Take a picture of another size. The scale stays if the user chose it; otherwise the picture fits the stage.
  take({ width, height, scale, tall }) {
    this.size = { width, height };
    this.stage.style.maxHeight = `${tall + BORDER}px`;
    if (!this.asked) this.scale = scale;
    this.apply();
  }

  fit() {
    const tall = parseFloat(this.stage.style.maxHeight) - BORDER;
    this.set(Math.min(LARGEST_UNASKED, (this.stage.clientWidth - BORDER) / this.size.width, tall / this.size.height));
  }

  in() {
    this.by(STEP);
  }

  out() {
    this.by(1 / STEP);
  }

  by(factor) {
    const { stage } = this;
    this.set(this.scale * factor, stage.clientWidth / 2, stage.clientHeight / 2);
  }

  // The point (x, y) of the stage stays where it is.
  set(scale, x = 0, y = 0) {
    const { stage } = this;
    const next = Math.min(LARGEST, Math.max(SMALLEST, scale));
    const [left, top] = [(stage.scrollLeft + x) / this.scale, (stage.scrollTop + y) / this.scale];
    this.scale = next;
    this.asked = true;
    this.apply();
    stage.scrollTo(left * next - x, top * next - y);
  }

  apply() {
    this.svg.style.width = `${this.size.width * this.scale}px`;
    this.svg.style.height = `${this.size.height * this.scale}px`;
  }

  // Scroll to the tokens, which are below an upright tree, then to `place`, the next merge.
  reveal(place) {
    this.stage.scrollTop = this.stage.scrollHeight;
    this.follow(place);
  }

  // Scroll to the beginning of a sideways tree, then to its top.
  begin(top) {
    this.stage.scrollTo(0, 0);
    this.follow(top);
  }

  // Scroll only if `place` is out of sight.
  follow({ x, y }) {
    const { stage, scale } = this;
    const inside = (at, from, room) => at > from + 40 && at < from + room - 40;
    const [px, py] = [x * scale, y * scale];
    if (!inside(px, stage.scrollLeft, stage.clientWidth)) stage.scrollLeft = px - stage.clientWidth / 2;
    if (!inside(py, stage.scrollTop, stage.clientHeight)) stage.scrollTop = py - stage.clientHeight / 2;
  }

  press(event) {
    const act = { "+": () => this.in(), "-": () => this.out(), 0: () => this.fit() }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }

  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = this.stage.getBoundingClientRect();
    this.set(this.scale * Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }

  // Fingers scroll by themselves.
  drag(event) {
    if (event.pointerType !== "mouse" || event.button !== 0 || event.target.closest("[data-id]")) return;
    const { stage } = this;
    const from = { x: event.clientX + stage.scrollLeft, y: event.clientY + stage.scrollTop };
    const move = ({ clientX, clientY }) => stage.scrollTo(from.x - clientX, from.y - clientY);
    const stop = () => {
      stage.classList.remove("dragged");
      stage.removeEventListener("pointermove", move);
    };
    stage.classList.add("dragged");
    stage.setPointerCapture(event.pointerId);
    stage.addEventListener("pointermove", move);
    stage.addEventListener("pointerup", stop, { once: true });
    stage.addEventListener("pointercancel", stop, { once: true });
  }
}
