// Exports: the picture as SVG or PNG, the answer as JSON, the tree as brackets.

import { element, shape } from "./dom.js";

const LARGEST_SIDE = 12000; // pixels that any canvas can have
const DENSITY = 2;
const LOOK = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "paint-order",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
];
// Attributes without a meaning outside the page.
const ONLY_HERE = [
  "class",
  "style",
  "tabindex",
  "role",
  "aria-level",
  "aria-expanded",
  "aria-hidden",
  "data-id",
  "data-start",
  "data-end",
];

export function downloadJson(view, name) {
  save(new Blob([JSON.stringify(view, null, 1)], { type: "application/json" }), `${name}.json`);
}

export function downloadSvg(svg, name) {
  save(new Blob([standalone(svg).text], { type: "image/svg+xml" }), `${name}.svg`);
}

export async function downloadPng(svg, name) {
  const { text, width, height } = standalone(svg);
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = address;
  await image.decode();
  const scale = Math.min(DENSITY, LARGEST_SIDE / Math.max(width, height));
  const canvas = element("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  canvas.toBlob((blob) => save(blob, `${name}.png`), "image/png");
}

// A copy that needs no stylesheet: the present style of each element is written into its attributes.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const originals = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, i) => {
    const style = getComputedStyle(originals[i]);
    if (part.tagName !== "g") for (const name of LOOK) part.setAttribute(name, style.getPropertyValue(name));
    else if (style.opacity !== "1") part.setAttribute("opacity", style.opacity);
    for (const name of ONLY_HERE) part.removeAttribute(name);
  });
  copy.querySelectorAll("[aria-label]").forEach((part) => {
    part.prepend(shape("title", {}, part.getAttribute("aria-label")));
    part.removeAttribute("aria-label");
  });
  const fill = getComputedStyle(svg.parentElement).backgroundColor;
  copy.prepend(shape("rect", { width: "100%", height: "100%", fill }));
  for (const name of ["class", "style"]) copy.removeAttribute(name);
  copy.setAttribute("role", "img");
  copy.setAttribute("xmlns", svg.namespaceURI);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// The clipboard needs a secure address or a permission; without these the old way still works.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = element("textarea", {}, text);
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}
