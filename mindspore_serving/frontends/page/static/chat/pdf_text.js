// Texts of PDF files, by PDF.js, which is loaded when the first one is attached.  It runs in a
// worker that is ended after each file; it draws nothing and runs no scripts of the file.

const FOLDER = new URL("../vendor/pdf/", import.meta.url);
const TIMEOUT = 60000; // milliseconds
const OPTIONS = { isEvalSupported: false, disableFontFace: true, useWasm: false, useWorkerFetch: false, enableXfa: false };
let policy = null;

// Return the text of each page until they have `most` characters.  Throws Error with the reason.
export async function pdfText(bytes, most) {
  const { PDFWorker, getDocument } = await import(new URL("pdf.js", FOLDER));
  const port = new Worker(trusted(new URL("pdf.worker.js", FOLDER).href), { type: "module" });
  const timer = timeout();
  try {
    const task = getDocument({ data: bytes, worker: new PDFWorker({ port, verbosity: 0 }), ...OPTIONS });
    return await Promise.race([timer.promise, broken(port), read(task, most)]);
  } finally {
    clearTimeout(timer.id);
    port.terminate();
  }
}

async function read(task, most) {
  const file = await task.promise;
  const pages = [];
  let length = 0;
  for (let number = 1; number <= file.numPages && length <= most; number += 1) {
    const { items } = await (await file.getPage(number)).getTextContent();
    pages.push(items.map((one) => (one.str ?? "") + (one.hasEOL ? "\n" : "")).join("").trim());
    length += pages.at(-1).length;
  }
  return pages;
}

function timeout() {
  const made = {};
  made.promise = new Promise((_, reject) => {
    made.id = setTimeout(() => reject(new Error(`no end after ${TIMEOUT / 1000} s`)), TIMEOUT);
  });
  return made;
}

function broken(port) {
  return new Promise((_, reject) => port.addEventListener("error", (event) => reject(new Error(event.message || "the worker ended"))));
}

// The page's security policy asks for scripts whose address the page vouches for.
function trusted(url) {
  if (!globalThis.trustedTypes) return url;
  policy ??= trustedTypes.createPolicy("pdf-worker", { createScriptURL: () => new URL("pdf.worker.js", FOLDER).href });
  return policy.createScriptURL(url);
}
