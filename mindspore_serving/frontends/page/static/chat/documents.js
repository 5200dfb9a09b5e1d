// Reads text files and PDF files that are attached to a message.

import { t } from "../texts.js";
import { MAX_TEXT_BYTES, toText } from "./files.js";
import { pdfText } from "./pdf_text.js";

const MEGA = 1e6;
const MAX_PDF_BYTES = 32e6;
const PDF = "%PDF-";

export async function isPdfFile(file) {
  return (await file.slice(0, 1024).text()).includes(PDF);
}

// Return {name, text} of a file.  Throws Error with the reason.
export async function readDocument(file) {
  const { name, size } = file;
  const isPdf = await isPdfFile(file);
  const most = isPdf ? MAX_PDF_BYTES : MAX_TEXT_BYTES;
  if (size > most) throw new Error(t("file.large", { name, size: (size / MEGA).toFixed(1), most: most / MEGA }));
  const bytes = new Uint8Array(await file.arrayBuffer());
  const text = isPdf ? await readPdf(name, bytes) : toText(bytes);
  if (text === null) throw new Error(t("file.type", { name }));
  if (text.length > MAX_TEXT_BYTES) throw new Error(t("file.long", { name, most: MAX_TEXT_BYTES / MEGA }));
  if (!text.trim()) throw new Error(t(isPdf ? "pdf.no.text" : "file.empty", { name }));
  return { name, text };
}

async function readPdf(name, bytes) {
  try {
    return (await pdfText(bytes, MAX_TEXT_BYTES)).join("\n\n");
  } catch (error) {
    throw new Error(t("pdf.broken", { name, reason: error.message }));
  }
}
