// What a person does

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

// One explanation at a time is open.
$("#questions").addEventListener("toggle", ({ target }) => {
  if (!target.classList.contains("why") || !target.open) return;
  for (const other of all(".why[open]")) if (other !== target) other.open = false;
  if (document.body.classList.contains("old")) return; // then it comes with the answers
  asking?.abort();
  asking = new AbortController();
  const { state, questions, cards } = readAll();
  explainOpen(state, questions, cards, asking.signal).catch((error) => failed(error, cards));
}, true);

$("#state").value = "Get us a table for two tonight.";
const ACTIONS = ["book_table", "book_flight", "set_alarm", "set_timer", "send_message", "send_email", "create_event", "cancel_event", "pay_bill"];
addQuestion("choice", { name: "action", instructions: "What should the assistant do?", options: ACTIONS.map((name) => [name, ""]) });
addQuestion("score", { name: "soon", instructions: "How soon?", levels: ["next month", "next week", "tomorrow", "tonight"] });
addQuestion("noul", { name: "food", instructions: "Is it about food?" });
typed();
