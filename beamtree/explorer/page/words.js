// The words of the page: numbers and spans in words and figures, and what its terms, encoders and tasks mean.

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
  node: "A merged part. It holds a vector, a row of numbers that stands for that part of the text.",
  beam: "One way to merge that the search keeps: a tree in the making. Its number is its rank after the merge, best first.",
  score: "How well two neighbours go together in the eyes of the network. The scores of all pairs of a beam give their shares.",
  share: "What a pair gets of 100 % among all pairs that the beam can merge.",
  weight: "The shares of all choices of a beam multiplied, then rescaled so that the beams add up to 100 %.",
  classifier: "A small network that reads the vector of a node and gives each possible answer a probability.",
  reading: "What the classifier would answer if a part were the whole text. It is not calculated from the digits.",
  span: "The stretch of the text that a node covers.",
  height: "How many merges lie above each other in a part: a node of two tokens has height 1.",
  "gold tree": "The tree that the brackets of the text spell out. The model finds a tree of its own; this one is there to compare.",
};

// What the short names of encoders stand for, where a reader meets them first.
const ENCODERS = {
  "ebt-grc": "Efficient Beam Tree recursion: a beam search for trees, with a gated recursive cell (GRC) that makes one vector of two.",
};

export const explainEncoder = (name) => (Object.hasOwn(ENCODERS, name) ? ENCODERS[name] : null);

// A word with its meaning as a tip.
export const term = (name, words = name) => element("span", { class: "term", title: TERMS[name] }, words);

export const termList = () =>
  Object.entries(TERMS).flatMap(([name, meaning]) => [element("dt", {}, name), element("dd", {}, meaning)]);

// What the formal languages mean, for readers who meet them here first.
const LISTOPS = {
  about:
    "ListOps is arithmetic with lists of digits: [MAX takes the largest, [MIN the smallest, [MED the median, [SM the sum, of which only the last digit counts; ] ends a list.",
  tokens: {
    "[MAX": "begins a list: its largest digit",
    "[MIN": "begins a list: its smallest digit",
    "[MED": "begins a list: its median, rounded down",
    "[SM": "begins a list: the last digit of its sum",
    "]": "ends a list",
  },
  labels: {},
};

const LOGIC = {
  about:
    "Which relation holds between two formulas? = they mean the same, < the first implies the second, > the second implies the first, ^ each is the other's negation, | never both are true, v at least one is always true, # none of these.",
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
