// Small helpers. What they are given is text, never markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

// Shows a text in an element that is hidden while there is none.
export function say(target, text) {
  target.textContent = text ?? "";
  target.hidden = !text;
}

// Tells at the top of the page what is wrong; null when all is well again.
export function trouble(text) {
  const box = byId("trouble");
  if ((box.hidden ? null : box.textContent) !== text) say(box, text);
}

export function pageData() {
  return JSON.parse(byId("page-data").textContent);
}
