// A search played back: which beams live after each merge, what they could merge next, what they took.
//
// After s merges (0 ≤ s ≤ n − 1) beams stand in slots, best first. The server sends one number a slot and
// step; everything else follows by replaying merges (see the API page for the format).

// What a node's mark means, in the tree of a model and in the gold tree.
const IN_GOLD = { title: "In gold tree", yes: "also in the gold tree", no: "not in the gold tree" };
const IN_MODEL = { title: "Found", yes: "found by the model", no: "not found by the model" };

export const keyOf = ({ start, end }) => `${start}:${end}`;

// What an id of a forest stands for: leaf i is i, the node made at step t is n + t.
export const partOf = ({ n, nodes }, id) => (id < n ? { id, start: id, end: id + 1, height: 0 } : nodes[id - n]);

export class Search {
  // `labels`: the names of what the classifier can say
  constructor(sentence, labels) {
    this.tokens = sentence.tokens;
    this.steps = sentence.tokens.length - 1;
    this.beams = sentence.beams;
    const told = sentence.search;
    // Trees without the steps that led to them are a search without scores that nobody plays.
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

  // Living beams after s merges: slot, the slot it came from, and its share of the weight.
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

  // What becomes of a beam in the next merge: the slots that extend it, none if it is dropped.
  heirs(s, slot) {
    if (s >= this.steps) return [];
    return this.data.parent[s].flatMap((from, heir) =>
      from === slot ? [{ slot: heir, position: this.data.position[s][heir] }] : [],
    );
  }

  // Whether there is such a beam: a link may ask for one of another text.
  holds(at) {
    return at !== null && at.step <= this.steps && this.living(at.step).some(({ slot }) => slot === at.slot);
  }

  // The slot at which a beam stood after `wanted` merges, or stands later by its best heirs; null if dropped.
  follow({ step, slot }, wanted) {
    for (; step > wanted; step--) slot = step === 1 ? 0 : this.data.parent[step - 1][slot];
    for (; step < wanted; step++) {
      const [heir] = this.heirs(step, slot);
      if (!heir) return null;
      slot = heir.slot;
    }
    return slot;
  }

  // The slots a beam passed through, one for each of its s merges.
  path(s, slot) {
    const slots = new Array(s);
    for (let t = s - 1; t >= 0; t--) {
      slots[t] = slot;
      slot = this.data.parent[t][slot];
    }
    return slots;
  }

  // The forest of a beam after s merges: its nodes, those alive in a row, and the scores of neighbours.
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

  // Without the span of the whole, which every tree has.
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

  // What the classifier would say of a part, and whether it was trained on such texts.
  read(node, label, probability) {
    node.value = { label: this.labels[label], probability, isText: this.textsIn.has(keyOf(node)) };
  }

  mark(node) {
    const whole = node.end - node.start === this.tokens.length; // every tree has that span
    node.inGold = this.gold && !whole ? this.gold.has(keyOf(node)) : null;
  }
}

// The forest of a given tree, such as the gold one: children as ids.
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
