// Creates elements in one expression: element("p", { class: "quiet" }, "text"); `shape` does the same for SVG.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

// Attributes that are null or false are left out; functions become listeners; `vars` sets CSS variables,
// which a strict content policy allows from a script but not from markup.
function furnish(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) made.style.setProperty(`--${key}`, one);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

// For screen readers only. The same words are spoken again.
export function announce(words) {
  const region = byId("status");
  region.textContent = "";
  requestAnimationFrame(() => (region.textContent = words));
}

// Show for a moment on a button that it did its work.
export function flash(button, words) {
  if (button.textContent === words) return;
  const before = button.textContent;
  button.textContent = words;
  setTimeout(() => (button.textContent = before), 1200);
}
