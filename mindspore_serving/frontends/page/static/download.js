// Files that the page offers for saving.

import { make } from "./make.js";

export function download(text, name) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
