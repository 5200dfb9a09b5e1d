// Images of messages: {name, url}, where `url` is a data URI, missing if the image was dropped.
//
// They are read from files, drawn, and dropped when they exceed the browser's storage.

import { drawn, toBlob } from "../canvas.js";
import { make } from "../make.js";
import { t } from "../texts.js";
import { MOST_BYTES, TYPES } from "./kept_images.js";

const MEGA = 1e6;
const SHOWN = 480; // pixels a side, at most

// Return the image of a file.  Throws Error with the reason.
export async function readImage(file) {
  const { name, size, type } = file;
  if (!TYPES.includes(type)) throw new Error(t("image.type", { name }));
  if (size > MOST_BYTES) throw new Error(t("image.large", { name, size: (size / MEGA).toFixed(1), most: MOST_BYTES / MEGA }));
  try {
    (await createImageBitmap(file)).close();
  } catch {
    throw new Error(t("image.broken", { name }));
  }
  return { name, url: await toUrl(file) };
}

// Return an element for an image.
export function showImage({ name, url }) {
  if (!url) return make("p", "note", t("image.gone", { name }));
  const [head, base64] = url.split(",");
  return drawn(toBlob(base64, head.slice("data:".length, head.indexOf(";"))), t("image.of", { name }), SHOWN);
}

function toUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
