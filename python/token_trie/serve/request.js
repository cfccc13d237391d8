// The request, to copy

function writeRequest({ state, questions }) {
  const url = new URL("v1/systemone", location.href).href;
  const hasKey = !$("#access").hidden;
  const as = $("#written :checked").value;
  const body = new Map([["state", state], ["questions", questions]]);
  say($("#request"), { curl: asCurl, http: asHttp, python: asPython }[as](url, body, hasKey));
}

function asCurl(url, body, hasKey) {
  const key = hasKey ? ` \\\n  -H "authorization: Bearer $TOKEN_TRIE_API_KEY"` : "";
  return `curl ${url}${key} \\\n  -H 'content-type: application/json' \\\n  -d '${write(body, false).replaceAll("'", `'\\''`)}'`;
}

function asHttp(url, body, hasKey) {
  const key = hasKey ? `, "authorization": "Bearer " + os.environ["TOKEN_TRIE_API_KEY"]` : "";
  return [
    `import json${hasKey ? ", os" : ""}, urllib.request`,
    "",
    `body = ${write(body, true)}`,
    `headers = {"content-type": "application/json"${key}}`,
    `request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(body).encode(), headers)`,
    "print(urllib.request.urlopen(request).read().decode())",
  ].join("\n");
}

function asPython(url, body) {
  const state = body.get("state");
  const kinds = new Set();
  const questions = [...body.get("questions")].map(([name, question]) => `    ${JSON.stringify(name)}: ${constructor(question, kinds)},\n`);
  const names = [...kinds].sort().map((kind) => `${kind}, `).join("");
  return [
    ...(state instanceof Raw ? ["import json", ""] : []),
    "from llama_cpp import Llama",
    `from token_trie import ${names}decide`,
    "",
    'llm = Llama("model.gguf", n_ctx=4096, verbose=False)',
    `answers = decide(llm, ${write(state, true)}, {\n${questions.join("")}})`,
    "for name, answer in answers.items():",
    "    print(name, answer.value, answer.probabilities)",
  ].join("\n");
}

function constructor(question, kinds) {
  const criteria = question.get("criteria");
  const asked = { choice: "Which one is it?", score: "How much is it?", noul: "Is it so?" };
  const first = JSON.stringify(question.get("instructions") ?? asked[question.get("type")]);
  const kind = { choice: "Choice", score: "Score", noul: "Predicate" }[question.get("type")];
  kinds.add(kind);
  if (kind !== "Predicate") return `${kind}(${first}, ${write(criteria, true, "    ")})`;
  return `${kind}(${[first, ...[...(criteria ?? [])].map(([side, text]) => `${side}=${JSON.stringify(text)}`)].join(", ")})`;
}

async function copy() {
  const text = $("#request").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Only pages that are safe may: of another machine without TLS, the old way.
    getSelection().selectAllChildren($("#request"));
    document.execCommand("copy");
  }
  $("#copy").textContent = "Copied";
  say($("#announced"), "Copied");
  setTimeout(() => { $("#copy").textContent = "Copy"; }, 2000);
}
