// Decides which part of a forest is drawn, and where. A folded node is drawn as one leaf in place of its tokens. Tokens are
// in a row with the root above (upright), or one per line with the root at the left (sideways). One layout serves both: a
// place along the tokens, and a level counted from the leaves.

import { keyOf, partOf } from "./search.js";
import { clip } from "./words.js";

const SHOWN_UNASKED = 120; // tokens; longer sequences start partly folded
const SHOWN_LEAVES = 36;
const FONT = "14px ui-monospace, SF Mono, Menlo, Consolas, DejaVu Sans Mono, monospace";
const LONGEST_LABEL = 26;
const TOKEN_GAP = 20;
const LINE = 24;
const LEVEL = { highest: 38, pleasant: 24, lowest: 12, sideways: 26 }; // of an upright tree; `sideways`: of a sideways one
const DEEPEST_SIDEWAYS = 520;
const MARGIN = 26;
const ABOVE = 24; // an upright tree, for the share of a pair
const BELOW = 10;
const UPRIGHT_AT_LEAST = 0.6;
const SIDEWAYS_AT_LEAST = { whole: 0.65, part: 0.8 }; // `whole`: if the whole tree can be seen at that scale
const UPRIGHT_AT_MOST = { page: 1.5, screen: 2.5 };
const ROOT_SIDE = 62; // left of a sideways tree, for the share of a pair
const LABEL_GAP = 12;
const CORNER = 10;

// The row of leaves (tokens and folded nodes) and the open nodes above them, children first; the ids of all in reading
// order, a node before its parts; and for each its parent, its depth and its height in the picture.
export function visiblePart(forest, folded) {
  const { n, row } = forest;
  const [leaves, open, order] = [[], [], []];
  const [parents, depths, heights] = [new Map(), new Map(), new Map()];
  // An explicit stack, because a tree can be as deep as its sequence is long.
  const stack = [...row].reverse().map((id) => ({ id }));
  while (stack.length) {
    const { id, parent, done } = stack.pop();
    const node = partOf(forest, id);
    if (done) {
      heights.set(id, 1 + Math.max(heights.get(node.left), heights.get(node.right)));
      open.push(node);
      continue;
    }
    order.push(id);
    parents.set(id, parent);
    depths.set(id, parent === undefined ? 0 : depths.get(parent) + 1);
    if (id < n || folded.has(keyOf(node))) {
      heights.set(id, 0);
      leaves.push(node);
    } else {
      stack.push({ id, done: true }, { id: node.right, parent: id }, { id: node.left, parent: id });
    }
  }
  return { leaves, open, order, parents, depths, heights };
}

// What to fold in a long tree so that its upper part fits on a screen: the largest parts are opened first.
export function foldByDefault(forest) {
  return forest.n <= SHOWN_UNASKED ? new Set() : foldBelow(forest, SHOWN_LEAVES);
}

// While a long sequence is being merged, each finished part is one leaf, so that the current merge is in sight.
export function foldFinished({ n, nodes, row }) {
  if (n <= SHOWN_UNASKED) return new Set();
  return new Set(row.filter((id) => id >= n && nodes[id - n].height > 2).map((id) => keyOf(nodes[id - n])));
}

export function foldBelow(forest, leaves) {
  const { n, nodes, row } = forest;
  const size = (id) => partOf(forest, id).end - partOf(forest, id).start;
  const shown = [...row];
  while (shown.length < leaves) {
    const largest = shown.reduce((best, id, i) => (size(id) > size(shown[best]) ? i : best), 0);
    if (shown[largest] < n) break;
    const { left, right } = nodes[shown[largest] - n];
    shown.splice(largest, 1, left, right);
  }
  return new Set(shown.filter((id) => id >= n).map((id) => keyOf(nodes[id - n])));
}

// `room`: { wide, tall } of the stage, `tallest` for a large sideways tree; `whole`: is the page in full screen?
export function placeForest(forest, { leaves, open, heights }, { upright, top, room, whole }) {
  const labels = leaves.map((leaf) => labelOf(forest, leaf));
  const lengths = labels.map(measure);
  const longest = Math.max(...lengths);
  const levels = Math.max(1, top);
  let along = MARGIN;
  const places = new Map();
  leaves.forEach((leaf, i) => {
    const room = upright ? lengths[i] : LINE - TOKEN_GAP;
    places.set(leaf.id, along + room / 2);
    along += room + TOKEN_GAP;
  });
  const extent = along - TOKEN_GAP + MARGIN;
  const largest = whole ? UPRIGHT_AT_MOST.screen : UPRIGHT_AT_MOST.page;
  const { scale, unit } = upright ? fitUpright(extent, levels, room, largest) : fitSideways(levels);
  const depth = unit * levels;
  for (const { id, left, right } of open) {
    const [from, to] = [places.get(left), places.get(right)];
    // A sideways tree is read from its first token down, so its top stays near that token.
    places.set(id, from + (upright ? (to - from) / 2 : Math.min((to - from) / 2, LINE / 2)));
  }

  const width = upright ? extent : ROOT_SIDE + depth + LABEL_GAP + longest + MARGIN;
  const height = upright ? ABOVE + depth + LINE + BELOW : extent;
  const point = (place, level) => {
    const across = (upright ? ABOVE : ROOT_SIDE) + depth - level * unit;
    return upright ? [place, across] : [across, place];
  };

  const bracket = (left, right, level) =>
    bracketPath(point, [places.get(left), heights.get(left)], [places.get(right), heights.get(right)], level, unit);
  return {
    width,
    height,
    upright,
    levels,
    unit,
    ...(upright ? { scale, tall: room.tall } : scaleSideways(width, height, room)),
    leaves: leaves.map((leaf, i) => {
      const [x, y] = point(places.get(leaf.id), 0);
      const text = upright ? [x - lengths[i] / 2, y + LINE - 4] : [x + LABEL_GAP, y + 5];
      return { leaf, label: labels[i], length: lengths[i], text, folded: leaf.id >= forest.n };
    }),
    nodes: open.map((node) => {
      const [x, y] = point(places.get(node.id), heights.get(node.id));
      // The space above the right end of its bracket, and above the gap after it, is free.
      const beside = node.end - node.start === forest.n ? width - x : places.get(node.right) + TOKEN_GAP - x;
      const room = upright ? beside : unit;
      return { node, x, y, room, path: bracket(node.left, node.right, heights.get(node.id)) };
    }),
    // A bracket over two neighbours that could be merged next.
    candidate(left, right) {
      const level = 1 + Math.max(heights.get(left), heights.get(right));
      const [x, y] = point((places.get(left) + places.get(right)) / 2, level);
      return { x, y, path: bracket(left, right, level), room: Math.abs(places.get(right) - places.get(left)) };
    },
  };
}

// To keep the tokens in sight, levels move closer together, then everything gets smaller, before the stage has to scroll.
function fitUpright(width, levels, { wide, tall }, largest) {
  const most = Math.min(largest, wide / width);
  const fixed = ABOVE + LINE + BELOW;
  const pleasant = tall / (fixed + LEVEL.pleasant * levels);
  const scale = Math.max(Math.min(most, UPRIGHT_AT_LEAST), Math.min(most, pleasant));
  return { scale, unit: Math.max(LEVEL.lowest, Math.min(LEVEL.highest, (tall / scale - fixed) / levels)) };
}

const fitSideways = (levels) => ({ unit: Math.min(LEVEL.sideways, DEEPEST_SIDEWAYS / levels) });

// Includes the height of the stage, which is larger than usual only if the whole tree does not fit otherwise.
function scaleSideways(width, height, { wide, tall, tallest }) {
  const { whole, part } = SIDEWAYS_AT_LEAST;
  const most = Math.max(part, Math.min(1, wide / width));
  const room = [tall, tallest].find((one) => one / height >= whole);
  return room ? { scale: Math.min(most, room / height), tall: room } : { scale: most, tall: tallest };
}

// Upright if the tokens fit the width at a readable size.
export function chooseUpright(forest, leaves, room) {
  const length = leaves.reduce((sum, leaf) => sum + measure(labelOf(forest, leaf)) + TOKEN_GAP, 2 * MARGIN);
  return length * 0.72 <= room;
}

function labelOf({ n, tokens }, leaf) {
  if (leaf.id < n) return clip(printable(tokens[leaf.id]), LONGEST_LABEL);
  return `${clip(printable(tokens[leaf.start]), 12)} … ${leaf.end - leaf.start} tokens`;
}

const printable = (token) => token.replace(/\p{C}/gu, "·") || "·";

const ruler = document.createElement("canvas").getContext("2d");
const measured = new Map();

function measure(label) {
  if (!measured.has(label)) {
    ruler.font = FONT;
    measured.set(label, Math.max(9, ruler.measureText(label).width));
  }
  return measured.get(label);
}

function bracketPath(point, [from, fromLevel], [to, toLevel], level, unit) {
  const reach = (below) => Math.min(CORNER, (to - from) / 2, (level - below) * unit) || 0;
  const [a, b] = [reach(fromLevel), reach(toLevel)];
  const at = (place, levels) =>
    point(place, levels)
      .map((one) => Math.round(10 * one) / 10)
      .join(" ");
  return (
    `M${at(from, fromLevel)}L${at(from, level - a / unit)}Q${at(from, level)} ${at(from + a, level)}` +
    `L${at(to - b, level)}Q${at(to, level)} ${at(to, level - b / unit)}L${at(to, toLevel)}`
  );
}
