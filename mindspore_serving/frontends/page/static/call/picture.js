// Images in an answer: files, and arrays of pixels.

import { drawing, drawn, toBlob } from "../canvas.js";
import { t } from "../texts.js";

const LEAST = 8; // pixels a side, below which numbers are shown as numbers
const STARTS = { png: "iVBORw0KGgo", jpeg: "/9j/", gif: "R0lGOD", webp: "UklGR" };

// Return an element for a value that is an image, null for other values.
export function picture(value) {
  const kind = Object.keys(STARTS).find((one) => value?.b64?.startsWith?.(STARTS[one]));
  if (kind) return drawn(toBlob(value.b64, `image/${kind}`), t("picture"));
  const size = sizeOf(value);
  return size && fromNumbers(value, ...size);
}

// Return height and width of rows of numbers, or of rows of pixels of 1 or 3 numbers.
function sizeOf(value) {
  const width = value?.[0]?.length;
  if (!Array.isArray(value?.[0]) || value.length < LEAST || width < LEAST) return null;
  const isPixel = (one) => typeof one === "number" || ((one?.length === 1 || one?.length === 3) && typeof one[0] === "number");
  const isWhole = value.every((row) => row.length === width && row.every(isPixel));
  return isWhole ? [value.length, width] : null;
}

// Draw the smallest number dark and the largest light.
function fromNumbers(value, height, width) {
  const canvas = drawing(t("picture"));
  canvas.width = width;
  canvas.height = height;
  const pixels = value.flat().map((one) => (typeof one === "number" ? [one] : one));
  const all = pixels.flat();
  const [least, most] = all.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
  const image = new ImageData(width, height);
  pixels.forEach((pixel, at) => {
    for (let color = 0; color < 3; color += 1) {
      image.data[4 * at + color] = (255 * (pixel[color % pixel.length] - least)) / (most - least || 1);
    }
    image.data[4 * at + 3] = 255;
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
