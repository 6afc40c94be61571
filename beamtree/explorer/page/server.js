// Questions to the server, each with a sentence for people if it fails.

class Refusal extends Error {
  constructor({ message, where = null, status = 0 }) {
    super(message);
    this.where = where;
    this.status = status;
  }
}

export const askModels = () => ask("api/models");
export const askExamples = (model) => ask(`api/examples?model=${encodeURIComponent(model)}`);
export const askView = (model, texts, beams) =>
  ask("api/view", beams === null ? { model, texts } : { model, texts, beam_size: beams });

async function ask(path, body) {
  let answer;
  try {
    answer = await fetch(
      path,
      body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) },
    );
  } catch {
    throw new Refusal({ message: "The server does not answer. Is it still running?" });
  }
  const content = await answer.json().catch(() => null);
  if (answer.ok && content) return content;
  throw new Refusal(
    content?.error ?? { message: `The server answered with status ${answer.status}.`, status: answer.status },
  );
}
