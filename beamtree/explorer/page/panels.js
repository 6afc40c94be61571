// The panels around the tree: notes on the model, the prediction with a bar for every label, the table of all merges.

import { element } from "./dom.js";
import { count, explainEncoder, explainTask, figure, percent, spanPlace, spanText } from "./words.js";

const SHOWN = 12;

export function predictionPanel({ model, prediction, answer }) {
  const meanings = explainTask(model.task).labels;
  const { label, probability, probabilities } = prediction;
  const ranked =
    probabilities.length <= SHOWN
      ? probabilities
      : [...probabilities].sort((a, b) => b.probability - a.probability).slice(0, SHOWN);
  const right = answer === null || answer === undefined ? null : answer === label;
  const short = ranked.every((one) => one.label.length <= 2); // short labels are put side by side
  return [
    element(
      "p",
      { class: "verdict" },
      element("strong", {}, label),
      element("span", {}, percent(probability)),
      right === null
        ? null
        : element(
            "span",
            { class: right ? "right" : "wrong", title: "The text is also worked out exactly, without the network." },
            right ? "✓ right" : `✗ it is ${answer}`,
          ),
    ),
    element("p", { class: "awaited quiet" }),
    meanings[label] ? element("p", { class: "meaning quiet" }, meanings[label]) : "",
    element(
      "ul",
      { class: short ? "bars short" : "bars", "aria-label": "Probability of each label" },
      ...ranked.map((one) =>
        element(
          "li",
          { class: one.label === label ? "best" : null, vars: { share: one.probability } },
          element("span", { class: "label" }, one.label),
          element("span", {
            class: "bar",
            title: `${one.label}: ${percent(one.probability)}${meanings[one.label] ? ` (${meanings[one.label]})` : ""}`,
          }),
          element("span", { class: short ? "share hidden-text" : "share" }, percent(one.probability)),
        ),
      ),
    ),
  ];
}

// The kind of model, and notes on its answer.
export function modelNote({ model, note, sentences }) {
  const unknown = sentences.reduce((sum, sentence) => sum + sentence.unknown.length, 0);
  const notes = [
    model.beam_size && hasMerges(sentences) && count(model.beam_size, "beam"),
    note,
    unknown && `${count(unknown, "token")} unknown to the model (dotted)`,
  ];
  const tip = explainEncoder(model.encoder);
  return [
    element("span", { class: tip ? "term" : null, title: tip }, model.encoder),
    ...notes.filter(Boolean).map((one) => ` · ${one}`),
  ];
}

const hasMerges = (sentences) => sentences.some(({ tokens }) => tokens.length > 1);

// Explains the labels next to the nodes of a tree.
export function valuesNote({ model, sentences }) {
  if (!hasMerges(sentences)) return "";
  const beside = model.sentences === 2 ? " together with the whole other sentence" : "";
  const parts = sentences.some(({ texts_in: spans, tokens }) => spans?.some(([a, b]) => b - a > 1 && b - a < tokens.length));
  const bold = parts ? "Bold ones belong to parts that are complete texts by themselves; at the grey ones" : "The bold one belongs to the whole text; at the grey ones";
  const what = `what the classifier would answer for each part${beside}, not calculated results`;
  return `The small labels are readings: ${what}. ${bold} the classifier extrapolates.`;
}

// The same facts as the picture of a forest, one merge per line.
export function mergeTable({ tokens, nodes, marks, valued }) {
  if (!nodes.length) return element("p", { class: "quiet" }, "No merge yet.");
  const scored = nodes[0].score !== undefined;
  const read = valued && nodes[0].value !== undefined;
  const judged = typeof nodes[0].inGold === "boolean";
  const heads = [
    "Merge",
    "Text",
    "Where",
    "Height",
    ...(read ? ["Read as"] : []),
    ...(scored ? ["Score", "Share"] : []),
    ...(judged ? [marks.title] : []),
  ];
  const cells = (node) => [
    node.step + 1,
    element("code", {}, spanText(tokens, node, 60)),
    spanPlace(node),
    node.height,
    ...(read ? [valueCell(node.value)] : []),
    ...(scored ? [figure(node.score), percent(node.probability)] : []),
    ...(judged ? [node.inGold === false ? "no" : "yes"] : []), // every tree has the span of the whole text
  ];
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element(
      "tbody",
      {},
      ...nodes.map((node) => element("tr", {}, ...cells(node).map((cell) => element("td", {}, cell)))),
    ),
  );
}

function valueCell({ label, probability, isText }) {
  return element("span", { class: isText ? "value" : "value extrapolated" }, `${label}, ${percent(probability)}`);
}
