// The beams at a step of the search, with their weights and what happens to them, and the gold tree; and the pairs that
// the beam on display can merge next, the likeliest in words.

import { element, shape } from "./dom.js";
import { partOf } from "./search.js";
import { tellLost } from "./story.js";
import { clip, count, figure, percent, spanText, term, valueWords } from "./words.js";

const IN_WORDS = 6;

// `shown`: a slot; `gold`: is the gold tree shown instead?; `choose(slot or "gold")`; `anchor`: the beam that the user chose, and at which step
export function beamList({ search, sentence, step, shown, gold, choose, valued, anchor }) {
  const done = step === search.steps;
  const begins = search.scored && step === 0;
  const single = !search.scored && search.final.length === 1;
  const rows = search.living(step).map((beam) => {
    const heirs = search.heirs(step, beam.slot);
    return beamRow({
      name: single ? "Its tree" : `Beam ${beam.slot + 1}`,
      weight: single || (begins && !done) ? null : beam.weight,
      pressed: !gold && shown === beam.slot,
      choose: () => choose(beam.slot),
      dies: !done && heirs.length === 0,
      fate: done ? finalWords(search, sentence, beam.slot, valued) : fateWords(heirs),
      strip:
        done || !search.scored
          ? null
          : columns(search.board(step, beam.slot).shares, new Set(heirs.map(({ position }) => position))),
    });
  });
  if (sentence.gold && search.steps) {
    rows.push(
      beamRow({
        name: "Gold tree",
        tip: "gold tree",
        weight: null,
        pressed: gold,
        choose: () => choose("gold"),
        fate: goldWords(sentence.gold.agreement[0]),
      }),
    );
  }
  return [
    element("h3", {}, headingOf(step, done)),
    element("ol", { class: done ? "beam-list" : "beam-list in-lines" }, ...rows),
    ...notesOn({ search, step, anchor, shown }),
  ];
}

function headingOf(step, done) {
  if (done) return "Trees";
  return step === 0 ? "One beam, nothing merged yet" : `Beams before merge ${step + 1}`;
}

// Notes on what is easily misread: the numbers of the beams and their percentages.
function notesOn({ search, step, anchor, shown }) {
  if (!search.scored || !search.steps) return [];
  const notes = [];
  const now = anchor && search.follow(anchor, step);
  if (anchor && now === null) notes.push(tellLost({ search, step, anchor, shown }));
  else if (anchor && now !== anchor.slot) notes.push(`Beam ${anchor.slot + 1}, which you chose ${placeOf(search, anchor.step)}, is beam ${now + 1} here.`);
  const numbered = ["Beams are renumbered by rank after each merge; the percentage is the ", term("weight"), " of the beam."];
  return [
    ...notes.map((note) => element("p", { class: "chosen-note" }, note)),
    search.data.beam_size > 1 && step > 0 ? element("p", { class: "beams-note quiet" }, ...numbered) : "",
  ];
}

const placeOf = (search, step) => (step === search.steps ? "at the end" : `before merge ${step + 1}`);

function beamRow({ name, tip, weight, pressed, choose, fate, strip, dies }) {
  return element(
    "li",
    {},
    element(
      "button",
      {
        type: "button",
        "aria-pressed": String(pressed),
        class: dies ? "dies" : null,
        vars: { share: weight ?? 0 },
        click: choose,
      },
      element("span", { class: "name" }, tip ? term(tip, name) : name),
      weight === null ? null : element("span", { class: "share" }, percent(weight)),
      element("span", { class: "fate" }, fate),
      strip ?? null,
    ),
  );
}

function fateWords(heirs) {
  if (!heirs.length) return "is dropped";
  const names = heirs.map(({ slot }) => slot + 1);
  if (names.length === 1) return `becomes beam ${names}`;
  const row = names.length > 2 && names.at(-1) - names[0] === names.length - 1;
  return `splits: ${row ? `${names[0]}–${names.at(-1)}` : names.join(", ")}`;
}

function finalWords(search, sentence, slot, valued) {
  const root = valued ? search.board(search.steps, slot).nodes.at(-1)?.value : null;
  const facts = [root ? `read as ${root.label}, ${percent(root.probability)}` : "", treeWords(search, sentence, slot)];
  return facts.filter(Boolean).join("; ");
}

function treeWords(search, sentence, slot) {
  const index = search.final.indexOf(slot);
  const same = sentence.beams[index]?.same_tree_as ?? null;
  if (same !== null) return `same tree as beam ${search.final[same] + 1} in another order`;
  const agreement = sentence.gold?.agreement[index];
  if (!agreement || agreement.f1 === null) return "";
  return agreement.exact ? "same as the gold tree" : `has ${agreement.shared} of ${agreement.spans} gold spans`;
}

function goldWords(agreement) {
  if (!agreement || agreement.f1 === null) return "";
  const found = agreement.exact ? "found by the model" : `the model finds ${agreement.shared} of ${agreement.spans} spans`;
  return `given by brackets and operators; ${found}`;
}

export class Candidates {
  constructor(parent) {
    this.parent = parent;
    this.all = false;
  }

  // `taken`: position -> the slots that merge there
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
      element(
        "p",
        { class: "pair-heads quiet" },
        element("span", {}, "Pair"),
        element("span", { class: "score" }, term("score", "Score")),
        element("span", { class: "share" }, term("share", "Share")),
        element("span", {}, "Becomes"),
      ),
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
    const words = this.all ? "Show only the likeliest" : `Show all ${count(board.shares.length, "pair")}`;
    return element("button", { type: "button", class: "link", click: turn }, words);
  }

  pair(board, at, score, share, heirs) {
    const words = (id) => spanText(board.tokens, partOf(board, id), 22);
    const value = (id) => {
      const read = board.valued && partOf(board, id).value;
      if (!read) return null;
      const title = valueWords(read);
      return element("span", { class: read.isText ? "value" : "value extrapolated", title }, clip(read.label, 14));
    };
    return element(
      "li",
      { class: heirs ? "taken" : null, vars: { share } },
      element(
        "span",
        { class: "pair" },
        element("code", {}, words(board.row[at])),
        " ",
        value(board.row[at]),
        " + ",
        element("code", {}, words(board.row[at + 1])),
        " ",
        value(board.row[at + 1]),
      ),
      element("span", { class: "quiet score" }, figure(score)),
      element("span", { class: "share" }, percent(share)),
      element("span", { class: "fate" }, heirs ? `→ beam ${heirs.map((slot) => slot + 1).join(", ")}` : ""),
    );
  }
}

// All shares as a small bar chart, scaled to the largest.
function columns(shares, taken) {
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
