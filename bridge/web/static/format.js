// Numbers, sizes and times as the server writes them.

const NOTHING = "–";
const UNITS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1_000, "s"]];
const COUNT = new Intl.NumberFormat("en-US");

export const count = (value) => (value === null || value === undefined ? NOTHING : COUNT.format(value));

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return NOTHING;
  let scaled = bytes;
  let unit = "B";
  for (const larger of ["KB", "MB", "GB", "TB"]) {
    if (scaled < 1024) break;
    scaled /= 1024;
    unit = larger;
  }
  return `${unit === "B" || scaled >= 100 ? scaled.toFixed(0) : Number(scaled.toPrecision(3))} ${unit}`;
}

export function duration(ms) {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const parts = [];
  let rest = ms;
  for (const [length, unit] of UNITS) {
    if (rest >= length && parts.length < 2) {
      parts.push(`${Math.floor(rest / length)} ${unit}`);
      rest %= length;
    } else if (parts.length) break;
  }
  return parts.join(" ");
}

// Epoch ms or RFC 3339, to epoch ms.
export const epoch = (time) => (typeof time === "number" ? time : Date.parse(time));

export function instant(time) {
  const date = new Date(epoch(time));
  return Number.isNaN(date.getTime()) ? `${time} ms after 1970` : date.toISOString().slice(0, 19).replace("T", " ");
}

export function away(time) {
  const distance = epoch(time) - Date.now();
  if (Math.abs(distance) < 1_000) return "now";
  return distance > 0 ? `in ${duration(distance)}` : `${duration(-distance)} ago`;
}

// What a form's field for a point in time says, read as UTC, to epoch ms; null when it is empty.
export const fromField = (value) => (value ? Date.parse(`${value}Z`) : null);
