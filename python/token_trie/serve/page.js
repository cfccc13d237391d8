"use strict";
// Texts of people and of models are set by textContent and value alone, never as markup.
const $ = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const TYPING = 250; // ms without a key before it is asked
const RANKED = 12; // bars at most

function make(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function copyOf(id) {
  return $(`#${id}`).content.firstElementChild.cloneNode(true);
}

function percent(p) {
  if (p > 0 && p < 0.0001) return "<0.01\u00a0%";
  if (p > 0.999 && p < 1) return ">99.9\u00a0%";
  return `${(100 * p).toFixed(p === 0 || p === 1 ? 0 : p >= 0.01 ? 1 : 2)}\u00a0%`;
}

// Questions and options are Maps, as a name may be "1" or "__proto__"; a state given as JSON goes as it is.
class Raw {
  constructor(text) { this.text = text; }
}

function write(value, python, indent = "") {
  if (value instanceof Raw) return python ? `json.loads(${JSON.stringify(value.text)})` : value.text;
  if (value === null && python) return "None";
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const deeper = `${indent}  ${python ? "  " : ""}`;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value)
    ? value.map((each) => write(each, python, deeper))
    : [...value].map(([key, each]) => `${JSON.stringify(key)}: ${write(each, python, deeper)}`);
  if (!parts.length) return open + close;
  const line = open + parts.join(", ") + close;
  if (line.length + indent.length <= 88 && !line.includes("\n")) return line;
  const comma = python ? "," : "";
  return `${open}\n${deeper}${parts.join(`,\n${deeper}`)}${comma}\n${indent}${close}`;
}

// Questions

let made = 0;

function addQuestion(kind, given = {}) {
  const card = copyOf("question");
  const names = new Set(all(".question .id").map((input) => input.value));
  let name = given.name ?? kind;
  for (let i = 2; names.has(name); i++) name = `${kind} ${i}`;
  $(".id", card).value = name;
  $(".instructions", card).value = given.instructions ?? "";
  $(".kind", card).value = kind;
  const problem = $(".problem", card);
  problem.id = `problem-${++made}`;
  for (const [option, meaning] of given.options ?? [["", ""], ["", ""]]) addRow($(".for.choice .rows", card), option, meaning);
  for (const level of given.levels ?? ["", ""]) addRow($(".for.score .rows", card), level);
  showKind(card);
  $("#questions").append(card);
  return card;
}

function addRow(rows, name = "", meaning = "", before = null) {
  const row = copyOf(rows.tagName === "OL" ? "level" : "option");
  $(".name", row).value = name;
  if ($(".meaning", row)) $(".meaning", row).value = meaning;
  rows.insertBefore(row, before);
  return row;
}

function showKind(card) {
  const kind = $(".kind", card).value;
  for (const part of all(".for", card)) part.hidden = !part.classList.contains(kind);
}

function label(card, place) {
  const name = $(".id", card).value || "without a name";
  card.setAttribute("aria-label", `Question ${place + 1}: ${name}`);
  $(".head > .remove", card).setAttribute("aria-label", `Remove the question ${name}`);
  for (const [rows, what] of [[".choice .rows", "Option"], [".score .rows", "Level"]]) {
    all(`${rows} > li`, card).forEach((row, i) => {
      const n = what === "Level" ? i : i + 1;
      const own = $(".name", row).value;
      $(".name", row).setAttribute("aria-label", `${what} ${n}`);
      $(".meaning", row)?.setAttribute("aria-label", `What ${own || `option ${n}`} means`);
      $(".remove", row).setAttribute("aria-label", `Remove ${what.toLowerCase()} ${own || n}`);
    });
  }
}

// What is asked of a card, or why nothing is.
function read(card) {
  const kind = $(".kind", card).value;
  const question = new Map([["type", kind]]);
  const instructions = $(".instructions", card).value;
  if (instructions.trim()) question.set("instructions", instructions);
  if (kind === "choice") {
    const criteria = new Map();
    for (const row of all(".choice .rows > li", card)) {
      const [name, meaning] = [$(".name", row).value, $(".meaning", row).value];
      if (!name.trim()) continue;
      if (criteria.has(name)) return { wrong: `Two options are called ${name}.` };
      criteria.set(name, meaning.trim() ? meaning : null);
    }
    if (criteria.size < 2) return { missing: "Give two options or more." };
    question.set("criteria", criteria);
  } else if (kind === "score") {
    const levels = all(".score .rows .name", card).map((input) => input.value).filter((level) => level.trim());
    if (levels.length < 2) return { missing: "Give two levels or more." };
    question.set("criteria", levels);
  } else {
    const sides = ["true", "false"].map((side) => [side, $(`.noul .${side}`, card).value]).filter(([, text]) => text.trim());
    if (sides.length) question.set("criteria", new Map(sides));
  }
  return { question };
}

function readAll() {
  const questions = new Map();
  const cards = new Map();
  for (const card of all(".question")) {
    const name = $(".id", card).value;
    let { question, missing, wrong } = read(card);
    if (!name) missing = "A question needs a name.";
    else if (cards.has(name)) wrong = `Another question is called ${name}.`;
    tell(card, wrong);
    card.missing = missing ?? wrong;
    if (question && !card.missing) {
      questions.set(name, question);
      cards.set(name, card);
    }
  }
  let state = $("#state").value;
  let isReadable = true;
  if ($("#as :checked").value === "json") {
    try {
      JSON.parse(state);
      state = new Raw(state);
    } catch (error) {
      isReadable = false;
      tellState(`This is no JSON: ${error.message}`);
    }
  }
  if (isReadable) tellState("");
  return { state, questions, cards, isReadable };
}

function tell(card, text) {
  say($(".problem", card), text ?? "");
  const isWrong = Boolean(text);
  card.classList.toggle("wrong", isWrong);
  for (const input of all(".id, .instructions", card)) {
    input.setAttribute("aria-invalid", isWrong);
    input.setAttribute("aria-describedby", $(".problem", card).id);
  }
}

function tellState(text) {
  say($("#state-problem"), text);
  $("#state").setAttribute("aria-invalid", Boolean(text));
}

// An alert is read out when it changes.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Asking

let asking = null;
let timer = 0;
let again = 0;

function typed() {
  all(".question").forEach(label);
  asking?.abort();
  clearTimeout(timer);
  const read = readAll();
  for (const name of unanswered(read).keys()) read.cards.get(name).classList.add("old");
  document.body.classList.add("old");
  writeRequest(read);
  timer = setTimeout(ask, TYPING);
}

async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const key = new TextEncoder().encode($("#key").value); // a header holds bytes
  if (key.length) headers.authorization = `Bearer ${String.fromCharCode(...key)}`;
  const response = await fetch(path, { method: "POST", headers, body, signal, cache: "no-store" }).catch((error) => {
    throw error.name === "AbortError" ? error : Object.assign(error, { status: 0 });
  });
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  throw Object.assign(new Error(answer.detail?.message ?? response.statusText), {
    status: response.status,
    faults: Array.isArray(answer.detail) ? answer.detail : [],
    wait: Number(response.headers.get("retry-after")) || 0,
  });
}

function bodyOf(state, questions) {
  return write(new Map([["state", state], ["questions", questions]]), false);
}

// A question that stands as it was answered is not asked again: what else there is does not matter to it.
function unanswered({ state, questions, cards }) {
  return new Map([...questions].filter(([name, question]) => cards.get(name).answered !== keyOf(state, question)));
}

function keyOf(state, question) {
  return write([state, question], false);
}

async function ask() {
  const read = readAll();
  const { state, cards, isReadable } = read;
  asking?.abort();
  const own = (asking = new AbortController());
  for (const card of all(".question")) if (card.missing) showNothing(card);
  if (!isReadable) return;
  const wanted = unanswered(read);
  const began = performance.now();
  try {
    if (wanted.size) {
      const reply = await post("v1/systemone", bodyOf(state, wanted), own.signal);
      const took = performance.now() - began;
      for (const [name, question] of wanted) {
        showAnswer(cards.get(name), question, reply.answers[name]);
        cards.get(name).answered = keyOf(state, question);
      }
      showUsage(reply, took);
      announce(wanted, cards);
    }
    for (const element of all(".old")) element.classList.remove("old");
    refuse();
    again = 0;
  } catch (error) {
    failed(error, cards);
  }
}

function showUsage({ model, usage }, took) {
  const known = usage.x_cached_tokens ? `, of which ${usage.x_cached_tokens} were known` : "";
  say($("#model"), model ? ` · ${model}` : "");
  say($("#status"), `Answered in ${took.toFixed(0)}\u00a0ms: ${usage.input_tokens} tokens read${known}.`);
}

function failed(error, cards) {
  if (error.name === "AbortError") return;
  if (error.status === undefined) throw error;
  for (const card of all(".question")) card.answered = null; // by another model, when there is one again
  if (error.status === 0 || error.status === 429 || error.status === 503) {
    refuse(error.status ? `${error.message}. Asking again …` : "The server cannot be reached. Asking again …");
    clearTimeout(timer);
    again = Math.min(again + 1, 5);
    timer = setTimeout(ask, 1000 * Math.max(error.wait ?? 0, again));
    return;
  }
  if (error.status === 401) {
    const isNew = $("#access").hidden;
    $("#access").hidden = false;
    refuse($("#key").value ? "The server does not know this key." : "The server wants an API key.");
    if (isNew && document.activeElement === document.body) $("#key").focus();
    return;
  }
  const elsewhere = [];
  for (const { loc, msg } of error.faults) {
    const place = loc.slice(1);
    const text = `${place.join(" → ")}: ${msg}`;
    if (place[0] === "questions" && cards.has(place[1])) tell(cards.get(place[1]), text);
    else if (place[0] === "state") tellState(text);
    else elsewhere.push(text);
  }
  refuse(elsewhere.join("\n") || (error.faults.length ? "" : `${error.message} (${error.status})`));
}

function refuse(text = "") {
  say($("#problem"), text);
  if (text) say($("#status"), "");
}

// What changed is announced to screen readers when no more keys come.
let telling = 0;

function announce(wanted, cards) {
  clearTimeout(telling);
  const announced = (name) => `${name}: ${$(".value", cards.get(name)).textContent}, ${$(".sure", cards.get(name)).textContent}`;
  telling = setTimeout(() => {
    say($("#announced"), [...wanted.keys()].map(announced).join(". "));
  }, 900);
}

// Answers

function showNothing(card) {
  card.answered = null;
  card.classList.remove("old");
  say($(".value bdi", card), "");
  say($(".sure", card), card.missing);
  $(".bars", card).replaceChildren();
}

function showAnswer(card, question, answer) {
  let bars;
  let sure = "";
  if (answer.type === "noul") {
    bars = [["true", "yes", answer.noul], ["false", "no", 1 - answer.noul]];
  } else {
    const names = [...question.get("criteria").keys()].map(String);
    const text = (name) => (answer.type === "score" ? `${name} · ${question.get("criteria")[name]}` : name);
    bars = names.map((name) => [name, text(name), answer.probabilities[name]]);
    sure = `, confidence ${answer.confidence.toFixed(2)}`;
  }
  const best = bars.reduce((a, b) => (b[2] > a[2] ? b : a));
  if (answer.type === "choice") bars.sort((a, b) => b[2] - a[2]);
  say($(".value bdi", card), answer.type === "score" ? `${answer.score.toFixed(2)} of ${bars.length - 1}` : best[1]);
  say($(".sure", card), `${answer.type === "score" ? `most probable: ${question.get("criteria")[best[0]]}, ` : ""}${percent(best[2])}${sure}`);
  showBars($(".bars", card), bars, best[0]);
}

function showBars(list, bars, best) {
  const there = new Map(all("li", list).map((item) => [item.key, item]));
  const rest = bars.length > RANKED + 1 ? bars.slice(RANKED) : [];
  const shown = bars.slice(0, bars.length - rest.length);
  if (rest.length) shown.push([null, `… ${rest.length} more`, rest.reduce((sum, bar) => sum + bar[2], 0)]);
  const items = shown.map(([key, text, p]) => {
    const item = there.get(key) ?? make("li", {}, make("bdi"), " ", make("b"), make("span", { class: "track", "aria-hidden": "true" }, make("i")));
    item.key = key;
    say($("bdi", item), text);
    say($("b", item), percent(p));
    $("i", item).style.width = `${100 * p}%`;
    item.classList.toggle("best", key === best);
    return item;
  });
  if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) list.replaceChildren(...items);
}

// The request, to copy

function writeRequest({ state, questions }) {
  const url = new URL("v1/systemone", location.href).href;
  const hasKey = !$("#access").hidden;
  const as = $("#written :checked").value;
  const body = new Map([["state", state], ["questions", questions]]);
  say($("#request"), { curl: asCurl, python: asPython }[as](url, body, hasKey));
}

function asCurl(url, body, hasKey) {
  const key = hasKey ? ` \\\n  -H "authorization: Bearer $TOKEN_TRIE_API_KEY"` : "";
  return `curl ${url}${key} \\\n  -H 'content-type: application/json' \\\n  -d '${write(body, false).replaceAll("'", `'\\''`)}'`;
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

// Events

document.addEventListener("input", typed);

$("#written").addEventListener("change", () => writeRequest(readAll()));
$("#copy").addEventListener("click", copy);

$(".new").addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  const card = addQuestion(button.value);
  typed();
  $(".instructions", card).focus();
});

$("#questions").addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  const rows = button.closest(".for")?.querySelector(".rows");
  if (button.classList.contains("add")) {
    addRow(rows);
    $(".name", rows.lastElementChild).focus();
  } else if (rows) {
    const row = button.closest("li");
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    (next ? $(".name", next) : $(".add", rows.parentElement)).focus();
  } else {
    const card = button.closest(".question");
    const next = card.nextElementSibling ?? card.previousElementSibling;
    card.remove();
    (next ? $(".id", next) : $(".new button")).focus();
  }
  typed();
});

// Enter in an option makes one behind it.
$("#questions").addEventListener("keydown", (event) => {
  const row = event.target.closest(".rows li");
  if (event.key !== "Enter" || event.isComposing || event.target.tagName !== "INPUT" || !row) return;
  event.preventDefault();
  $(".name", addRow(row.parentElement, "", "", row.nextElementSibling)).focus();
  typed();
});

$("#questions").addEventListener("change", ({ target }) => {
  if (target.classList.contains("kind")) showKind(target.closest(".question"));
});

$("#state").value = "Get us a table for two tonight.";
const ACTIONS = ["book_table", "book_flight", "set_alarm", "set_timer", "send_message", "send_email", "create_event", "cancel_event", "pay_bill"];
addQuestion("choice", { name: "action", instructions: "What should the assistant do?", options: ACTIONS.map((name) => [name, ""]) });
addQuestion("score", { name: "soon", instructions: "How soon?", levels: ["next month", "next week", "tomorrow", "tonight"] });
addQuestion("noul", { name: "food", instructions: "Is it about food?" });
typed();
