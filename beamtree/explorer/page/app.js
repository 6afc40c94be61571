// The page: a form or a list of texts, one to three panes, and one player for all of them.
//
// From a question to a picture: asking.js gets the answer; search.js replays its merges; layout.js decides which part of a
// forest is drawn and where, picture.js draws it; pane.js shows everything about one model; story.js tells its search.

import { setUpTheme } from "./appearance.js";
import { Asking, askModels, askView } from "./asking.js";
import { onGoldTree, panesFor } from "./comparing.js";
import { announce, byId, element, flash } from "./dom.js";
import { copyText } from "./download.js";
import { readLink, writeLink } from "./link.js";
import { Pane } from "./pane.js";
import { Player } from "./player.js";
import { Records } from "./records.js";
import { partOf } from "./search.js";
import { clip, count, explainTask, percent, spanText, termList } from "./words.js";

const asked = { model: null, other: null, beams: null, texts: [], record: null, sentence: 0, values: true };
const panes = [];
let question = 0; // answers to earlier questions are ignored

const player = new Player({
  show: (step) => {
    for (const pane of panes) pane.show(asked.sentence, step);
    remember();
  },
  words: stepWords,
  tell,
});

// Tells one of several searches; at the end each of the others gets a sentence.
function tell(step) {
  const pane = toldPane();
  const told = pane?.tell(step) ?? "";
  if (!told || panes.length === 1) return told;
  const others = step === player.steps ? panes.filter((other) => other !== pane && other.view) : [];
  return [`${pane.title}: ${told}`, ...others.map((other) => `${other.title}: ${other.outcome()}`)].join(" ");
}

function newPane() {
  return new Pane({
    moved: (step) => player.stopAt(step),
    changed: () => {
      player.speak();
      remember();
    },
    valued: () => asked.values,
    switchValues: () => showValues(!asked.values),
  });
}

function showValues(wanted) {
  asked.values = wanted;
  for (const pane of panes) if (pane.forest) pane.draw();
  player.speak();
  announce(wanted ? "Values of parts are shown" : "Values of parts are hidden");
  remember();
}

// Show the answers, one per pane. `wanted`: what a link asks for; `named`: panes that may have titles.
function present(answers, wanted = {}, named = []) {
  dim(false);
  byId("loading").hidden = true;
  while (panes.length > answers.length) panes.pop().root.remove();
  while (panes.length < answers.length) {
    panes.push(newPane());
    byId("panes").append(panes.at(-1).root);
  }
  byId("panes").classList.toggle("side-by-side", answers.length > 1);
  byId("panes").style.setProperty("--panes", answers.length);
  answers.forEach((answer, i) => {
    panes[i].forget();
    Object.assign(panes[i], wanted.panes?.[i] ?? {});
    if (answer instanceof Error) panes[i].fail(answer.message);
    else panes[i].take(answer, named[i]?.title);
  });
  for (const pane of panes.slice(1)) pane.compare(panes[0]);
  explain(answers.find((answer) => answer.model)?.model.task);
  if (asking) document.title = asked.texts.length ? `${clip(asked.texts.join(" · "), 60)} – beamtree` : "beamtree explorer";
  const sentences = Math.max(0, ...answers.map((answer) => answer.sentences?.length ?? 0));
  byId("sentence-choice").hidden = sentences < 2;
  const choice = byId("sentence");
  if (choice.length !== sentences)  // replacing the options would close an open menu
    choice.replaceChildren(
      ...Array.from({ length: sentences }, (_, i) => element("option", { value: i }, `${i + 1}`)),
    );
  chooseSentence(Math.min(wanted.sentence ?? asked.sentence, Math.max(0, sentences - 1)), wanted.step);
  if (answers.length) announce(answers.map(answerWords).join(" "));
}

// A line about a language that not everybody knows.
function explain(task) {
  const { about } = explainTask(task);
  byId("about").textContent = about;
  byId("about").hidden = !about;
}

// Visitors who asked for nothing in particular are shown how it works, unless they prefer no motion.
function openStory() {
  if (player.steps && !matchMedia("(prefers-reduced-motion: reduce)").matches) player.tell();
  else player.go(0);
}

function chooseSentence(sentence, step) {
  asked.sentence = sentence;
  byId("sentence").value = sentence;
  const steps = Math.max(0, ...panes.map((pane) => pane.stepsOf(sentence)));
  player.take(steps, step ?? steps);
}

async function submit({ model, other, beams, texts }, wanted) {
  const own = ++question;
  Object.assign(asked, { model, other, beams, texts });
  document.body.setAttribute("aria-busy", "true");
  const wantedPanes = panesFor({ model, other, beams });
  const answers = await Promise.all(
    wantedPanes.map((pane) =>
      pane.onGold ? null : askView(pane.model, texts, asking.beamsFor(pane.model, pane.beams)).catch((error) => error),
    ),
  );
  if (own !== question) return;
  wantedPanes.forEach(({ onGold }, i) => {
    if (onGold) answers[i] = answers[0] instanceof Error ? answers[0] : onGoldTree(answers[0]);
  });
  document.body.removeAttribute("aria-busy");
  const refused = answers.find((answer) => answer instanceof Error);
  if (refused && answers.every((answer) => answer instanceof Error)) {
    dim(panes.length > 0);
    byId("loading").hidden = true;
    asking.explain(refused, panes.length ? "Below you still see the previous text." : "");
    return;
  }
  enter(JSON.stringify([model, other, beams, texts]), wanted);
  present(answers, wanted, wantedPanes);
}

// The last answer stays visible next to an error, but must not be taken for the answer to this text.
function dim(wanted) {
  player.pause();
  for (const part of [byId("player"), byId("panes")]) {
    part.classList.toggle("stale", wanted);
    part.inert = wanted;
  }
}

// There is no example: wait for a text.
function invite() {
  question++;
  Object.assign(asked, asking.question, { texts: [] });
  document.body.removeAttribute("aria-busy");
  present([]);
  asking.boxes[0].focus();
}

function openRecord(index, wanted) {
  asked.record = index;
  enter(index, wanted);
  records.mark(index);
  const { error, ...view } = records.read(index);
  present([error ? new Error(error.message) : view], wanted);
}

// Each question is one entry in the browser's history, however often it is asked and however many steps are viewed.
// A link (`wanted`) already has its entry.
let entered = null;
function enter(subject, wanted) {
  if (!wanted && subject !== entered) history.pushState(null, "", link());
  entered = subject;
}

let writing = null;
function remember() {
  if (document.body.hasAttribute("aria-busy")) return; // asked and on display are different questions
  clearTimeout(writing);
  const now = link(); // by then another question may have been asked
  writing = setTimeout(() => history.replaceState(null, "", now), 150);
}

// Follow back, forward, and other links in the same tab.
function followLinks(follow) {
  window.addEventListener("hashchange", ({ newURL }) => {
    clearTimeout(writing); // it would write into the wrong entry
    const { hash } = new URL(newURL);
    if (hash === "#panes") remember(); // the link that skips to the trees
    else follow(readLink(hash));
  });
}

function link() {
  const step = player.telling || player.step === player.steps ? null : player.step; // a reload tells the story from the start
  return writeLink({ ...asked, step, panes });
}

function answerWords(answer) {
  if (answer instanceof Error) return answer.message;
  const trees = answer.sentences[0].beams.length;
  return `${answer.model.name} says ${answer.prediction.label}, ${percent(answer.prediction.probability)}; ${count(trees, "beam")}.`;
}

// The pane whose search is told: the one with the most beams.
function toldPane() {
  const searching = panes.filter((one) => one.stepsOf(asked.sentence));
  const width = (pane) => pane.searches[asked.sentence].data.beam_size;
  return searching.reduce((best, pane) => (best && width(best) >= width(pane) ? best : pane), null);
}

function stepWords(step) {
  const pane = toldPane();
  if (!pane) return "";
  const { search } = pane;
  if (step === search.steps) return `${count(step, "merge")}: the whole tree`;
  const board = search.board(step, pane.slot());
  const [taken] = pane.heirs();
  if (!taken) return `Merge ${step + 1} of ${search.steps}: this beam is dropped`;
  const [left, right] = [0, 1].map((side) =>
    spanText(board.tokens, partOf(board, board.row[taken.position + side]), 18),
  );
  return `Merge ${step + 1} of ${search.steps}: ${left} + ${right}`;
}

function chooseBeamByKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  const pane = panes.find(({ root }) => root.contains(event.target)) ?? panes[0];
  const beam = pane?.view && pane.search && pane.search.living(pane.step)[Number(event.key) - 1];
  if (beam) pane.choose(beam.slot);
}

function setUpHelp() {
  byId("terms").replaceChildren(...termList());
  byId("open-help").addEventListener("click", () => byId("help").showModal());
  byId("more").addEventListener("click", () => {
    const open = byId("options").classList.toggle("open");
    byId("more").setAttribute("aria-expanded", String(open));
  });
}

let asking = null;
let records = null;

async function start() {
  setUpTheme();
  setUpHelp();
  byId("sentence").addEventListener("change", (event) => chooseSentence(Number(event.target.value)));
  document.addEventListener("keydown", chooseBeamByKey);
  byId("copy-link").addEventListener("click", async () => {
    history.replaceState(null, "", link());
    await copyText(location.href);
    announce("Copied the link");
    flash(byId("copy-link"), "Copied");
  });
  const inside = [...document.querySelectorAll("script.record")];
  const wanted = readLink(location.hash);
  asked.values = wanted.values;
  if (inside.length) {
    byId("api-link").parentElement.remove();
    records = new Records(inside, openRecord);
    const follow = (link) => openRecord(Math.min(link.record ?? 0, inside.length - 1), link);
    followLinks(follow);
    follow(wanted);
    if (document.body.dataset.opens === "story" && wanted.record === null) openStory();
    return;
  }
  await startWithServer(wanted);
}

async function startWithServer(wanted) {
  try {
    asking = new Asking(await askModels(), { submit, invite });
  } catch (error) {
    announce(error.message);
    byId("loading").hidden = true;
    byId("panes").replaceChildren(element("p", { class: "problem" }, error.message));
    return;
  }
  const follow = async (link) => {
    asking.fill(link);
    const unasked = !link.texts.length && link.model === null;
    const own = question + 1;
    if (!link.texts.length) {
      const [example] = await asking.examples;
      if (asking.boxes.some((box) => box.value)) return; // the user has typed something meanwhile
      if (!example) return invite();
      asking.write(example.texts);
    }
    await submit(asking.question, link);
    if (unasked && own === question) openStory();
  };
  followLinks(follow);
  await follow(wanted);
}

start();
