// The search told in words: one sentence or two for each merge, of what is compared, chosen and dropped.

import { partOf } from "./search.js";
import { count, percent, spanText } from "./words.js";

const TOLD_UP_TO = 120; // tokens; in longer texts nobody reads every step

// What to say before the merge of a step, or of the whole at the end; `slot` is the beam that is shown, `heirs`
// what becomes of it, `prediction` what the model says of the whole.
export function tellStep({ search, step, slot, heirs, prediction, valued }) {
  if (!search.scored || search.tokens.length > TOLD_UP_TO) return "";
  if (step === search.steps) return tellEnd(search, prediction);
  const board = search.board(step, slot);
  if (step === 0) return tellStart(search, board, heirs);
  if (!heirs.length)
    return `Beam ${slot + 1} is dropped here: its share times those of all its earlier choices is too small to stay among the best ${search.data.beam_size}.`;
  const own = `Beam ${slot + 1} compares ${count(board.shares.length, "pair")} and merges ${pairWords(board, heirs[0])}.`;
  const events = [tellDrop, tellSplit, tellSame, tellValue]
    .map((tell) => tell({ search, step, slot, board: { ...board, valued }, heirs }))
    .filter(Boolean);
  return `${own} ${events[step % Math.max(1, events.length)] ?? ""}`.trim();
}

function tellStart(search, board, heirs) {
  const kept = search.living(1).length;
  const keeps =
    kept > 1
      ? `the best ${kept} choices are kept, not one: each begins a beam, a tree in the making.`
      : "only this choice is kept: a single beam.";
  return `The network merges two neighbours at a time until one part is left. Of ${count(board.shares.length, "pair")}, ${pairWords(board, heirs[0])} scores best; ${keeps}`;
}

function tellEnd(search, prediction) {
  const beams = search.final.length;
  const trees = new Set(search.final.map((slot) => partsOf(search, search.steps, slot))).size;
  const found =
    beams === 1
      ? "One beam, one tree."
      : trees === 1
        ? `All ${beams} beams built the same tree, each in another order.`
        : `The ${beams} beams are ${trees} different trees.`;
  const answer = `the classifier reads the answer, ${prediction.label}`;
  return beams === 1
    ? `${found} From its top node ${answer}.`
    : `${found} Their top nodes are averaged, each by its beam's weight, and from that average ${answer}.`;
}

function tellDrop({ search, step, slot }) {
  const dropped = search.living(step).filter((beam) => beam.slot !== slot && !search.heirs(step, beam.slot).length);
  if (!dropped.length) return null;
  const names = listWords(dropped.map((beam) => beam.slot + 1));
  const which = dropped.length > 1 ? `Beams ${names} are` : `Beam ${names} is`;
  return `${which} dropped: the shares of a beam's choices multiply up, and ${search.data.beam_size} other ways to go on have a larger product.`;
}

function tellSplit({ board, heirs }) {
  if (heirs.length < 2) return null;
  const others = heirs.length > 2 ? ` and ${count(heirs.length - 2, "other pair")}` : "";
  return `It tries ${pairWords(board, heirs[1])}${others} as well: these are also among the best ways to go on, so the beam splits in ${heirs.length}.`;
}

function tellSame({ search, step, slot }) {
  const same = beamsLike(search, step, slot);
  // Only where it is news.
  if (same.length < 2 || same.length === beamsLike(search, step - 1, search.follow({ step, slot }, step - 1)).length)
    return null;
  return `Beams ${listWords(same)} hold the same parts now: they made them in another order.`;
}

// The beams that hold the parts that one of them holds, counted from 1.
function beamsLike(search, step, slot) {
  const own = partsOf(search, step, slot);
  return search.living(step).flatMap((beam) => (partsOf(search, step, beam.slot) === own ? [beam.slot + 1] : []));
}

function tellValue({ board }) {
  const made = board.nodes.at(-1);
  if (!board.valued || !made?.value) return null;
  return `The part it made last, ${quote(board, made)}, ${made.value.isText ? "is" : "would be"} read as ${made.value.label} by the classifier.`;
}

const quote = (board, part) => `“${spanText(board.tokens, part, 24)}”`;

function pairWords(board, { position }) {
  const [left, right] = [0, 1].map((side) => quote(board, partOf(board, board.row[position + side])));
  return `${left} and ${right} (${percent(board.shares[position])})`;
}

const listWords = (names) => (names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : `${names[0]}`);

// The same words for the same parts, in whatever order they were made.
const partsOf = (search, step, slot) =>
  search
    .board(step, slot)
    .nodes.map(({ start, end }) => `${start}:${end}`)
    .sort()
    .join(" ");
