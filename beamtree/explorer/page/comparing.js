// What can be seen side by side: one model with other numbers of beams, on the gold tree, before it was trained, or
// beside another model of its task.

const WIDTHS = [1, 3, 5];
const BY_BEAMS = `beams:${WIDTHS.join(",")}`;
const ON_GOLD = "gold:";

// Every table of somebody's own is the task "own", be it of texts or of pairs.
export const readAlike = (one, other) => one.task === other.task && one.sentences === other.sentences;

// What to offer beside a model, as [value, words].
export function offersFor(model, models) {
  const offers = [["", "nothing"]];
  if (model.kind === "search") offers.push([BY_BEAMS, "1, 3 and 5 beams"]);
  if (model.follows_gold) offers.push([ON_GOLD, "the gold tree"]);
  for (const other of models) {
    if (other === model || !readAlike(other, model)) continue;
    offers.push([other.name, other.untrained_twin_of === model.name ? "itself, untrained" : other.name]);
  }
  return offers;
}

// The panes of a question: which model to ask with how many beams, and what to call the answer.
export function panesFor({ model, other, beams }) {
  if (other === BY_BEAMS) return WIDTHS.map((width) => ({ model, beams: width, title: width === 1 ? "1 beam" : `${width} beams` }));
  if (other === ON_GOLD) return [{ model, beams }, { model, beams, onGold: true, title: "On the gold tree" }];
  return other ? [{ model, beams }, { model: other, beams }] : [{ model, beams }];
}

// An answer as if the gold tree had been found: the tree with the nodes that the model makes along it.
export function onGoldTree(view) {
  return {
    ...view,
    model: { ...view.model, kind: "tree", beam_size: null },
    prediction: view.with_gold,
    note: "the same network, made to follow the gold tree",
    sentences: view.sentences.map((sentence) => ({
      ...sentence,
      search: null,
      gold: null,
      beams: [
        {
          weight: 1,
          log_score: null,
          brackets: sentence.gold.brackets,
          merges: sentence.gold.merges,
          same_tree_as: null,
          nodes: sentence.gold.nodes,
        },
      ],
    })),
  };
}
