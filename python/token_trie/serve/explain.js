// How an answer comes about

async function explain(card, state, name, question, signal) {
  const key = keyOf(state, question);
  if (card.explained === key) return;
  const explained = await post("v1/x_explain", bodyOf(state, new Map([[name, question]])), signal);
  const meant = (key) => (question.get("type") === "noul" ? YES_NO[key] : question.get("type") === "score" ? `${key} · ${question.get("criteria")[key]}` : key);
  // Of a quantized model the last digits depend on what is read together: the same are shown above and below.
  showAnswer(card, question, explained.answer);
  $(".why .body", card).replaceChildren(sentence(explained, meant), ...numbers(explained, meant), ...tree(explained, meant), prompt(explained));
  card.explained = key;
}

function named(whose, text) {
  return make("em", { class: whose }, make("bdi", {}, text));
}

function piece(text) {
  // A space before a word is part of a token.
  const spaces = text.length - text.trimStart().length;
  const shown = make("span", { class: "piece" });
  if (!text) shown.append("the end");
  if (spaces) shown.append(make("span", { "aria-hidden": "true" }, "·".repeat(spaces)));
  shown.append(make("bdi", {}, text.slice(spaces)));
  return shown;
}

function bestOf(explained) {
  return explained.options.reduce((a, b) => (b.probability > a.probability ? b : a)).option;
}

function sentence(explained, meant) {
  const answer = bestOf(explained);
  const rows = explained.branches;
  const said = make("p");
  const parting = rows.findIndex((row) => row.parting);
  if (explained.greedy.includes(answer) || parting < 0) {
    said.append("Token by token, ", named("greedy", "greedy"), " comes to the same answer, ", named("exact", meant(answer)), ".");
    return said;
  }
  const behind = rows.filter((row) => row.parent === parting);
  const [taken, missed] = ["greedy", "answer"].map((whose) => behind.find((row) => row[whose]));
  let before = "";
  for (let at = parting; at > 0; at = rows[at].parent) before = rows[at].text + before;
  said.append(before ? "After “" : "At the first token, ");
  if (before) said.append(make("bdi", {}, before), "”, ");
  said.append(named("greedy", "greedy"), " takes “", piece(taken.text), `” (${percent(taken.share)}) over “`, piece(missed.text), `” (${percent(missed.share)}) and ends at `);
  said.append(named("greedy", explained.greedy.map(meant).join(", ")), "; the answer is ", named("exact", meant(answer)), ".");
  return said;
}

function times(nats) {
  if (nats === null) return "–";
  const factor = Math.exp(Math.abs(nats));
  const shown = factor >= 1e6 ? "over a million" : factor >= 10 ? factor.toFixed(0) : factor.toFixed(1);
  return `${nats < 0 ? "÷" : "×"}\u00a0${shown}`;
}

function numbers(explained, meant) {
  const answer = bestOf(explained);
  const calibration = explained.answer.x_calibration;
  const given = (what) => {
    const total = explained.options.reduce((sum, each) => sum + Math.exp(each[what] ?? -Infinity), 0);
    return (each) => (each[what] === null ? "–" : percent(Math.exp(each[what]) / total));
  };
  const columns = [["answer", (each) => percent(each.probability)]];
  if (calibration === "contextual") {
    const gain = (each) => times(each.raw === null || each.prior === null ? null : each.raw - each.prior);
    columns.unshift(["without a state", given("prior")], ["with it", given("raw")], ["state", gain], ["tokens", (each) => Number(each.tokens.toFixed(1))]);
  }
  const body = make("tbody");
  const ranked = [...explained.options].sort((a, b) => b.probability - a.probability);
  for (const each of ranked.slice(0, 2 * RANKED)) {
    const head = make("th", { scope: "row" }, make("bdi", {}, meant(each.option)));
    const cells = columns.map(([, read]) => make("td", {}, String(read(each))));
    body.append(make("tr", each.option === answer ? { class: "exact" } : {}, head, ...cells));
  }
  const rest = ranked.slice(2 * RANKED);
  if (rest.length) {
    const more = percent(rest.reduce((sum, each) => sum + each.probability, 0));
    body.append(make("tr", { class: "dim" }, make("th", { scope: "row", colspan: columns.length }, `… ${rest.length} more`), make("td", {}, more)));
  }
  const heads = ["Option", ...columns.map(([name]) => name)].map((text) => make("th", { scope: "col" }, text));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The options in numbers" }, table);
  return [make("h4", {}, "The options"), make("p", { class: "legend" }, CALIBRATIONS[calibration] ?? ""), scroll];
}

const CALIBRATIONS = {
  contextual: "What counts is how much more probable the state makes an option's text than the question alone does (the logarithm, divided by the root of its tokens).",
  raw: "The model's own probabilities.",
};

function tree(explained, meant) {
  const top = make("ul", { class: "tree", role: "list" });
  const lists = new Map([[0, top]]);
  const listOf = (at, row) => {
    if (!lists.has(at)) {
      lists.set(at, make("ul", { class: pathOf(row) }));
      row.item.append(lists.get(at));
    }
    return lists.get(at);
  };
  explained.branches.forEach((row, i) => {
    if (i === 0) return;
    row.item = make("li", { class: pathOf(row) }, branch(row, meant));
    listOf(row.parent, explained.branches[row.parent]).append(row.item);
  });
  // Behind the branches that are there, so many were left out.
  explained.branches.forEach((row, i) => {
    if (row.more?.texts) listOf(i, row).append(make("li", { class: "more" }, `… ${row.more.texts} more, ${percent(row.more.mass)}`));
  });
  const legend = make("p", { class: "legend" }, named("greedy", "Share"), ": of what may come at that place, which is what greedy goes by. ");
  legend.append(named("exact", "Mass"), `: of the whole texts behind it. All texts together have ${percent(explained.answer.x_mass)} of what the model might write.`);
  if (explained.readings > 1) legend.append(` This is the first of the ${explained.readings} readings that make the answer.`);
  return [make("h4", {}, "The tree of their texts"), legend, top];
}

function pathOf(row) {
  if (row.greedy && row.answer) return "on exact both";
  return row.greedy ? "on greedy" : row.answer ? "on exact" : "";
}

function branch(row, meant) {
  const what = make("span", {}, piece(row.text));
  if (row.options) {
    what.append(" ", make("span", { class: "leaf" }, make("bdi", {}, row.options.map(meant).join(", "))));
    if (row.answer) what.append(" ", make("span", { class: "mark exact" }, "the answer"));
    if (row.greedy) what.append(" ", make("span", { class: "mark greedy" }, "greedy ends here"));
  }
  return make("div", { class: "branch" }, what, part("greedy", "share", row.share), part("exact", "mass", row.mass));
}

function part(whose, what, p) {
  const bar = make("i");
  bar.style.width = `${100 * p}%`;
  return make("span", { class: `part ${whose}` }, make("span", { class: "track", "aria-hidden": "true" }, bar), make("b", {}, make("span", { class: "sr" }, ` ${what} `), percent(p)));
}

function prompt(explained) {
  const text = make("pre", { tabindex: "0", dir: "auto", role: "region", "aria-label": "What the model read" }, explained.prompt);
  return make("details", {}, make("summary", {}, "What the model read"), text);
}
