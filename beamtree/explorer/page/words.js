// The wording of the page: numbers and spans as text, and explanations of terms, encoders and tasks.

import { element } from "./dom.js";

export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  const figures = (100 * share).toFixed(share < 0.0995 || share > 0.9949 ? 1 : 0);
  return `${figures.replace(/^(0|100)\.0$/, "$1")} %`;
}

export const figure = (number) => (number === null || number === undefined ? "–" : number.toFixed(2));

export function clip(text, longest) {
  const letters = Array.from(text);
  return letters.length <= longest ? text : letters.slice(0, longest - 1).join("") + "…";
}

export function spanText(tokens, { start, end }, longest) {
  const part = end - start > longest ? [...tokens.slice(start, start + longest), "…"] : tokens.slice(start, end);
  return clip(part.join(" "), longest);
}

export const spanPlace = ({ start, end }) =>
  end - start === 1 ? `token ${start + 1}` : `tokens ${start + 1}–${end}`;

export const valueWords = ({ label, probability, isText }) =>
  `read as ${label}, ${percent(probability)}${isText ? "" : " (extrapolated)"}`;

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

const TERMS = {
  token: "A piece of the text that is never split: a digit, a bracket, a word.",
  node: "A merged part of the text. Its vector, a list of numbers, represents that part.",
  beam: "One of the ways of merging that the search keeps: a tree in the making. Beams are renumbered by rank, best first, after each merge.",
  score: "How well two neighbours go together, according to the network. The scores of all pairs of a beam determine their shares.",
  share: "All pairs that a beam can merge share 100 %: the higher the score of a pair, the larger its share.",
  weight: "The shares of all pairs that a beam has merged, multiplied, then rescaled so that all beams add up to 100 %.",
  classifier: "A small network that reads the vector of a node and gives a probability to each possible answer.",
  reading: "What the classifier would answer if this part were the whole text. It is a prediction, not a calculation.",
  span: "The stretch of the text that a node covers.",
  height: "How many levels of merges a part has: a node of two tokens has height 1.",
  "gold tree": "The tree given by the brackets and operators of the text. It is shown for comparison; the model finds a tree of its own.",
};

// The short names of encoders in full, shown as tips.
const ENCODERS = {
  "ebt-grc": "Efficient Beam Tree recursion: a beam search for trees, with a gated recursive cell (GRC) that turns two vectors into one.",
};

export const explainEncoder = (name) => (Object.hasOwn(ENCODERS, name) ? ENCODERS[name] : null);

// A term, with its meaning as a tip.
export const term = (name, words = name) => element("span", { class: "term", title: TERMS[name] }, words);

export const termList = () =>
  Object.entries(TERMS).flatMap(([name, meaning]) => [element("dt", {}, name), element("dd", {}, meaning)]);

// The formal languages, for readers who do not know them.
const LISTOPS = {
  about:
    "ListOps is arithmetic on lists of digits: [MAX takes the largest digit of a list, [MIN the smallest, [MED the median, and [SM the last digit of the sum; ] ends a list.",
  tokens: {
    "[MAX": "starts a list and takes its largest digit",
    "[MIN": "starts a list and takes its smallest digit",
    "[MED": "starts a list and takes its median, rounded down",
    "[SM": "starts a list and takes the last digit of its sum",
    "]": "ends a list",
  },
  labels: {},
};

const LOGIC = {
  about:
    "Which relation holds between two formulas? = they mean the same; < the first implies the second; > the second implies the first; ^ each is the other's negation; | they are never both true; v at least one is always true; # none of these.",
  tokens: {},
  labels: {
    "=": "they mean the same",
    "<": "the first implies the second",
    ">": "the second implies the first",
    "^": "each is the other's negation",
    "|": "they are never both true",
    v: "at least one is always true",
    "#": "none of the other relations",
  },
};

const NOTHING = { about: "", tokens: {}, labels: {} };
const TASKS = { listops: LISTOPS, logic: LOGIC };

export const explainTask = (name) => (Object.hasOwn(TASKS, name) ? TASKS[name] : NOTHING);
