// Shows one entry's payload: as text where it is text, else as bytes.

import { byId } from "./dom.js";
import { size } from "./format.js";
import { call, withParameters } from "./rest.js";

const SHOWN_BYTES = 4_096;
const ROW_BYTES = 16;
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/;

// The text, or null when the bytes are none. The end may cut a character in two.
export function asText(bytes, isCut) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: isCut });
    return CONTROL.test(text) ? null : text;
  } catch {
    return null;
  }
}

export function asHex(bytes) {
  const rows = [];
  for (let start = 0; start < bytes.length; start += ROW_BYTES) {
    const row = bytes.subarray(start, start + ROW_BYTES);
    const hex = [...row].map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = [...row].map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    rows.push(`${start.toString(16).padStart(4, "0")}  ${hex.padEnd(ROW_BYTES * 3)} ${text}`);
  }
  return rows.join("\n");
}

function show(entry) {
  const sent = Uint8Array.from(atob(entry.payload), (each) => each.charCodeAt(0));
  const bytes = sent.subarray(0, SHOWN_BYTES);
  const isCut = bytes.length < Math.max(sent.length, entry.payloadSize ?? 0);
  const isPlain = (entry.compression ?? "NONE") === "NONE" && !entry.encrypted;
  const text = isPlain ? asText(bytes, isCut) : null;
  byId("peek-says").textContent = describe(entry, bytes.length, isCut && isPlain, text === null);
  byId("peek-payload").textContent = text ?? asHex(bytes);
}

function describe(entry, shown, isCut, isHex) {
  if (!shown) return "The payload is empty.";
  const parts = [`${size(entry.payloadSize ?? shown)}${isHex ? ", not text, so shown as bytes" : " of text"}`];
  if (isCut) parts.push(`the first ${size(shown)} of it`);
  if (entry.compression && entry.compression !== "NONE") parts.push(`compressed by ${entry.compression}, shown as stored`);
  if (entry.encrypted) parts.push("encrypted by its producer");
  if (entry.messages > 1) parts.push(`a batch of ${entry.messages} messages`);
  return `${parts.join("; ")}.`;
}

export async function peek(rest, subscription, position) {
  const dialog = byId("peek");
  byId("peek-title").textContent = `Payload of ${position}`;
  byId("peek-says").textContent = "Reading …";
  byId("peek-payload").textContent = "";
  dialog.showModal();
  byId("peek-close").focus();
  const path = `${rest}/subscription/${encodeURIComponent(subscription)}/pending`;
  try {
    const found = await call("GET", withParameters(path, { messageId: position, payload: "true" }));
    const entry = found.entries[0];
    if (!entry) byId("peek-says").textContent = "It is not pending any more.";
    else if (typeof entry.payload !== "string") byId("peek-says").textContent = "The bridge sent no payload.";
    else show(entry);
  } catch (error) {
    byId("peek-says").textContent = error.message;
  }
}
