// A model chooses an action and goes on in free text.

import { parseArgs, styleText } from "node:util";
import { openLibrary, silence, Stream, type Token } from "./token_trie";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    library: { type: "string", default: process.env.TOKEN_TRIE_LIBRARY },
    threads: { type: "string", default: "0" },
    verbose: { type: "boolean", default: false },
  },
});
const [model, request] = positionals;
if (!options.library || !model || !request) {
  console.error("usage: choose_action.ts --library LIBTOKEN_TRIE [--threads N] [--verbose] MODEL.gguf REQUEST");
  process.exit(2);
}

const ACTIONS = ["weather_report", "message_send", "message_read", "alarm_set", "alarm_cancel"];
const PROMPT = `Request: Will it rain tomorrow?
Action: weather_report
Reply: I will look up the forecast.
Request: Text Sam that I am late.
Action: message_send
Reply: I will text Sam.
Request: Wake me at noon.
Action: alarm_set
Reply: I will wake you at noon.
Request: ${request}
Action:`;

// Forced tokens are dim, chosen ones bold.
const print = (token: Token) => process.stdout.write(styleText(token.forced ? "dim" : "bold", token.text));

const library = openLibrary(options.library);
if (!options.verbose) {
  silence(library);
}
using stream = new Stream(library, model, { n_ctx: 1024, n_threads: Number(options.threads) });
const prompt = stream.tokenize(PROMPT, true);
stream.prefill(prompt);

// The answers follow "Action:", so they begin with a space.
const leaves = ACTIONS.map((name) => ({ name, tokens: [...stream.tokenize(` ${name}`, false)] }));
stream.setTrie({ descriptors: [{ leaves }] });
process.stdout.write("Action:");
for (const token of stream.generate(32)) {
  print(token);
}
const { leafName, logprob, n_branches, n_forced, n_passes } = stream.state();
stream.clearTrie();

// Tokens that the sequence holds already are not evaluated again.
const answer = stream.tokenize(` ${leafName}\nReply:`, false);
stream.prefill(new Int32Array([...prompt, ...answer]));
process.stdout.write("\nReply:");
stream.setSampling({ temperature: 0.7, top_p: 0.95 });
for (const token of stream.generate(48)) {
  if (token.text.includes("\n")) {
    break;
  }
  print(token);
}

const percent = (100 * Math.exp(logprob)).toFixed(1);
console.log(`\n\n${leafName} (${percent} %); tokens chosen: ${n_branches}, forced: ${n_forced}; passes: ${n_passes}`);
