// Calls of the bridge's REST interface; what goes wrong is thrown as an Error whose message is for people.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const MEANINGS = {
  401: "You are not logged in, or not any more: reload the page to log in.",
  403: "You may not do this.",
  503: "The bridge is not ready.",
};

export async function call(method, path, { body, signal } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      signal,
      // An answer from elsewhere would be refused by the browser without a word.
      redirect: "manual",
      headers: { Accept: "application/json", ...(body ? { "Content-Type": "application/json" } : {}) },
      body: body ? JSON.stringify(body) : undefined,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The bridge does not answer.");
  }
  if (answer.type === "opaqueredirect") {
    throw new Refused(307, "Another bridge owns this topic by now: reload the page to be led there.");
  }
  const text = await answer.text();
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    if (answer.ok) throw new Refused(answer.status, "The bridge's answer cannot be read.");
  }
  if (!answer.ok) {
    const reason = found?.reason ?? MEANINGS[answer.status] ?? `The bridge answered ${answer.status}.`;
    throw new Refused(answer.status, reason);
  }
  return found;
}

// Parameters without a value are left out; a list gives the same name several times.
export function withParameters(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") query.append(name, each);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}
