// The words of the page, each explained where it stands and all together in the help.

import { element } from "./dom.js";

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
