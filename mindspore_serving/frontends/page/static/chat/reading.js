// Requests an answer and reads it into a message.

import { Refused, call, events, message as reason } from "../api.js";
import { t } from "../texts.js";
import { take } from "./reply.js";

export class Lost extends Error {}

// `came()` is called for each chunk.  Throws Refused, Lost, or AbortError by `signal`.
export async function read(body, message, signal, came) {
  const sent = performance.now();
  const response = await reach(body, signal);
  let isDone = false;
  try {
    for await (const event of events(response)) {
      if (event.error) throw new Refused(200, reason(event), event.error.param);
      take(message, event, (performance.now() - sent) / 1000);
      isDone ||= Boolean(event.choices?.[0]?.finish_reason);
      came();
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Lost(t("lost")); // as fetch says it
  }
  if (!isDone) throw new Lost(t("lost"));
}

async function reach(body, signal) {
  try {
    return await call("v1/chat/completions", { body, signal });
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Lost(t("unreachable"));
  }
}
