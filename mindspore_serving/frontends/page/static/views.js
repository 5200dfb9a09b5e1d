// Selects the visible view by the fragment of the URL.

const NAMES = [...document.querySelectorAll("#views a")].map((one) => one.hash.slice(1));

export class Views {
  #first = "chat"; // what is shown if the address names nothing

  constructor() {
    addEventListener("hashchange", () => this.#show());
    this.#show();
  }

  // True if there is a model that can chat; otherwise the chat is hidden.
  offerChat(isThere) {
    document.body.dataset.chat = isThere ? "yes" : "no";
    this.#first = isThere ? "chat" : NAMES[1];
    this.#show();
  }

  // True if the user may operate the server; otherwise that view is hidden.
  offerOperation(isThere) {
    if (isThere === (document.body.dataset.operator === "yes")) return;
    document.body.dataset.operator = isThere ? "yes" : "no";
    this.#show();
  }

  #show() {
    const { chat, operator, view } = document.body.dataset;
    const asked = location.hash.slice(1);
    if (asked && !NAMES.includes(asked) && view) return; // a place in a view
    const isMissing = { chat: chat === "no", operate: operator !== "yes" };
    const shown = NAMES.includes(asked) && !isMissing[asked] ? asked : this.#first;
    document.body.dataset.view = shown;
    for (const link of document.querySelectorAll("#views a")) {
      if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
}
