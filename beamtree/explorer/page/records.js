// A file with many texts: their views are in the page as JSON, and each is parsed when it is chosen.

import { byId, element } from "./dom.js";
import { clip, percent } from "./words.js";

const LISTED = 200;

export class Records {
  constructor(elements, choose) {
    this.elements = elements;
    this.choose = choose;
    this.chosen = 0;
    byId("record-filter").addEventListener("input", () => this.list());
    byId("records").hidden = false;
    byId("record-filter").parentElement.hidden = elements.length < 8;
    this.list();
  }

  read(index) {
    return JSON.parse(this.elements[index].textContent);
  }

  mark(index) {
    this.chosen = index;
    for (const button of byId("record-list").querySelectorAll("button")) {
      button.setAttribute("aria-current", String(Number(button.dataset.index) === index));
    }
  }

  list() {
    const wanted = byId("record-filter").value.trim().toLowerCase();
    const found = this.elements
      .map((one, index) => ({ index, ...one.dataset }))
      .filter(({ text }) => text.toLowerCase().includes(wanted));
    byId("record-list").replaceChildren(...found.slice(0, LISTED).map((one) => this.row(one)));
    byId("record-count").textContent =
      found.length > LISTED ? `The first ${LISTED} of ${found.length} texts. Use Find to see others.` : "";
    this.mark(this.chosen);
  }

  row({ index, line, text, label, probability }) {
    return element(
      "li",
      {},
      element(
        "button",
        { type: "button", "data-index": index, click: () => this.choose(index) },
        element("span", { class: "quiet" }, line),
        element("strong", { class: label ? null : "wrong" }, label || "error"),
        element("span", { class: "quiet" }, label ? percent(Number(probability)) : ""),
        element("code", {}, clip(text, 160)),
      ),
    );
  }
}
