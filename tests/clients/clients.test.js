// Clients in JavaScript as they are; only the address and the key are set. Run by `make test-clients`.
import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createTypeSafeAi } from "@ai-sdk/typesafe-ai";
import { experimental_decide, generateObject, generateText, Output, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const server = process.env.TOKEN_TRIE_URL;
const own = { baseURL: `${server}/v1`, apiKey: "none" };
const prompt = "Where is the Eiffel Tower?";
const messages = [{ role: "user", content: prompt }];
const Place = z.object({ city: z.enum(["Paris", "Rome"]), isCapital: z.boolean() });
const QUESTIONS = {
  team: { type: "choice", instructions: "Which team?", criteria: { billing: "Payments", technical: "Bugs" } },
  mood: { type: "score", instructions: "How angry is it?", criteria: ["calm", "angry"] },
  urgent: { type: "boolean", instructions: "Is it urgent?", criteria: { true: "It is", false: "It can wait" } },
};

test("openai: parse", async () => {
  const client = new OpenAI(own);
  const response_format = zodResponseFormat(Place, "place");
  const answer = await client.chat.completions.parse({ model: "any", messages, response_format });
  Place.parse(answer.choices[0].message.parsed);
});

test("openai: tools in a stream", async () => {
  const client = new OpenAI(own);
  const tools = [zodFunction({ name: "weather", parameters: Place })];
  const stream = client.chat.completions.stream({ model: "any", messages, tools, tool_choice: "required" });
  const deltas = [];
  stream.on("tool_calls.function.arguments.delta", (event) => deltas.push(event.arguments_delta));
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  Place.parse(call.function.parsed_arguments);
  assert.ok(deltas.length > 1);
  assert.equal(deltas.join(""), call.function.arguments);
});

test("openai: text in a stream, and a choice", async () => {
  const client = new OpenAI(own);
  let text = "";
  const stream = await client.chat.completions.create({ model: "any", messages, max_tokens: 5, stream: true });
  for await (const chunk of stream) {
    text += chunk.choices[0].delta.content ?? "";
  }
  assert.ok(text);
  const structured_outputs = { choice: ["Paris", "Rome"] };
  const answer = await client.chat.completions.create({ model: "any", messages, structured_outputs });
  assert.ok(structured_outputs.choice.includes(answer.choices[0].message.content));
});

test("openai: decisions", async () => {
  const client = new OpenAI(own);
  const choices = [{ value: "billing" }, { value: "technical" }];
  const questions = [{ type: "choice", name: "team", instructions: "Which team?", choices }];
  const [answer] = (await client.decisions.create({ model: "any", input: "I was charged twice.", questions })).answers;
  assert.ok(["billing", "technical"].includes(answer.choice));
});

for (const [name, model] of [
  ["openai", createOpenAI(own).decisionModel("any")],
  ["typesafe-ai", createTypeSafeAi(own).evaluationModel("jev-latest")],
]) {
  test(`AI SDK, ${name}: experimental_decide`, async () => {
    for (const state of ["I was charged twice.", { ticket: "I was charged twice." }]) {
      const { answers } = await experimental_decide({ model, state, questions: QUESTIONS });
      assert.ok(answers.team.choice in QUESTIONS.team.criteria);
      assert.ok(answers.mood.score >= 0 && answers.mood.score <= 1);
      assert.ok(answers.urgent.probability >= 0 && answers.urgent.probability <= 1);
    }
  });
}

const compatible = createOpenAICompatible({ name: "token-trie", ...own, supportsStructuredOutputs: true });
for (const [name, model] of [
  ["openai-compatible", compatible("any")],
  ["openai", createOpenAI(own).chat("any")],
]) {
  test(`AI SDK, ${name}: generateObject`, async () => {
    Place.parse((await generateObject({ model, schema: Place, prompt })).object);
    const enumeration = ["Paris", "Rome"];
    assert.ok(enumeration.includes((await generateObject({ model, output: "enum", enum: enumeration, prompt })).object));
  });

  test(`AI SDK, ${name}: generateText and streamText`, async () => {
    Place.parse((await generateText({ model, output: Output.object({ schema: Place }), prompt })).output);
    const { partialOutputStream, output } = streamText({ model, output: Output.object({ schema: Place }), prompt });
    let n = 0;
    for await (const _ of partialOutputStream) {
      n += 1;
    }
    assert.ok(n > 0);
    Place.parse(await output);
  });

  test(`AI SDK, ${name}: tools`, async () => {
    const execute = async ({ city }) => `Rain in ${city}`;
    const tools = { weather: tool({ description: "Weather in a city", inputSchema: Place, execute }) };
    const { toolResults } = await generateText({ model, prompt, tools, toolChoice: "required" });
    assert.match(toolResults[0].output, /^Rain in (Paris|Rome)$/);
    const types = [];
    for await (const part of streamText({ model, prompt, tools, toolChoice: "required" }).fullStream) {
      types.push(part.type);
    }
    assert.ok(types.filter((type) => type === "tool-input-delta").length > 1);
    assert.ok(types.includes("tool-result"));
  });
}
