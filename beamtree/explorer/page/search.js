// Replays a search: which beams are alive after each merge, what they could merge next, and what they chose.
//
// After s merges (0 ≤ s ≤ n − 1) the beams are in slots, best first. The server sends a few numbers per slot and
// step; everything else follows by replaying the merges (docs/explorer.md describes the format).

// The meaning of a node's mark, in a model's tree and in the gold tree.
const IN_GOLD = { title: "In gold tree", yes: "also in the gold tree", no: "not in the gold tree" };
const IN_MODEL = { title: "Found", yes: "found by the model", no: "not found by the model" };

export const keyOf = ({ start, end }) => `${start}:${end}`;

// The part with this id: leaf i has the id i, the node made at step t has n + t.
export const partOf = ({ n, nodes }, id) => (id < n ? { id, start: id, end: id + 1, height: 0 } : nodes[id - n]);

export class Search {
  // `labels`: the names of all possible answers
  constructor(sentence, labels) {
    this.tokens = sentence.tokens;
    this.steps = sentence.tokens.length - 1;
    this.beams = sentence.beams;
    const told = sentence.search;
    // Trees without their steps are treated as a search without scores, which cannot be played.
    this.scored = Boolean(told);
    this.data = told ?? onlyTrees(sentence.beams);
    this.final = this.data.final;
    this.unknown = new Set(sentence.unknown); // tokens that the model never saw in training
    this.gold = sentence.gold
      ? new Set(sentence.gold.nodes.start.map((start, i) => keyOf({ start, end: sentence.gold.nodes.end[i] })))
      : null;
    this.labels = labels;
    this.textsIn = new Set((sentence.texts_in ?? []).map(([start, end]) => keyOf({ start, end })));
    this.replayed = new Map();
  }

  // The beams alive after s merges: slot, previous slot, and weight.
  living(s) {
    if (s === 0) return [{ slot: 0, parent: null, weight: 1 }];
    const { parent, log_score: scores } = this.data;
    const alive = parent[s - 1].flatMap((from, slot) => (from < 0 ? [] : [{ slot, parent: from }]));
    if (!this.scored) return alive.map((beam) => ({ ...beam, weight: this.beams[beam.slot].weight }));
    const best = scores[s - 1][alive[0].slot];
    const shares = alive.map(({ slot }) => Math.exp(scores[s - 1][slot] - best));
    const total = shares.reduce((sum, share) => sum + share, 0);
    return alive.map((beam, i) => ({ ...beam, weight: shares[i] / total }));
  }

  // The slots that extend a beam in the next merge; none if it is dropped.
  heirs(s, slot) {
    if (s >= this.steps) return [];
    return this.data.parent[s].flatMap((from, heir) =>
      from === slot ? [{ slot: heir, position: this.data.position[s][heir] }] : [],
    );
  }

  // Is there such a beam? A link may name one that exists only for another text.
  holds(at) {
    return at !== null && at.step <= this.steps && this.living(at.step).some(({ slot }) => slot === at.slot);
  }

  // The slot of a beam after `wanted` merges: earlier ones exactly, later ones by its best heirs; null if dropped.
  follow({ step, slot }, wanted) {
    for (; step > wanted; step--) slot = step === 1 ? 0 : this.data.parent[step - 1][slot];
    for (; step < wanted; step++) {
      const [heir] = this.heirs(step, slot);
      if (!heir) return null;
      slot = heir.slot;
    }
    return slot;
  }

  // The slots that a beam passed through, one for each of its s merges.
  path(s, slot) {
    const slots = new Array(s);
    for (let t = s - 1; t >= 0; t--) {
      slots[t] = slot;
      slot = this.data.parent[t][slot];
    }
    return slots;
  }

  // The forest of a beam after s merges: its nodes, the row of live ones, and the scores of neighbouring pairs.
  board(s, slot) {
    const key = `${s}:${slot}`;
    if (!this.replayed.has(key)) {
      if (this.replayed.size > 64) this.replayed.clear();
      this.replayed.set(key, this.replay(this.path(s, slot)));
    }
    return this.replayed.get(key);
  }

  best() {
    return this.board(this.steps, this.final[0]);
  }

  // Without the span of the whole text, which every tree has.
  bestSpans() {
    return this.best().nodes.slice(0, -1).map(keyOf);
  }

  replay(slots) {
    const { data, tokens } = this;
    const n = tokens.length;
    const nodes = [];
    const row = tokens.map((_, i) => i);
    const pairs = this.scored ? [...data.leaf_scores] : null;
    slots.forEach((slot, t) => {
      const at = data.position[t][slot];
      const [left, right] = row.splice(at, 2, n + t);
      const made = join(nodes, n, left, right);
      if (pairs) {
        made.score = pairs[at];
        made.probability = Math.exp(pairs[at] - data.log_z[t][slot]);
        pairs.splice(at, 1);
        if (at > 0) pairs[at - 1] = data.left_score[t][slot];
        if (at < pairs.length) pairs[at] = data.right_score[t][slot];
      }
      if (data.label) this.read(made, data.label[t][slot], data.label_probability[t][slot]);
      this.mark(made);
      nodes.push(made);
    });
    return { n, tokens, nodes, row, pairs, shares: pairs && shares(pairs), unknown: this.unknown, marks: IN_GOLD };
  }

  // Add what the classifier would answer for a part, and whether the part is a text by itself.
  read(node, label, probability) {
    node.value = { label: this.labels[label], probability, isText: this.textsIn.has(keyOf(node)) };
  }

  mark(node) {
    const whole = node.end - node.start === this.tokens.length; // in every tree
    node.inGold = this.gold && !whole ? this.gold.has(keyOf(node)) : null;
  }
}

// The forest of a given tree, such as the gold tree. Children are ids.
export function forestOf(search, { left, right, label, label_probability: shares }) {
  const { tokens, unknown } = search;
  const nodes = [];
  left.forEach((one, t) => nodes.push(join(nodes, tokens.length, one, right[t])));
  if (label) nodes.forEach((node, t) => search.read(node, label[t], shares[t]));
  const last = nodes.length ? tokens.length + nodes.length - 1 : 0;
  return { n: tokens.length, tokens, nodes, row: [last], pairs: null, shares: null, unknown, marks: IN_MODEL };
}

function join(nodes, n, left, right) {
  const [a, b] = [partOf({ n, nodes }, left), partOf({ n, nodes }, right)];
  const step = nodes.length;
  return { id: n + step, left, right, start: a.start, end: b.end, height: 1 + Math.max(a.height, b.height), step };
}

// softmax
function shares(scores) {
  const top = Math.max(...scores);
  const raised = scores.map((score) => Math.exp(score - top));
  const total = raised.reduce((sum, one) => sum + one, 0);
  return raised.map((one) => one / total);
}

function onlyTrees(beams) {
  const steps = beams[0].merges.map((_, t) => t);
  return {
    beam_size: beams.length,
    parent: steps.map((t) => beams.map((_, slot) => (t === 0 ? 0 : slot))),
    position: steps.map((t) => beams.map(({ merges }) => merges[t])),
    final: beams.map((_, slot) => slot),
    label: beams[0].nodes.label && steps.map((t) => beams.map(({ nodes }) => nodes.label[t])),
    label_probability: beams[0].nodes.label && steps.map((t) => beams.map(({ nodes }) => nodes.label_probability[t])),
  };
}
