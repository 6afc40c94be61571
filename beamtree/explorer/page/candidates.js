// What a beam can merge next: the share of every pair as a column, the likeliest in words.

import { element, shape } from "./dom.js";
import { count, figure, percent, spanText } from "./words.js";

const IN_WORDS = 6;

// All shares in one small chart; columns are scaled to the largest.
export function columns(shares, taken) {
  const top = Math.max(...shares, 1e-9);
  const column = (share, at) => `M${at + 0.12} 1V${Math.min(0.985, 1 - share / top).toFixed(4)}H${at + 0.88}V1Z`;
  const draw = (wanted) => shares.map((share, at) => (taken.has(at) === wanted ? column(share, at) : "")).join("");
  return shape(
    "svg",
    {
      class: "columns",
      viewBox: `0 0 ${shares.length} 1`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
      vars: { count: shares.length },
    },
    shape("path", { d: draw(false) }),
    shape("path", { class: "taken", d: draw(true) }),
  );
}

export class Candidates {
  constructor(parent) {
    this.parent = parent;
    this.all = false;
  }

  // `taken`: position -> slots that merge there
  show(board, taken, heading) {
    if (!board || !board.shares?.length) {
      this.parent.replaceChildren();
      return;
    }
    const { shares, pairs } = board;
    const order = shares.map((_, at) => at).sort((a, b) => shares[b] - shares[a] || a - b);
    const shown = this.all ? order : order.filter((at, rank) => rank < IN_WORDS || taken.has(at));
    this.parent.replaceChildren(
      element("h3", {}, heading),
      ...(order.length > IN_WORDS ? [columns(shares, taken)] : []),
      element(
        "ol",
        { class: "pairs", tabindex: this.all ? 0 : null, "aria-label": heading },
        ...shown.map((at) => this.pair(board, at, pairs[at], shares[at], taken.get(at))),
      ),
      ...(order.length > IN_WORDS ? [this.more(board, taken, heading)] : []),
    );
  }

  more(board, taken, heading) {
    const turn = () => {
      this.all = !this.all;
      this.show(board, taken, heading);
      this.parent.querySelector("button").focus();
    };
    const words = this.all ? "Only the likeliest" : `All ${count(board.shares.length, "pair")}`;
    return element("button", { type: "button", class: "link", click: turn }, words);
  }

  pair({ n, tokens, nodes, row }, at, score, share, heirs) {
    const words = (id) => (id < n ? tokens[id] : spanText(tokens, nodes[id - n].start, nodes[id - n].end, 22));
    return element(
      "li",
      { class: heirs ? "taken" : null, vars: { share } },
      element(
        "span",
        { class: "pair" },
        element("code", {}, words(row[at])),
        " + ",
        element("code", {}, words(row[at + 1])),
      ),
      element("span", { class: "quiet", title: "score of the pair" }, figure(score)),
      element("span", { class: "share" }, percent(share)),
      element("span", { class: "fate" }, heirs ? `→ beam ${heirs.map((slot) => slot + 1).join(", ")}` : ""),
    );
  }
}
