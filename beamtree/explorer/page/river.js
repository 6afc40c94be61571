// A diagram of the whole search: steps from left to right, beams by rank from top to bottom, lines that fork and end.

import { shape } from "./dom.js";

export class River {
  // `choose({ step, slot })` is called on a click
  constructor(parent, choose) {
    const line = (name) => shape("path", { class: name, "vector-effect": "non-scaling-stroke" });
    this.parts = {
      dropped: line("dropped"),
      kept: line("kept"),
      ends: line("ends"),
      own: line("own"),
      now: line("now"),
      here: line("here"),
    };
    this.svg = shape(
      "svg",
      { class: "search", preserveAspectRatio: "none", role: "img", click: (event) => this.click(event) },
      ...Object.values(this.parts),
    );
    this.choose = choose;
    parent.append(this.svg);
  }

  take(search) {
    this.search = search;
    const { steps } = search;
    const slots = search.data.beam_size;
    this.ranks = Math.min(
      slots,
      Math.max(1, ...search.data.parent.map((row) => row.filter((from) => from >= 0).length)),
    );
    this.svg.setAttribute("viewBox", `0 -0.5 ${Math.max(1, steps)} ${this.ranks}`);
    this.svg.style.setProperty("--ranks", this.ranks);
    this.svg.classList.toggle("dense", steps > 150);
    const kept = new Set();
    for (const slot of search.final) search.path(steps, slot).forEach((one, t) => kept.add(`${t}:${one}`));
    const lines = { dropped: "", kept: "", ends: "" };
    let splits = 0;
    let deaths = 0;
    for (let s = 0; s < steps; s++) {
      for (const { slot } of search.living(s)) {
        const heirs = search.heirs(s, slot);
        splits += heirs.length > 1;
        deaths += heirs.length === 0;
        if (!heirs.length) lines.ends += dot(s, slot);
        for (const heir of heirs)
          lines[kept.has(`${s}:${heir.slot}`) ? "kept" : "dropped"] += stream(s, slot, heir.slot);
      }
    }
    for (const [name, d] of Object.entries(lines)) this.parts[name].setAttribute("d", d);
    this.svg.setAttribute(
      "aria-label",
      `The search: ${steps} merges, up to ${this.ranks} beams; beams split ${splits} times, ${deaths} were dropped.`,
    );
  }

  // Mark the beam on display after s merges.
  show(s, slot) {
    const path = this.search.path(s, slot);
    this.parts.own.setAttribute("d", path.map((one, t) => stream(t, t === 0 ? 0 : path[t - 1], one)).join(""));
    this.parts.now.setAttribute("d", `M${s} -0.5V${this.ranks - 0.5}`);
    this.parts.here.setAttribute("d", dot(s, slot));
  }

  click(event) {
    const box = this.svg.getBoundingClientRect();
    const { steps } = this.search;
    // Lines are thick: a click on the first or last one may be outside the box.
    const step = Math.min(steps, Math.max(0, Math.round(((event.clientX - box.left) / box.width) * steps)));
    const rank = Math.round(((event.clientY - box.top) / box.height) * this.ranks - 0.5);
    const living = this.search.living(step);
    this.choose({
      step,
      slot: living.reduce(
        (best, beam) => (Math.abs(beam.slot - rank) < Math.abs(best - rank) ? beam.slot : best),
        living[0].slot,
      ),
    });
  }
}

const stream = (s, from, to) => `M${s} ${from}C${s + 0.5} ${from} ${s + 0.5} ${to} ${s + 1} ${to}`;
const dot = (s, slot) => `M${s} ${slot}h0`;
