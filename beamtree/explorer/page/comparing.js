// Comparisons side by side: one model with 1, 3 and 5 beams, with itself on the gold tree, with itself before training, or
// with another model of its task.

const WIDTHS = [1, 3, 5];
const BY_BEAMS = `beams:${WIDTHS.join(",")}`;
const ON_GOLD = "gold:";

// The task "own" covers all of a user's own tables, both of texts and of pairs.
export const readAlike = (one, other) => one.task === other.task && one.sentences === other.sentences;

// What a model can be compared with, as [value, words].
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

// The panes of a question: which model to ask, with how many beams, and the title of the answer.
export function panesFor({ model, other, beams }) {
  if (other === BY_BEAMS) return WIDTHS.map((width) => ({ model, beams: width, title: width === 1 ? "1 beam" : `${width} beams` }));
  if (other === ON_GOLD) return [{ model, beams }, { model, beams, onGold: true, title: "On the gold tree" }];
  return other ? [{ model, beams }, { model: other, beams }] : [{ model, beams }];
}

// The answer as if the model had found the gold tree, with the nodes that the model makes along it.
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
