// Which parts of a forest are shown: a folded node stands as one leaf in the place of all its tokens.

import { keyOf, partOf } from "./search.js";

const SHOWN_UNASKED = 120; // tokens; longer sequences begin partly folded
const SHOWN_LEAVES = 36;

// Leaves in a row (tokens and folded nodes) and the open nodes above them, children first, with the height
// that each has in the picture.
export function visiblePart(forest, folded) {
  const { n, row } = forest;
  const leaves = [];
  const open = [];
  const heights = new Map();
  const parents = new Map();
  // An explicit stack: trees of sequences can be as deep as they are long.
  const stack = [...row].reverse().map((id) => ({ id, parent: null }));
  while (stack.length) {
    const { id, parent, done } = stack.pop();
    if (parent !== null) parents.set(id, parent);
    const node = partOf(forest, id);
    if (id >= n && !folded.has(keyOf(node))) {
      if (done) {
        heights.set(id, 1 + Math.max(heights.get(node.left), heights.get(node.right)));
        open.push(node);
      } else {
        stack.push({ id, parent, done: true });
        stack.push({ id: node.right, parent: id }, { id: node.left, parent: id });
      }
    } else {
      heights.set(id, 0);
      leaves.push(node);
    }
  }
  return { leaves, open, heights, parents };
}

// What to fold in a long tree so that its upper part fits a screen: the largest parts stay open longest.
export function foldByDefault(forest) {
  return forest.n <= SHOWN_UNASKED ? new Set() : foldBelow(forest, SHOWN_LEAVES);
}

// While a long sequence is merged: what is done stands as one leaf each, so that the place of work can be seen.
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
