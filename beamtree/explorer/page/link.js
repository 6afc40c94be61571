// Writes the view into the address, and reads it back: a link shows the same text, models, beam, step and folds again.

const ENDS = ["", "2", "3"]; // endings of the names of the fields, one for each pane

export function readLink(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (name) => (/^\d{1,6}$/.test(fields.get(name) ?? "") ? Number(fields.get(name)) : null);
  return {
    model: fields.get("model"),
    other: fields.get("with"),
    beams: number("beams"),
    texts: fields.getAll("text"),
    record: number("record"),
    sentence: number("sentence") ?? 0,
    step: number("step"),
    values: fields.get("values") !== "0",
    panes: ENDS.map((end) => readPane(fields, end)),
  };
}

export function writeLink({ model, other, beams, texts, record, sentence, step, values, panes }) {
  const fields = new URLSearchParams();
  const put = (name, value) => value !== null && value !== undefined && fields.append(name, value);
  put("model", model);
  put("with", other);
  put("beams", beams);
  for (const text of texts ?? []) put("text", text);
  put("record", record);
  if (sentence) put("sentence", sentence);
  put("step", step);
  if (!values) put("values", 0);
  panes.forEach((pane, i) => {
    const end = ENDS[i];
    if (pane.anchor) put(`beam${end}`, `${pane.anchor.step}.${pane.anchor.slot}`);
    if (pane.gold) put(`gold${end}`, 1);
    if (pane.folded) put(`fold${end}`, [...pane.folded].join(","));
    if (pane.orientation !== "auto") put(`turn${end}`, pane.orientation);
  });
  return `#${fields}`;
}

function readPane(fields, end) {
  const [, step, slot] = /^(\d{1,6})\.(\d{1,4})$/.exec(fields.get(`beam${end}`) ?? "") ?? [];
  const fold = fields.get(`fold${end}`);
  const turn = fields.get(`turn${end}`);
  return {
    anchor: step === undefined ? null : { step: Number(step), slot: Number(slot) },
    gold: fields.get(`gold${end}`) === "1",
    folded: fold === null ? null : new Set(fold.split(",").filter((key) => /^\d+:\d+$/.test(key))),
    orientation: ["upright", "sideways"].includes(turn) ? turn : "auto",
  };
}
