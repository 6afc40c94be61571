// The size of a picture in its stage, which scrolls: buttons, Ctrl and wheel, dragging with the mouse.

const SMALLEST = 0.02;
const LARGEST = 4;
const LARGEST_UNASKED = 1.5;
const LARGEST_PROJECTED = 2.5;
const WHOLE_IN_SIGHT = 0.52; // of the window's height is left below the form

export class Zoom {
  constructor(stage, svg) {
    this.stage = stage;
    this.svg = svg;
    this.scale = 1;
    this.asked = false; // whether a person chose the size
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("pointerdown", (event) => this.drag(event));
  }

  // A picture of another size: as large as before if a person chose it, else to the width of the stage.
  take({ width, height, upright }) {
    this.size = { width, height };
    if (!this.asked) this.scale = this.comfortable(upright);
    this.apply();
  }

  comfortable(upright) {
    const { width, height } = this.size;
    const wide = (this.stage.clientWidth - 2) / width;
    if (wide <= 0) return 1;
    if (!upright) return Math.max(0.8, Math.min(1, wide));
    if (document.body.classList.contains("projecting"))
      return Math.min(LARGEST_PROJECTED, wide, this.stage.clientHeight / height);
    const tall = Math.max(0.9, (WHOLE_IN_SIGHT * window.innerHeight) / height);
    return Math.min(LARGEST_UNASKED, wide, tall);
  }

  fit() {
    const { clientWidth, clientHeight } = this.stage;
    const tall = Math.max(clientHeight, Math.min(window.innerHeight * 0.6, 560));
    this.set(Math.min(LARGEST_UNASKED, (clientWidth - 2) / this.size.width, tall / this.size.height));
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

  reveal({ x, y }) {
    const { stage, scale } = this;
    const inside = (at, from, room) => at > from + 40 && at < from + room - 40;
    const [px, py] = [x * scale, y * scale];
    if (!inside(px, stage.scrollLeft, stage.clientWidth)) stage.scrollLeft = px - stage.clientWidth / 2;
    if (!inside(py, stage.scrollTop, stage.clientHeight)) stage.scrollTop = py - stage.clientHeight / 2;
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
