// Numbers and spans in words and figures.

export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  const figures = (100 * share).toFixed(share < 0.0995 || share > 0.9949 ? 1 : 0);
  return `${figures.replace(/^(0|100)\.0$/, "$1")} %`;
}

export const figure = (number) => (number === null || number === undefined ? "–" : number.toFixed(2));

export function clip(text, longest) {
  const letters = Array.from(text);
  return letters.length <= longest ? text : letters.slice(0, longest - 1).join("") + "…";
}

export function spanText(tokens, { start, end }, longest) {
  const part = end - start > longest ? [...tokens.slice(start, start + longest), "…"] : tokens.slice(start, end);
  return clip(part.join(" "), longest);
}

export const spanPlace = ({ start, end }) =>
  end - start === 1 ? `token ${start + 1}` : `tokens ${start + 1}–${end}`;

export const valueWords = ({ label, probability, isText }) =>
  `read as ${label}, ${percent(probability)}${isText ? "" : " (extrapolated)"}`;

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
