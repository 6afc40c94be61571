// Tells the search in words: what is compared, chosen and dropped at each merge, with one lesson at a time.

import { partOf } from "./search.js";
import { count, percent, spanText } from "./words.js";

const TOLD_UP_TO = 120; // tokens; nobody reads every step of a longer text

// The text for the merge that follows `step` merges, or for the finished search. `slotAt(step)` is the beam that the story
// follows, `anchor` the one that the user chose; `view` and `sentence` come from the server.
export function tellStep({ search, step, slotAt, anchor, view, sentence, valued }) {
  if (!search.scored || search.tokens.length > TOLD_UP_TO) return "";
  const lost = anchor && tellLost({ search, step, anchor, shown: slotAt(step) });
  if (step === search.steps) return inOneParagraph(lost, tellEnd(search, view, sentence));
  const sceneAt = (s) => setScene({ search, step: s, slotAt, chosen: anchor !== null, valued });
  const scene = sceneAt(step);
  if (lost) return inOneParagraph(lost, tellMerge({ ...scene, chosen: false }));
  if (!scene.heirs.length) return tellOwnDrop(scene);
  if (step === 0) return tellStart(scene);
  return inOneParagraph(tellMerge(scene), ...lessonsAt(step, sceneAt));
}

// If the beam that the user chose was dropped before this step: say so, and which one is shown instead.
export function tellLost({ search, step, anchor, shown }) {
  if (search.follow(anchor, step) !== null) return "";
  return `Beam ${anchor.slot + 1}, which you chose before merge ${anchor.step + 1}, was dropped; beam ${shown + 1}, the best at the end, is shown.`;
}

// How a search ended, in a few words: for a model next to the one whose story is told.
export function tellOutcome({ view, searches }) {
  const known = view.answer !== null && view.answer !== undefined;
  const judged = known ? `, which is ${view.answer === view.prediction.label ? "right" : "wrong"}` : "";
  const [search] = searches;
  const trees = searches.length === 1 && search?.scored ? countTrees(search) : 1;
  const split = trees > 1 ? `its ${search.final.length} beams built ${trees} different trees; ` : "";
  return `${split}its answer is ${view.prediction.label}${judged}.`;
}

function setScene({ search, step, slotAt, chosen, valued }) {
  const slot = slotAt(step);
  const heirs = search.heirs(step, slot);
  const board = search.board(step, slot);
  const best = heirs.reduce((a, b) => (a && board.shares[a.position] >= board.shares[b.position] ? a : b), null);
  const next = heirs.length ? heirs.find((heir) => heir.slot === slotAt(step + 1)) : null;
  return { search, step, slot, board, heirs, best, next, chosen, valued };
}

function tellStart(scene) {
  const { search, board, heirs, best } = scene;
  const rule = "The network merges two neighbours at a time until one part is left.";
  if (board.shares.length === 1) return `${rule} Here there is only one pair, ${pairWords(board, best)}.`;
  const first = `Of ${count(board.shares.length, "pair")}, ${pairWords(board, best)} scores best`;
  if (heirs.length === 1) return `${rule} ${first}; with only ${count(search.data.beam_size, "beam")}, no other pair is kept.`;
  return `${rule} ${first}, but the best ${heirs.length} are all kept: each starts a beam, a tree in the making.${whyFollow(scene)}`;
}

function tellMerge(scene) {
  const { board, slot, heirs, best, next } = scene;
  const name = `Beam ${slot + 1}`;
  if (board.shares.length === 1) return `${name} merges its last pair, ${pairWords(board, best)}.`;
  const compares = `${name} compares ${count(board.shares.length, "pair")}`;
  if (heirs.length === 1) {
    const renamed = next.slot === slot ? "" : `; it is now beam ${next.slot + 1}`;
    return `${compares} and merges the best, ${pairWords(board, best)}${renamed}.`;
  }
  const others = heirs.filter((heir) => heir !== best && heir !== next);
  const told = [`the best, ${pairWords(board, best)}, makes the new beam ${best.slot + 1}`];
  if (next !== best) told.push(`${pairWords(board, next)} makes beam ${next.slot + 1}`);
  const names = listWords(others.map((heir) => heir.slot + 1));
  if (others.length) told.push(others.length > 1 ? `other pairs make beams ${names}` : `another pair makes beam ${names}`);
  return `${compares} and splits: ${listWords(told)}.${whyFollow(scene)}`;
}

// Why the story does not follow the best pair: a beam that is behind now may be ahead later.
function whyFollow({ best, next, chosen }) {
  if (next === best) return "";
  return ` We follow beam ${next.slot + 1}, ${chosen ? "which leads to the beam you chose" : "which ends as the best"}.`;
}

// Each lesson is told once: at the first merge where it applies and no earlier one in the list is due.
const LESSONS = [lessonRank, lessonWeight, lessonValue, lessonSame];

// What to add about a merge: which beams are dropped, and a lesson.
function lessonsAt(step, sceneAt) {
  const scene = sceneAt(step);
  const left = new Set(LESSONS);
  const first = firstDrop(scene.search);
  let lesson = "";
  for (let s = 1; s <= step && left.size; s++) {
    const then = sceneAt(s);
    if (!then.heirs.length) continue;
    // The first drop is a lesson itself; there is room for the shortest other one only.
    const due = [...left].find((one) => (s !== first || one === lessonRank) && one(then));
    left.delete(due);
    lesson = s === step && due ? due(then) : "";
  }
  const dropped = tellDrops(scene, step === first);
  return [dropped, lesson || (dropped ? "" : readingWords(scene))];
}

const droppedAt = (search, step) => search.living(step).filter(({ slot }) => !search.heirs(step, slot).length);

function firstDrop(search) {
  for (let step = 1; step < search.steps; step++) if (droppedAt(search, step).length) return step;
  return null;
}

const WEIGHT = "(its shares multiplied and rescaled)";

// Gives the figures at the first drop, and whenever a beam with no more weight survives.
function tellDrops({ search, step }, first) {
  const dropped = droppedAt(search, step);
  if (!dropped.length) return "";
  const several = dropped.length > 1;
  const names = listWords(dropped.map(({ slot }) => slot + 1));
  // "Old" because beams are numbered again after this merge.
  const told = several ? `The old beams ${names} are dropped` : `The old beam ${names} is dropped`;
  const kept = search.living(step).filter(({ slot }) => search.heirs(step, slot).length);
  const surprising = kept.some((beam) => isNoMore(beam, dropped[0]));
  const figures = first || surprising ? whyDropped(search, step, dropped) : null;
  if (!figures) return `${told}.`;
  const most = several ? "at most " : "";
  const product = first ? `weight ${step === 1 ? `${WEIGHT} ` : ""}× best share is ${most}` : most;
  const less = first ? ", less than" : " is less than";
  return `${told}: ${product}${figures.lost}${less} the ${figures.last} of the last choice kept.`;
}

const isNoMore = (beam, other) => beam.weight <= other.weight || percent(beam.weight) === percent(other.weight);

function tellOwnDrop({ search, step, slot }) {
  const figures = whyDropped(search, step, search.living(step).filter((beam) => beam.slot === slot));
  const why = figures
    ? `its weight times its best share, ${figures.lost}, is less than the ${figures.last} of the last choice kept`
    : `its weight times its best share is too small to be among the best ${search.data.beam_size}`;
  return `Beam ${slot + 1} is dropped here: ${why}.`;
}

// Weight times share of the best choice that these beams offer and of the last choice kept, with as many digits as it
// takes to see the difference; null if none suffice.
function whyDropped(search, step, dropped) {
  const beams = search.living(step);
  const offers = dropped.map(({ slot, weight }) => [weight, Math.max(...search.board(step, slot).shares)]);
  const lost = offers.reduce((a, b) => (a[0] * a[1] >= b[0] * b[1] ? a : b));
  const { slot, parent } = search.living(step + 1).at(-1);
  const { weight } = beams.find((beam) => beam.slot === parent);
  const last = [weight, search.board(step, parent).shares[search.data.position[step][slot]]];
  const product = ([a, b]) => parseFloat(a) * parseFloat(b);
  for (const show of [percent, (one) => `${(100 * one).toFixed(1)} %`, (one) => `${(100 * one).toFixed(2)} %`]) {
    const [less, more] = [lost.map(show), last.map(show)];
    if (product(less) < product(more)) return { lost: less.join(" × "), last: more.join(" × ") };
  }
  return null;
}

// In later merges: the reading of a part that is a text by itself.
function readingWords({ board, valued }) {
  const made = board.nodes.at(-1);
  return valued && made?.value?.isText ? `The classifier reads ${quote(board, made)} as ${made.value.label}.` : "";
}

function lessonRank({ slot, next }) {
  return next.slot === slot ? "" : "Beams are renumbered by rank after each merge.";
}

function lessonValue({ board, valued }) {
  const made = board.nodes.at(-1);
  if (!valued || !made?.value) return "";
  return `The small ${made.value.label} at ${quote(board, made)} is a reading, not a calculation: the classifier's answer for that part alone.`;
}

function lessonSame({ search, step, slot }) {
  const same = beamsLike(search, step, slot);
  // Only if it is new at this merge.
  if (same.length < 2 || same.length === beamsLike(search, step - 1, search.follow({ step, slot }, step - 1)).length)
    return "";
  return `Before this merge, beams ${listWords(same)} hold the same parts; they made them in different orders.`;
}

function lessonWeight({ search, step }) {
  if (search.living(step).length < 2 || firstDrop(search) === 1) return "";
  return `The percentage of a beam is its weight ${WEIGHT}.`;
}

// The numbers, from 1, of the beams that hold the same parts as this one, itself included.
function beamsLike(search, step, slot) {
  const own = partsOf(search, step, slot);
  return search.living(step).flatMap((beam) => (partsOf(search, step, beam.slot) === own ? [beam.slot + 1] : []));
}

function tellEnd(search, { model, prediction, answer, sentences }, sentence) {
  const beside = [
    sentences.length > 1 ? "and from that of the other sentence " : "",
    model.settings.readout === "pooled" ? "and from the tokens themselves " : "",
  ];
  const answers =
    model.members > 1
      ? `its answer; the average of the ${model.members} models gives ${prediction.label}.`
      : `the answer, ${prediction.label}.`;
  const reads = `${beside.join("")}the classifier reads ${answers}`;
  const read =
    search.final.length === 1
      ? `From its top node ${reads}`
      : `Their top nodes are averaged using the beams' weights, and from that average ${reads}`;
  return inOneParagraph(treesWords(search), read, judgeWords(prediction, answer, sentence));
}

function treesWords(search) {
  const beams = search.final.length;
  if (beams === 1) return "One beam, one tree.";
  const trees = countTrees(search);
  if (trees > 1) return `The ${beams} beams disagree: they built ${trees} different trees.`;
  return `All ${beams} beams built the same tree, but in different orders, so they stayed separate beams.`;
}

const countTrees = (search) => new Set(search.final.map((slot) => partsOf(search, search.steps, slot))).size;

// Is the answer right? It can be even if the tree is not the gold tree.
function judgeWords({ label }, answer, { gold }) {
  if (answer === null || answer === undefined) return "";
  if (answer !== label) return `That is wrong: worked out exactly, it is ${answer}.`;
  const agreement = gold?.agreement[0];
  const without =
    agreement && agreement.f1 !== null && !agreement.exact
      ? ` Yet the best tree is not the gold tree: they share ${agreement.shared} of ${agreement.spans} spans.`
      : "";
  return `That is right: worked out exactly, it is ${answer}.${without}`;
}

const inOneParagraph = (...told) => told.filter(Boolean).join(" ");

const quote = (board, part) => `“${spanText(board.tokens, part, 24)}”`;

function pairWords(board, { position }) {
  const [left, right] = [0, 1].map((side) => quote(board, partOf(board, board.row[position + side])));
  return `${left} and ${right} (${percent(board.shares[position])})`;
}

const listWords = (names) => (names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : `${names[0]}`);

// A key for a set of parts, whatever the order in which they were made.
const partsOf = (search, step, slot) =>
  search
    .board(step, slot)
    .nodes.map(({ start, end }) => `${start}:${end}`)
    .sort()
    .join(" ");
