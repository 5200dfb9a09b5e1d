// Entry point of the page: its views, and the API key that they share.

import { onLocked, setKey } from "./api.js";
import { CallView } from "./call/call_view.js";
import { Chat } from "./chat/chat.js";
import { showFrame } from "./frame.js";
import { LiveView } from "./live/live_view.js";
import { OperateView } from "./operate/operate_view.js";
import { t } from "./texts.js";
import { Views } from "./views.js";

const find = (id) => document.getElementById(id);

showFrame();
const views = new Views();
const chat = await Chat.open();
const calls = new CallView();
const operation = new OperateView();
const live = new LiveView({
  changed: async (servables) => {
    calls.show(servables);
    views.offerChat(await chat.refreshModels(servables));
  },
  seen: ({ servables, operator }) => {
    views.offerOperation(operator === true);
    operation.show(servables);
  },
});
addEventListener("hashchange", () => live.look());

onLocked((wasGiven) => {
  find("key-error").textContent = wasGiven ? t("key.refused") : "";
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
