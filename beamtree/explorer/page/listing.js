// The shown forest as a table: the same facts as the picture, for reading line by line.

import { element } from "./dom.js";
import { figure, percent, spanPlace, spanText } from "./words.js";

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
    ...(judged ? [node.inGold === false ? "no" : "yes"] : []), // every tree has the span of the whole
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
