// Images, videos, sounds and PDF files of messages, which models see and hear: {name, url}, where
// `url` is a data URI, missing if the file was dropped.
//
// They are read from files, drawn, and dropped when they exceed the browser's storage.

import { drawn, toBlob } from "../canvas.js";
import { make } from "../make.js";
import { t } from "../texts.js";
import { MOST_BYTES, MOST_MEDIA_BYTES, PDF_TYPE, SOUND_TYPES, TYPES, VIDEO_TYPES } from "./kept_images.js";

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

// Return a video, a sound, or a PDF whose pages the model sees.  Throws Error with the reason.
export async function readMedia(file, mime) {
  const { name, size } = file;
  const type = mime.split(";")[0]; // without the codecs of a recording
  if (type.startsWith("audio/") && !SOUND_TYPES[type]) throw new Error(t("audio.type", { name }));
  if (![...VIDEO_TYPES, PDF_TYPE, ...Object.keys(SOUND_TYPES)].includes(type)) throw new Error(t("video.type", { name }));
  if (size > MOST_MEDIA_BYTES) throw new Error(t("file.large", { name, size: (size / MEGA).toFixed(1), most: MOST_MEDIA_BYTES / MEGA }));
  return { name, url: await toUrl(new Blob([file], { type })) };
}

// Return an element for an image; for another file its name and size.
export function showImage({ name, url }) {
  if (!url) return make("p", "note", t("image.gone", { name }));
  const [head, base64] = url.split(",");
  if (!head.startsWith("data:image/")) {
    const box = make("p", "file");
    box.append(make("span", "", name), " ", make("span", "hint", t("file.size", { size: ((base64.length * 0.75) / MEGA).toFixed(1) })));
    return box;
  }
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
