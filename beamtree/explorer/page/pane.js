// Everything about one text and one model: prediction, tree, beams and search. Several panes are shown side by side.

import { toggleProjection } from "./appearance.js";
import { Candidates, beamList } from "./beams.js";
import { announce, byId, flash } from "./dom.js";
import { copyText, downloadJson, downloadPng, downloadSvg } from "./download.js";
import { foldBelow, foldByDefault, foldFinished } from "./layout.js";
import { mergeTable, modelNote, predictionPanel, valuesNote } from "./panels.js";
import { Picture, describe, pointingHint } from "./picture.js";
import { River } from "./river.js";
import { Search, forestOf, keyOf, partOf } from "./search.js";
import { tellOutcome, tellStep } from "./story.js";
import { Walking } from "./walking.js";
import { clip, count, explainTask } from "./words.js";
import { Zoom } from "./zoom.js";

const BELOW_STAGE = 28; // pixels of margin below the diagram of the search
const LANDMARKS = { drawing: "Tree", prediction: "Prediction", beams: "Beams", table: "Merges" };

export class Pane {
  // `moved(step)`: the pane asks for another step; `changed()`: something that belongs into a link has changed;
  // `valued()`: are the readings of parts shown?; `switchValues()`: show or hide them
  constructor({ moved, changed, valued, switchValues }) {
    this.root = byId("pane-template").content.firstElementChild.cloneNode(true);
    this.moved = moved;
    this.changed = changed;
    this.valued = valued;
    this.switchValues = switchValues;
    this.forget();
    const stage = this.part("stage");
    this.picture = new Picture(stage);
    this.zoom = new Zoom(stage, this.picture.svg);
    this.walking = new Walking(this.picture, { tell: (id) => this.point(id), fold: (id) => this.fold(id) });
    this.river = new River(this.part("river"), (at) => this.jump(at));
    this.candidates = new Candidates(this.part("candidates"));
    this.wire(stage);
  }

  part(name) {
    return this.root.querySelector(`.${name}`);
  }

  // Choices made for one text do not apply to the next.
  forget() {
    this.anchor = null; // the beam followed through the search: { step, slot }
    this.gold = false;
    this.folded = null; // spans, or null for the default at this length
    this.orientation = "auto";
    if (this.zoom) this.zoom.asked = false;
  }

  wire(stage) {
    const on = (name, act) => this.part(name).addEventListener("click", act);
    on("zoom-out", () => this.zoom.out());
    on("zoom-in", () => this.zoom.in());
    on("fit", () => this.zoom.fit());
    on("turn", () => this.turn());
    on("fold", () => this.foldAll());
    on("values", () => this.switchValues());
    on("project", toggleProjection);
    on("copy", () => this.copy());
    on("svg", () => downloadSvg(this.picture.svg, this.fileName()));
    on("png", () => downloadPng(this.picture.svg, this.fileName()));
    on("json", () => downloadJson(this.view, this.fileName()));
    this.part("listing").addEventListener("toggle", () => this.list());
    new ResizeObserver(() => this.resize()).observe(stage);
    window.addEventListener("resize", () => this.resize());
  }

  // Redraw only if the available space has changed: drawing changes the height of the stage as well.
  resize() {
    const { clientWidth } = this.part("stage");
    const size = `${clientWidth} ${window.innerHeight} ${document.body.classList.contains("projecting")}`;
    if (!this.forest || size === this.size) return;
    this.size = size;
    this.draw();
  }

  fail(message) {
    this.view = this.forest = null;
    this.part("problem").textContent = message;
    this.part("problem").hidden = false;
    this.part("pane-note").textContent = "";
    this.part("pane-title").textContent = "";
    this.root.classList.add("failed");
  }

  // Show another text or model. `view` comes from the server.
  take(view, title = view.model.name) {
    this.view = view;
    this.title = title;
    this.search = this.forest = null;
    this.part("problem").hidden = true;
    this.part("compared").textContent = "";
    for (const [name, label] of Object.entries(LANDMARKS))
      this.part(name).setAttribute("aria-label", `${label} of ${title}`);
    this.root.classList.remove("failed");
    this.part("pane-title").textContent = title;
    this.part("pane-note").replaceChildren(...modelNote(view));
    this.part("prediction").replaceChildren(...predictionPanel(view));
    const { labels } = view.model;
    this.searches = view.sentences.map((sentence) => (sentence.beams.length ? new Search(sentence, labels) : null));
    const readable = this.searches.some((search) => search?.data.label);
    this.part("values").hidden = !readable;
    this.part("number").textContent = clip(labels[0], 14);
    this.part("values-note").textContent = readable ? valuesNote(view) : "";
    this.root.classList.toggle("readable", readable);
    this.root.classList.remove("unfinished");
    this.root.classList.toggle(
      "empty",
      this.searches.every((search) => search === null),
    );
  }

  // Say in this pane how far its best tree agrees with that of another pane.
  compare(other) {
    if (!this.view || !other.view) return;
    const spans = (pane) =>
      pane.searches.flatMap((search, i) => (search ? search.bestSpans().map((key) => `${i}:${key}`) : []));
    const [own, theirs] = [spans(this), new Set(spans(other))];
    if (!own.length || !theirs.size) return;
    const shared = own.filter((key) => theirs.has(key)).length;
    this.part("compared").textContent = `${shared} of ${count(own.length, "span")} are also found by ${other.title}.`;
  }

  // The number of merges that can be played; 0 if the tree was not searched for.
  stepsOf(sentence) {
    const search = this.view && this.searches[sentence];
    return search?.scored ? search.steps : 0;
  }

  show(sentence, step) {
    if (!this.view || !this.searches[sentence]) return;
    if (this.search !== this.searches[sentence]) {
      this.search = this.searches[sentence];
      this.river.take(this.search);
    }
    this.sentence = this.view.sentences[sentence];
    this.gold &&= this.sentence.gold !== null; // a link may ask for a gold tree that does not exist
    this.step = this.search.scored ? Math.min(step, this.search.steps) : this.search.steps;
    this.draw();
  }

  draw() {
    const { search, step, sentence } = this;
    const slot = this.slot();
    const done = step === search.steps;
    const meanings = explainTask(this.view.model.task).tokens;
    const board = { ...search.board(step, slot), valued: this.valued(), meanings, judged: done };
    const heirs = this.heirs();
    const taken = new Map();
    for (const { position, slot: heir } of heirs) taken.set(position, [...(taken.get(position) ?? []), heir]);
    this.forest = this.gold ? this.goldForest() : board;
    const whole = this.gold || done;
    this.part("search-view").hidden = search.steps === 0 || !search.scored;
    const below = this.part("river").offsetHeight + BELOW_STAGE;
    const layout = this.picture.draw(this.forest, {
      room: this.zoom.room(below, whole),
      folded: whole ? (this.folded ?? foldByDefault(this.forest)) : foldFinished(this.forest),
      orientation: this.orientation,
      taken: whole ? null : taken,
      top: search.best().nodes.at(-1)?.height ?? 1,
      title: this.gold ? "Gold tree" : `Tree of beam ${slot + 1}${done ? "" : `, ${step} of ${search.steps} merges`}`,
    });
    this.zoom.take(layout);
    if (!whole && heirs.length) this.zoom.reveal(this.picture.middleOf(heirs[0].position));
    else if (!layout.upright && !this.zoom.asked) this.zoom.begin(this.picture.topOf());
    // Next to the top of the tree, not over it.
    this.part("legend").classList.toggle("at-right", layout.upright && this.picture.topOf().x < layout.width / 2);
    const covers = whole || this.zoom.asked || this.part("key").scrollHeight > layout.free;
    this.part("key").classList.toggle("away", covers);
    this.root.classList.toggle("unfinished", !done);
    this.part("awaited").textContent = done ? "" : `The answer appears after merge ${search.steps}.`;
    this.river.show(step, slot);
    this.candidates.show(done ? null : board, taken, `What beam ${slot + 1} can merge next`);
    this.part("beams").replaceChildren(
      ...beamList({
        search,
        sentence,
        step,
        shown: slot,
        gold: this.gold,
        choose: (one) => this.choose(one),
        valued: board.valued,
        anchor: this.chosen,
      }),
    );
    this.part("fold").textContent = whole && this.hidesSome() ? "Open all" : "Fold";
    this.part("fold").disabled = !whole || this.forest.n < 3;
    this.root.classList.toggle("valued", board.valued);
    this.part("values").setAttribute("aria-pressed", String(board.valued));
    const judged = this.forest.judged && this.forest.nodes.some((node) => typeof node.inGold === "boolean");
    this.root.classList.toggle("judged", judged);
    this.part("agrees-words").textContent = this.forest.marks.yes;
    this.part("differs-words").textContent = this.forest.marks.no;
    this.point(null);
    this.list();
  }

  // The story of this step.
  tell(step) {
    const { search, chosen: anchor, view, sentence } = this;
    return tellStep({ search, step, slotAt: (s) => this.slot(s), anchor, view, sentence, valued: this.valued() });
  }

  outcome() {
    return tellOutcome(this);
  }

  // The beam that the user chose; null if a link names one that this search does not have.
  get chosen() {
    return this.search.holds(this.anchor) ? this.anchor : null;
  }

  // The slot of that beam at this step; if none was chosen or it was dropped, that of the beam that is best at the end.
  slot(step = this.step) {
    const { search } = this;
    const best = { step: search.steps, slot: search.final[0] };
    return search.follow(this.chosen ?? best, step) ?? search.follow(best, step);
  }

  // The beams that continue the beam on display, the one that is followed first.
  heirs() {
    const heirs = this.search.heirs(this.step, this.slot());
    const next = heirs.length ? this.slot(this.step + 1) : null;
    return heirs.sort((a, b) => (b.slot === next) - (a.slot === next));
  }

  goldForest() {
    const forest = { ...forestOf(this.search, this.sentence.gold.nodes), valued: this.valued(), judged: true };
    const found = new Set(this.search.bestSpans());
    for (const node of forest.nodes.slice(0, -1)) node.inGold = found.has(keyOf(node));
    return forest;
  }

  hidesSome() {
    return this.picture.layout.leaves.some(({ folded }) => folded);
  }

  choose(one) {
    const index = [...this.part("beams").querySelectorAll("button")].indexOf(document.activeElement);
    this.gold = one === "gold";
    if (!this.gold) this.anchor = { step: this.step, slot: one };
    this.draw();
    if (index >= 0) this.part("beams").querySelectorAll("button")[index]?.focus();
    announce(this.gold ? "Gold tree" : `Beam ${one + 1} of ${this.search.living(this.step).length}`);
    this.changed();
  }

  jump({ step, slot }) {
    this.anchor = { step, slot };
    this.gold = false;
    this.moved(step);
  }

  turn() {
    this.orientation = this.picture.layout.upright ? "sideways" : "upright";
    this.zoom.asked = false;
    this.draw();
    this.changed();
  }

  fold(id) {
    const whole = this.forest.row.length === 1;
    if (!whole) return;
    const key = keyOf(this.forest.nodes[id - this.forest.n]);
    const folded = new Set(this.folded ?? foldByDefault(this.forest));
    if (!folded.delete(key)) folded.add(key);
    this.folded = folded;
    this.draw();
    this.changed();
  }

  foldAll() {
    this.folded = this.hidesSome()
      ? new Set()
      : foldBelow(this.forest, Math.max(4, Math.min(36, Math.round(this.forest.n / 4))));
    this.zoom.asked = false;
    this.draw();
    this.changed();
  }

  point(id) {
    const { forest } = this;
    this.part("readout").replaceChildren(...(id === null ? pointingHint(forest) : [describe(forest, partOf(forest, id))]));
  }

  list() {
    const listing = this.part("listing");
    if (listing.open && this.forest) this.part("table").replaceChildren(mergeTable(this.forest));
  }

  async copy() {
    const { search, sentence, step } = this;
    const index = search.final.indexOf(search.follow({ step, slot: this.slot() }, search.steps) ?? search.final[0]);
    await copyText(this.gold ? sentence.gold.brackets : sentence.beams[index].brackets);
    announce("Copied the tree as brackets");
    flash(this.part("copy"), "Copied");
  }

  fileName() {
    const what = this.gold ? "gold" : `beam${this.slot() + 1}`;
    return `beamtree-${this.view.model.name.replace(/[^\w.-]+/g, "-")}-${what}`;
  }
}
