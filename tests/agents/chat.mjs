// What npm's @huggingface/inference does with an endpoint: `node chat.mjs URL`.
import { InferenceClient } from "@huggingface/inference";

const endpointUrl = process.argv[2];
const client = new InferenceClient("none", { endpointUrl });
const messages = [{ role: "user", content: "Hi" }];
const whole = await client.chatCompletion({ messages });
let text = "";
for await (const chunk of client.chatCompletionStream({ messages })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
console.log(JSON.stringify([whole.choices[0].message.content, text]));
