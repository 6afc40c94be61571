// The list of beams at a step of the search: weight, what becomes of each, and the gold tree beside them.

import { columns } from "./candidates.js";
import { element } from "./dom.js";
import { percent } from "./words.js";

// `chosen`: a slot, or "gold"; `choose(slot or "gold")`
export function beamList({ search, sentence, step, chosen, choose }) {
  const done = step === search.steps;
  const single = !search.scored && search.final.length === 1;
  const rows = search.living(step).map((beam) => {
    const heirs = search.heirs(step, beam.slot);
    return beamRow({
      name: single ? "Its tree" : `Beam ${beam.slot + 1}`,
      weight: single ? null : beam.weight,
      pressed: chosen === beam.slot,
      choose: () => choose(beam.slot),
      dies: !done && heirs.length === 0,
      fate: done ? finalWords(search, sentence, beam.slot) : fateWords(heirs),
      strip:
        done || !search.scored
          ? null
          : columns(search.board(step, beam.slot).shares, new Map(heirs.map(({ position }) => [position, true]))),
    });
  });
  if (sentence.gold) {
    rows.push(
      beamRow({
        name: "Gold tree",
        weight: null,
        pressed: chosen === "gold",
        choose: () => choose("gold"),
        fate: goldWords(sentence.gold.agreement[0]),
      }),
    );
  }
  return [
    element("h3", {}, done ? "Trees" : `Beams after ${step} of ${search.steps} merges`),
    element("ol", { class: "beam-list" }, ...rows),
  ];
}

function beamRow({ name, weight, pressed, choose, fate, strip, dies }) {
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
      element("span", { class: "name" }, name),
      weight === null ? null : element("span", { class: "share" }, percent(weight)),
      element("span", { class: "fate" }, fate),
      strip ?? null,
    ),
  );
}

function fateWords(heirs) {
  if (!heirs.length) return "is dropped";
  const names = heirs.map(({ slot }) => slot + 1).join(", ");
  return heirs.length > 1 ? `splits: beams ${names}` : `goes on as beam ${names}`;
}

function finalWords(search, sentence, slot) {
  const index = search.final.indexOf(slot);
  const same = sentence.beams[index]?.same_tree_as ?? null;
  if (same !== null) return `tree of beam ${search.final[same] + 1}, another order`;
  const agreement = sentence.gold?.agreement[index];
  if (!agreement || agreement.f1 === null) return "";
  return agreement.exact ? "the gold tree" : `${agreement.shared} of ${agreement.spans} gold spans`;
}

function goldWords(agreement) {
  if (!agreement || agreement.f1 === null) return "";
  return agreement.exact ? "found by the model" : `the model finds ${agreement.shared} of ${agreement.spans} spans`;
}
