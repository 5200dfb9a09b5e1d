// Images on canvases: the page's security policy forbids to load images by URL.

import { make } from "./make.js";
import { t } from "./texts.js";

// Return an empty canvas with a name for screen readers.
export function drawing(name) {
  const canvas = make("canvas", "picture");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  return canvas;
}

// Return the image of a Blob, at most `most` pixels wide and high.
export function drawn(blob, name, most = Infinity) {
  const canvas = drawing(name);
  createImageBitmap(blob).then((image) => {
    const scale = Math.min(1, most / Math.max(image.width, image.height));
    canvas.width = Math.max(1, Math.round(image.width * scale));
    canvas.height = Math.max(1, Math.round(image.height * scale));
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    image.close();
  }, () => canvas.replaceWith(t("picture.broken")));
  return canvas;
}

export function toBlob(base64, type) {
  return new Blob([Uint8Array.from(atob(base64), (one) => one.charCodeAt(0))], { type });
}
