// Pictures, drawn on canvases, as the page may load none by an address.

import { make } from "./make.js";
import { t } from "./texts.js";

// An empty one with a name for those who do not see it.
export function drawing(name) {
  const canvas = make("canvas", "picture");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  return canvas;
}

// The picture in a Blob, at most so many pixels a side.
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
