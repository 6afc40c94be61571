// Moving in a drawn tree: arrow keys go in the direction they point, Enter folds, pointing shows details.

import { partOf } from "./search.js";

export class Walking {
  // `tell(id)`: the node pointed at, or null; `fold(id)`: fold or unfold it
  constructor(picture, { tell, fold }) {
    this.picture = picture;
    this.tell = tell;
    this.fold = fold;
    const { svg } = picture;
    svg.addEventListener("keydown", (event) => this.press(event));
    svg.addEventListener("pointerover", (event) => this.show(idOf(event.target)));
    svg.addEventListener("pointerleave", () => this.show(this.focusedId()));
    svg.addEventListener("focusin", (event) => this.arrive(event.target));
    svg.addEventListener("focusout", () => this.show(null));
    svg.addEventListener("click", (event) => this.click(event));
  }

  focusedId() {
    return this.picture.svg.contains(document.activeElement) ? idOf(document.activeElement) : null;
  }

  show(id) {
    this.picture.point(id);
    this.tell(id);
  }

  arrive(item) {
    for (const other of this.picture.items.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", -1);
    item.setAttribute("tabindex", 0);
    this.picture.focused = idOf(item);
    this.show(this.picture.focused);
  }

  click(event) {
    const id = idOf(event.target);
    if (id === null) return;
    this.focus(id);
    if (id >= this.picture.forest.n) this.toggle(id);
  }

  toggle(id) {
    this.fold(id);
    this.focus(id);
  }

  focus(id) {
    const item = this.picture.itemOf.get(id);
    item?.focus({ preventScroll: true });
    item?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  press(event) {
    const id = this.focusedId();
    if (id === null || event.ctrlKey || event.altKey || event.metaKey) return;
    const { layout, forest } = this.picture;
    const { order, parents } = this.picture.part;
    const [inwards, outwards, before, after] = layout.upright
      ? ["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"]
      : ["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"];
    const place = order.indexOf(id);
    const open = order[place + 1] !== undefined && parents.get(order[place + 1]) === id;
    const moves = {
      [inwards]: () => (open ? this.focus(order[place + 1]) : id >= forest.n && this.toggle(id)),
      [outwards]: () => this.focus(parents.get(id)),
      [before]: () => this.focus(this.neighbour(id, -1)),
      [after]: () => this.focus(this.neighbour(id, 1)),
      Home: () => this.focus(order[0]),
      End: () => this.focus(order.at(-1)),
      Enter: () => id >= forest.n && this.toggle(id),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    moves[event.key]();
  }

  // The item next to this one: it starts where this one ends, or ends where this one starts.
  neighbour(id, direction) {
    const { forest, part } = this.picture;
    const own = partOf(forest, id);
    const beside = part.order
      .map((other) => partOf(forest, other))
      .filter(({ start, end }) => (direction > 0 ? start === own.end : end === own.start));
    // Of several, choose the one as large as this one, or the next smaller one.
    beside.sort((a, b) => b.end - b.start - (a.end - a.start));
    return (beside.find(({ start, end }) => end - start <= own.end - own.start) ?? beside.at(-1))?.id;
  }
}

function idOf(target) {
  const item = target.closest?.("[data-id]");
  return item ? Number(item.dataset.id) : null;
}
