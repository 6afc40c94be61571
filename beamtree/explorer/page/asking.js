// The form: models, texts, examples, and the requests to the server. A token that cannot be read is marked in its text.

import { offersFor, readAlike } from "./comparing.js";
import { byId, element } from "./dom.js";

export class Asking {
  // `submit({ model, other, beams, texts })` asks for an answer; `invite()` waits for a text
  constructor({ models, limits }, { submit, invite }) {
    this.models = models;
    byId("beams").max = limits.max_beam_size;
    byId("beams").addEventListener("change", () => this.send());
    this.submit = submit;
    this.invite = invite;
    this.offered = null; // the model whose boxes and examples are shown
    byId("model").replaceChildren(...models.map(({ name }) => element("option", { value: name }, name)));
    byId("model").addEventListener("change", () => this.changeModel());
    byId("other").addEventListener("change", () => this.send());
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("ask").hidden = false;
  }

  get model() {
    return this.models.find(({ name }) => name === byId("model").value) ?? this.models[0];
  }

  get boxes() {
    return [...byId("texts").querySelectorAll("textarea")];
  }

  get question() {
    const beams = byId("beams").value;
    return {
      model: this.model.name,
      other: byId("other").value || null,
      beams: beams ? Number(beams) : null,
      texts: this.boxes.map((box) => box.value),
    };
  }

  // Only a model that searches has a number of beams.
  beamsFor(name, beams) {
    return this.models.find((model) => model.name === name)?.kind === "search" ? beams : null;
  }

  fill({ model, other, beams, texts }) {
    byId("beams").value = beams ?? "";
    if (this.models.some(({ name }) => name === model)) byId("model").value = model;
    this.offer();
    byId("other").value = [...byId("other").options].some(({ value }) => value === other) ? other : "";
    this.write(texts);
  }

  write(texts) {
    this.boxes.forEach((box, i) => {
      box.value = texts[i] ?? "";
      grow(box);
    });
  }

  async changeModel() {
    byId("beams").value = ""; // each model has its own number
    this.offer();
    if (this.boxes.every((box) => !box.value)) {
      const { examples } = this;
      const [example] = await examples;
      // Meanwhile another model may have been chosen, or a text begun.
      if (this.examples !== examples || this.boxes.some((box) => box.value)) return;
      this.clear();
      if (!example) return this.invite();
      this.write(example.texts);
    }
    this.send();
  }

  // Offer what depends on the model: a box for each sentence, examples, and what to compare it with.
  offer() {
    const { model } = this;
    const offers = offersFor(model, this.models);
    const chosen = byId("other").value;
    byId("other").replaceChildren(...offers.map(([value, words]) => element("option", { value }, words)));
    if (offers.some(([value]) => value === chosen)) byId("other").value = chosen;
    byId("other").disabled = offers.length === 1;
    byId("other").title = offers.length > 1
      ? ""
      : "To compare, start the server with two models of the same task: beamtree serve MODEL MODEL";
    byId("beams").placeholder = model.beam_size ?? "–";
    byId("beams").disabled = model.kind !== "search";
    if (this.offered === model) return;
    if (!this.offered || !readAlike(this.offered, model))
      byId("texts").replaceChildren(...Array.from({ length: model.sentences }, (_, i) => this.box(i, model.sentences)));
    this.offered = model;
    const coming = askExamples(model.name).catch(() => []);
    this.examples = coming;
    coming.then((examples) => {
      if (this.examples === coming) byId("examples").replaceChildren(...examples.map((one) => this.example(one)));
    });
  }

  box(i, sentences) {
    const label = sentences === 1 ? "Text" : `Sentence ${i + 1}`;
    const seen = sentences === 1 ? "hidden-text" : null;
    const box = element("textarea", {
      id: `text-${i}`,
      rows: 1,
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      placeholder: sentences === 1 ? "Type a text" : "Type a sentence",
      "aria-describedby": "problem",
      scroll: () => (box.previousSibling.scrollTop = box.scrollTop),
      input: () => {
        grow(box);
        this.clear();
      },
      keydown: (event) => {
        if (event.key !== "Enter" || event.isComposing) return;
        event.preventDefault();
        this.send();
      },
    });
    return element(
      "div",
      { class: "field" },
      element("label", { for: `text-${i}`, class: seen }, label),
      element("div", { class: "paper" }, element("div", { class: "backdrop", "aria-hidden": "true" }), box),
    );
  }

  example({ title, texts }) {
    return element(
      "button",
      {
        type: "button",
        title: texts.join("  ·  ").slice(0, 200),
        click: () => {
          this.write(texts);
          this.send();
        },
      },
      title,
    );
  }

  send() {
    this.clear();
    this.submit(this.question);
  }

  clear() {
    byId("problem").hidden = true;
    for (const box of this.boxes) {
      box.removeAttribute("aria-invalid");
      box.previousSibling.replaceChildren();
    }
  }

  // The server counts characters as code points, JavaScript as UTF-16 units.
  explain({ message, where }, more) {
    byId("problem").textContent = more ? `${message.replace(/\.$/, "")}. ${more}` : message;
    byId("problem").hidden = false;
    const box = where && this.boxes[where.text];
    if (!box) return;
    const letters = Array.from(box.value);
    const bad = letters.slice(where.start, where.end).join("");
    box.setAttribute("aria-invalid", "true");
    box.previousSibling.replaceChildren(
      letters.slice(0, where.start).join(""),
      element("mark", {}, bad || " "),
      letters.slice(where.end).join(""),
    );
    const start = letters.slice(0, where.start).join("").length;
    box.focus();
    box.setSelectionRange(start + bad.length, start + bad.length);
    box.scrollTop = box.previousSibling.querySelector("mark").offsetTop - box.clientHeight / 2;
  }
}

function grow(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`; // with its border
}

export const askModels = () => ask("api/models");

export const askView = (model, texts, beams) =>
  ask("api/view", beams === null ? { model, texts } : { model, texts, beam_size: beams });

const askExamples = async (model) => (await ask(`api/examples?model=${encodeURIComponent(model)}`)).examples;

// If it fails, the error has a message for people and, if a text is to blame, the place in it (`where`).
async function ask(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, body && post).catch(() => {
    throw new Error("The server does not answer. Is it still running?");
  });
  const content = await answer.json().catch(() => null);
  if (answer.ok && content) return content;
  const { message, where } = content?.error ?? { message: `The server answered with status ${answer.status}.` };
  throw Object.assign(new Error(message), { where });
}
