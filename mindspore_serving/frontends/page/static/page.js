// Starts the page: the chat and the live view, and the key that both may need.

import { onLocked, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { LiveView } from "./live_view.js";

const find = (id) => document.getElementById(id);
const chat = new Chat();
const live = new LiveView((servables) => chat.refreshModels(servables));

onLocked((wasGiven) => {
  find("key-error").textContent = wasGiven ? "The server does not accept this key." : "";
  if (!find("key-form").hidden && !wasGiven) return;
  find("key-form").hidden = false;
  find("key").focus();
});

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(find("key").value.trim());
  find("key").value = "";
  find("key-form").hidden = true;
  live.look();
});
