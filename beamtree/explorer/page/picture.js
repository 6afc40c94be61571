// Draws a forest as SVG that is also an ARIA tree: every node and token is an item with a description.
//
// Elements are kept between drawings, so that a step of the player adds one node and the focus stays where it was.

import { shape } from "./dom.js";
import { chooseUpright, placeForest, visiblePart } from "./layout.js";
import { clip, figure, percent, spanPlace, spanText, term, valueWords } from "./words.js";

const VALUE_LETTER = 7.2; // width of a letter of a value
const NARROW = 34; // pixels between two tokens; too little for the share of every pair
const SMALL = 0.01; // in a narrow place, a smaller share is shown only when pointed at

export class Picture {
  constructor(stage) {
    this.stage = stage;
    this.candidates = shape("g", { class: "options", "aria-hidden": "true" });
    this.items = shape("g", { class: "items", role: "none" });
    this.values = shape("g", { class: "values", "aria-hidden": "true" }); // the items say them too
    this.svg = shape("svg", { class: "tree", role: "tree" }, this.candidates, this.items, this.values);
    this.drawn = new Map();
    stage.append(this.svg);
  }

  // `top`: levels to leave room for; `taken`: position -> the slots that merge there next; `orientation`: auto, upright, sideways
  draw(forest, { folded, orientation, taken, top, title, room }) {
    const part = visiblePart(forest, folded);
    const upright = orientation === "auto" ? chooseUpright(forest, part.leaves, room.wide) : orientation === "upright";
    const tallest = Math.max(0, ...forest.row.map((id) => part.heights.get(id)));
    const needed = tallest + (taken ? 1 : 0); // a pair that may be merged is drawn one level higher
    const layout = placeForest(forest, part, {
      upright,
      top: folded.size ? needed : Math.max(top, needed),
      room,
      whole: document.body.classList.contains("projecting"),
    });
    this.forest = forest;
    this.layout = layout;
    this.part = part;
    this.svg.setAttribute("viewBox", `0 0 ${layout.width} ${layout.height}`);
    this.svg.setAttribute("aria-label", title);
    this.drawItems();
    this.drawValues();
    this.drawCandidates(taken);
    const rising = layout.upright ? layout.levels - needed : 0; // levels that are still empty
    return { ...layout, free: rising * layout.unit * layout.scale };
  }

  drawItems() {
    const { layout, forest, part } = this;
    const wanted = new Map();
    for (const { node, x, y, path } of layout.nodes) {
      wanted.set(`${node.start}:${node.end}:${path}`, { of: node, x, y, path });
    }
    for (const place of layout.leaves) {
      wanted.set(`${place.leaf.start}:${place.leaf.end}:${place.text}:${place.label}`, { of: place.leaf, place });
    }
    for (const [key, item] of this.drawn) {
      if (!wanted.has(key)) {
        item.remove();
        this.drawn.delete(key);
      }
    }
    this.itemOf = new Map();
    for (const [key, { of, x, y, path, place }] of wanted) {
      if (!this.drawn.has(key)) this.drawn.set(key, path ? drawNode(x, y, path) : drawLeaf(place));
      const item = this.drawn.get(key);
      const opens = of.id >= forest.n;
      set(item, {
        "data-id": of.id,
        "data-start": of.start,
        "data-end": of.end,
        "aria-label": describe(forest, of),
        "aria-level": 1 + part.depths.get(of.id),
        "aria-expanded": opens ? String(Boolean(path)) : null,
        tabindex: -1,
      });
      item.classList.toggle("unknown", forest.unknown.has(of.id));
      // Only at the end: the search itself knows no gold tree.
      item.classList.toggle("agrees", forest.judged && of.inGold === true);
      item.classList.toggle("differs", forest.judged && of.inGold === false);
      this.itemOf.set(of.id, item);
    }
    // Move only what is out of place, because an element that is moved loses the focus.
    let next = this.items.firstElementChild;
    for (const id of part.order) {
      const item = this.itemOf.get(id);
      if (item === next) next = next.nextElementSibling;
      else this.items.insertBefore(item, next);
    }
    const first = this.itemOf.get(this.focused) ?? this.itemOf.get(forest.row[0]) ?? this.items.firstElementChild;
    first?.setAttribute("tabindex", 0);
  }

  // Write next to each node the label that its part would get.
  drawValues() {
    const { forest, layout } = this;
    const [dx, dy] = layout.upright ? [6, -4] : [8, 4];
    const read = forest.valued ? layout.nodes.filter(({ node }) => node.value) : [];
    this.values.replaceChildren(
      ...read.map(({ node, x, y, room }) =>
        shape(
          "text",
          {
            class: node.value.isText ? "value" : "value extrapolated",
            x: x + dx,
            y: y + dy,
            "data-start": node.start,
            "data-end": node.end,
          },
          valueInTree(node.value, Math.floor(room / VALUE_LETTER)),
        ),
      ),
    );
  }

  drawCandidates(taken) {
    const { row, shares } = this.forest;
    const made = [];
    let [lifted, crowded] = [false, false]; // the previous label: is it raised? is it close to this one?
    if (taken) {
      for (let at = 0; at + 1 < row.length; at++) {
        const { x, y, path, room } = this.layout.candidate(row[at], row[at + 1]);
        const chosen = taken.has(at);
        const first = chosen && at === taken.keys().next().value;
        const share = shares ? shares[at] : chosen ? 1 : 0;
        const small = share < SMALL && room <= NARROW;
        const group = shape(
          "g",
          {
            class: `candidate${chosen ? " taken" : ""}${first ? " first" : ""}${small ? " small" : ""}`,
            vars: { share: 0.18 + 0.82 * Math.sqrt(share) },
          },
          shape("path", { d: path }),
        );
        if (shares && (chosen || (share >= 0.02 && room > NARROW))) {
          // Where there is little room, the shares of two neighbouring pairs that are kept are put one above the other.
          const lift = this.layout.upright && room <= NARROW && crowded && !small && !lifted ? 11 : 0;
          lifted = lift > 0;
          const [dx, dy] = this.layout.upright ? [0, -7 - lift] : [-6, 4];
          group.append(
            shape(
              "text",
              { x: x + dx, y: y + dy, "text-anchor": this.layout.upright ? "middle" : "end" },
              percent(share),
            ),
          );
        }
        crowded = chosen && !small;
        made.push(group);
      }
    }
    this.candidates.replaceChildren(
      ...made.sort((a, b) => a.classList.contains("taken") - b.classList.contains("taken")),
    );
  }

  // The position of the next merge, in the picture's own units.
  middleOf(at) {
    const { row } = this.forest;
    return this.layout.candidate(row[at], row[at + 1]);
  }

  topOf() {
    const { nodes, leaves } = this.layout;
    return nodes.length ? nodes.at(-1) : { x: leaves[0].text[0], y: leaves[0].text[1] };
  }

  point(id) {
    const item = id === null ? null : this.itemOf.get(id);
    const [start, end] = item ? [Number(item.dataset.start), Number(item.dataset.end)] : [0, 0];
    for (const other of this.items.children) {
      const inside = Number(other.dataset.start) >= start && Number(other.dataset.end) <= end;
      other.classList.toggle("covered", inside);
      other.classList.toggle("pointed", other === item);
    }
  }
}

export function describe(forest, part) {
  const words = spanText(forest.tokens, part, 60);
  if (part.id < forest.n) {
    const meaning = forest.meanings?.[forest.tokens[part.id]];
    const unknown = forest.unknown.has(part.id) ? "a token unknown to the model" : null;
    return [words, spanPlace(part), meaning, unknown].filter(Boolean).join(", ");
  }
  const facts = [words, spanPlace(part), `merge ${part.step + 1}`, `height ${part.height}`];
  if (forest.valued && part.value) facts.push(valueWords(part.value));
  if (part.score !== undefined) facts.push(`score ${figure(part.score)}`, `chosen with a share of ${percent(part.probability)}`);
  if (part.inGold !== undefined && part.inGold !== null) facts.push(part.inGold ? forest.marks.yes : forest.marks.no);
  return facts.join(", ");
}

// The text shown while nothing is pointed at.
export function pointingHint({ n, nodes, valued }) {
  if (nodes.length) {
    const score = nodes[0].score === undefined ? [] : [", ", term("score")];
    const reading = valued && nodes[0].value ? [", ", term("reading")] : [];
    return ["Point at a ", term("node"), " to see its ", term("span"), ", ", term("height"), ...score, ...reading, "."];
  }
  if (n > 1) return ["Nothing is merged yet."];
  return ["A single token: there is nothing to merge, and the classifier reads the answer from it directly."];
}

function drawNode(x, y, path) {
  return shape(
    "g",
    { class: "node", role: "treeitem" },
    shape("path", { d: path }),
    shape("circle", { class: "reach", cx: x, cy: y, r: 13 }),
    shape("circle", { class: "dot", cx: x, cy: y, r: 4.5 }),
  );
}

// Includes the probability if there is room.
function valueInTree({ label, probability }, letters) {
  const both = `${label} (${percent(probability)})`;
  return both.length <= letters ? both : clip(label, Math.max(letters, 3));
}

function drawLeaf({ label, length, text: [x, y], folded }) {
  return shape(
    "g",
    { class: folded ? "leaf folded" : "leaf", role: "treeitem" },
    shape("rect", { x: x - 6, y: y - 15, width: length + 12, height: 21, rx: 6 }),
    shape("text", { x, y }, label),
  );
}

function set(item, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) item.removeAttribute(name);
    else if (item.getAttribute(name) !== String(value)) item.setAttribute(name, value);
  }
}
