// Builders of elements; text is never markup.

const SVG = "http://www.w3.org/2000/svg";

// Return an element with a class and a text.
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

// Icons as lines on a grid of 24 by 24.
const ICONS = {
  auto: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16M12 4v16M12 8l5-2.5M12 12l8-1M12 16l7.5-1",
  camera: "M4 8h4l1.5-2.5h5L16 8h4v11H4zM12 10.2a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4",
  check: "M5 13l4 4L19 7",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.3 17a1.7 1.7 0 0 1-2.4-2.4L14 7.5",
  close: "M6 6l12 12M18 6L6 18",
  columns: "M4 5h16v14H4zM12 5v14",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20l1-5L16 4l4 4L9 19zM14 6l4 4",
  go: "M5 12h14M13 6l6 6-6 6",
  menu: "M4 7h16M4 12h16M4 17h16",
  mic: "M12 4a3 3 0 0 0-3 3v4a3 3 0 0 0 6 0V7a3 3 0 0 0-3-3M5 11a7 7 0 0 0 14 0M12 18v3",
  moon: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z",
  plus: "M12 5v14M5 12h14",
  redo: "M19.5 10A8 8 0 1 0 20 13M20 4v6h-6",
  send: "M12 19V5M6 11l6-6 6 6",
  sliders: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5M9 13.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
};

export function icon(name) {
  const picture = svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" });
  picture.append(svg("path", { d: ICONS[name] }));
  return picture;
}

export function svg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Return a button with a text.
export function button(text, act, className = "") {
  const element = make("button", className, text);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

// Return a button with an icon, and a name for screen readers.
export function iconButton(picture, name, act, className = "") {
  const element = button("", act, `quiet ${className}`.trim());
  element.append(icon(picture));
  element.setAttribute("aria-label", name);
  element.title = name;
  return element;
}
