// Which images, videos, sounds and PDF files a message may have, and which the browser keeps.  Pure.

export const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
export const PDF_TYPE = "application/pdf";
export const VIDEO_TYPES = ["video/mp4", "video/quicktime", "video/webm", "video/x-matroska"];
// Types of sounds, as browsers have them, and OpenAI's names of their formats.
export const SOUND_TYPES = {
  "audio/wav": "wav",
  "audio/x-wav": "wav",
  "audio/mpeg": "mp3",
  "audio/flac": "flac",
  "audio/x-flac": "flac",
  "audio/ogg": "ogg",
  "audio/mp4": "m4a",
  "audio/x-m4a": "m4a",
  "audio/webm": "webm",
  "audio/aac": "aac",
};
export const MOST_BYTES = 8e6; // of a picture's file
export const MOST_MEDIA_BYTES = 24e6; // of the file of a video, a sound or a PDF; servers take 32 MiB
export const MOST_KEPT = 64e6; // characters of all data URIs that are kept

export function isImageUrl(url) {
  return [...TYPES, ...VIDEO_TYPES, ...Object.keys(SOUND_TYPES), PDF_TYPE].some((type) => url.startsWith(`data:${type};base64,`)) && /^[^,]*,[A-Za-z0-9+/]*=*$/.test(url);
}

// Return what a model must take for the file of a data URI.
export function kindOf(url) {
  return url.startsWith("data:audio/") ? "audio" : "image";
}

// Drop images over the limit, the oldest first; `conversations` begin with the newest.  Return the
// conversations that have lost some.
export function dropImages(conversations, most = MOST_KEPT) {
  let room = most;
  const changed = new Set();
  for (const one of conversations) {
    for (const message of one.lanes.flatMap((lane) => [...lane.messages].reverse())) {
      for (const image of message.images ?? []) {
        if (!image.url) continue;
        room -= image.url.length;
        if (room >= 0) continue;
        delete image.url;
        changed.add(one);
      }
    }
  }
  return [...changed];
}
