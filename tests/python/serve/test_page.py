from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from ast import literal_eval
from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from asking import FIRST, SETTLED, bars, body_of, text, write
from browser import SHIFT, Tab
from serving import Serving

HOSTILE = ["<img src=x onerror=\"document.title='taken'\">", "__proto__", "constructor", "10", "9", "\u202egnp", "it's"]


def test_answers_come_as_one_types(page: Tab, url: str) -> None:
    before = bars(page)
    write(page, "#state", "Wake me up at seven.")
    after = bars(page)
    assert after != before
    answers = httpx.post(f"{url}/v1/systemone", json=body_of(page)).json()["answers"]
    p = answers["action"]["probabilities"]
    assert {name: share / 100 for name, share in after.items()} == pytest.approx(p, abs=2e-3)
    assert list(after.values()) == sorted(after.values(), reverse=True)
    assert text(page, f"{FIRST} .value") == answers["action"]["choice"]
    score, _, most = text(page, ".question:nth-child(2) .value").partition(" of ")
    assert (float(score), most) == (pytest.approx(answers["soon"]["score"], abs=0.02), "3")
    assert bars(page, ".question:nth-child(3)")["yes"] == pytest.approx(100 * answers["food"]["noul"], abs=0.2)
    assert page.run(
        "document.querySelector('.best i').offsetWidth / document.querySelector('.best .track').offsetWidth"
    ) == pytest.approx(max(p.values()), abs=0.01)


def test_a_question_that_did_not_change_is_not_asked_again(page: Tab) -> None:
    write(page, ".question:nth-child(2) .instructions", "When?")
    sent = [e["params"]["request"] for e in page.events if e.get("method") == "Network.requestWillBeSent"]
    asked = [json.loads(request["postData"])["questions"] for request in sent if request["method"] == "POST"]
    assert [*asked[0]] == ["action", "soon", "food"]
    assert [*asked[-1]] == ["soon"]
    n = len(page.requested())
    write(page, f"{FIRST} .id", "deed")
    assert len(page.requested()) == n
    page.until("document.querySelector('#request').textContent.includes('deed')")


def test_questions_are_made_changed_and_removed(page: Tab) -> None:
    page.click(".new button[value=choice]")
    card = ".question:nth-child(4)"
    assert page.run("document.activeElement.closest('.question').querySelector('.id').value") == "choice"
    page.type("Which fruit is it?")
    write(page, f"{card} .choice li:nth-child(1) .name", "apple")
    write(page, f"{card} .choice li:nth-child(2) .name", "pear")
    page.until(f"document.querySelectorAll('{card} .bars li').length == 2")
    assert set(bars(page, card)) == {"apple", "pear"}
    page.run(f"document.querySelector('{card} .kind').focus()")
    page.press("ArrowDown"), page.press("ArrowDown")
    page.until(f"document.querySelector('{card} .bars bdi').textContent == 'yes'")
    assert body_of(page)["questions"]["choice"] == {"type": "noul", "instructions": "Which fruit is it?"}
    page.click(f"{card} .head > .remove")
    page.until(SETTLED)
    assert list(body_of(page)["questions"]) == ["action", "soon", "food"]


def wait_for(page: Tab, path: str) -> None:
    """Wait for a request of a path, since events were cleared."""
    end = time.monotonic() + 60
    while not any(address.endswith(path) for _, address in page.requested()):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_cancelled(page: Tab) -> bool:
    return any(e.get("method") == "Network.loadingFailed" and e["params"].get("canceled") for e in page.events)


def test_what_is_asked_too_early_is_taken_back(browser: Tab, server: str) -> None:
    browser.open(server)
    browser.until(SETTLED)
    browser.events.clear()
    browser.click("#state")
    browser.select_all()
    browser.send("Input.insertText", text="The parcel has not come. " * 250)
    wait_for(browser, "systemone")
    browser.select_all()
    browser.type("Short.")
    browser.until(SETTLED)
    assert is_cancelled(browser)
    assert body_of(browser)["state"] == "Short."
    assert 'path="/v1/systemone",status="499"' in httpx.get(f"{server}/metrics").text


def test_the_request_does_the_same_where_it_is_pasted(page: Tab, url: str, model_paths: dict[str, Path]) -> None:
    write(page, "#state", 'It\'s "so" $HOME `x` \\n \u00e9')
    write(page, ".question:nth-child(2) .instructions", "How's that?")
    told = bars(page)

    curl = text(page, "#request")
    run = subprocess.run(["/bin/sh", "-c", curl], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)["answers"]["action"]["probabilities"]
    assert {name: p / 100 for name, p in told.items()} == pytest.approx(found, abs=2e-3)
    page.click("#written [value=python] + span")
    code = text(page, "#request")
    assert '"model.gguf"' in code
    code = code.replace('"model.gguf"', repr(str(model_paths["tiny"])))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [line] = [line for line in run.stdout.splitlines() if line.startswith("action ")]
    found = literal_eval(line[line.index("{") :])
    assert {name: p / 100 for name, p in told.items()} == pytest.approx(found, abs=2e-3)


def test_a_button_copies_the_request(page: Tab) -> None:
    page.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.click("#copy")
    page.until("document.querySelector('#copy').textContent == 'Copied'")
    assert page.run("navigator.clipboard.readText()") == text(page, "#request")
    assert text(page, "#announced") == "Copied"


def test_a_state_may_be_json(page: Tab) -> None:
    page.click("#as [value=json] + span")
    page.click("#state")
    page.select_all()
    page.type('{"subject": "late"')
    page.until("document.querySelector('#state-problem').textContent.startsWith('This is no JSON')")
    assert page.run("document.querySelector('#state').getAttribute('aria-invalid')") == "true"
    page.type(', "n": 12345678901234567890}')
    page.until(SETTLED)
    assert text(page, "#state-problem") == ""
    assert body_of(page)["state"] == {"subject": "late", "n": 12345678901234567890}
    page.click("#written [value=python] + span")
    assert "json.loads(" in text(page, "#request")


def test_names_are_texts_whatever_they_are(page: Tab, url: str) -> None:
    for i, name in enumerate(HOSTILE, 1):
        write(page, f"{FIRST} .choice li:nth-child({i}) .name", name)
    write(page, f"{FIRST} .id", "__proto__")
    asked = body_of(page)
    assert list(asked["questions"]["__proto__"]["criteria"])[: len(HOSTILE)] == HOSTILE
    assert set(HOSTILE) <= set(bars(page))
    assert page.run("document.querySelectorAll('main img, main script').length") == 0
    assert page.run("document.title") == "token-trie"
    answers = httpx.post(f"{url}/v1/systemone", json=asked).json()["answers"]
    assert text(page, f"{FIRST} .value") == answers["__proto__"]["choice"]


def test_the_policy_lets_nothing_in(url: str) -> None:
    answer = httpx.get(url)
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert all(re.fullmatch("'sha256-[A-Za-z0-9+/=]+'", policy[f"{what}-src"]) for what in ("script", "style"))
    assert not re.search(
        r"\son\w+=|style=|https?://|innerHTML|localStorage|sessionStorage|cookie",
        answer.text.replace("http://www.w3.org/", ""),
    )


def test_an_error_of_the_server_is_shown_where_it_belongs(page: Tab) -> None:
    card = ".question:nth-child(2)"
    page.click(f"{card} .score .add")
    for _ in range(7):
        page.type("x")
        page.press("Enter")
    page.type("x")
    page.until(f"document.querySelector('{card} .problem').textContent")
    assert text(page, f"{card} .problem") == "questions \u2192 soon \u2192 criteria: must be at most 10, not 12"
    assert page.run(f"document.querySelector('{card} .instructions').getAttribute('aria-invalid')") == "true"
    for _ in range(2):
        page.click(f"{card} .score li:last-child .remove")
    page.until(SETTLED)
    assert text(page, f"{card} .problem") == ""


def test_two_of_one_name_are_shown_apart(page: Tab) -> None:
    write_into = ".question:nth-child(2) .id"
    page.click(write_into)
    page.select_all()
    page.type("action")
    assert "Another question is called action" in text(page, ".question:nth-child(2) .problem")
    page.type("2")
    page.until(SETTLED)
    assert text(page, ".question:nth-child(2) .problem") == ""


def test_a_key_is_asked_for_and_kept_nowhere(browser: Tab, model_paths: dict[str, Path]) -> None:
    with Serving(model_paths["tiny"], "--api-key", "s3cré🗝t") as serving:
        browser.open(serving.url)
        browser.until("!document.querySelector('#access').hidden")
        assert "wants an API key" in text(browser, "#problem")
        browser.click("#key")
        browser.type("s3cré🗝")
        browser.until("document.querySelector('#problem').textContent.includes('does not know')")
        browser.type("t")
        browser.until("document.querySelectorAll('.bars li').length")
        assert text(browser, "#problem") == ""
        assert "$TOKEN_TRIE_API_KEY" in text(browser, "#request")
        assert "s3cré🗝t" not in text(browser, "body")
        assert browser.run("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    browser.click("#state")
    browser.type("!")
    browser.until("document.querySelector('#problem').textContent.includes('cannot be reached')")


def test_who_comes_while_the_model_loads_is_answered_when_it_is_there(browser: Tab, model: Path) -> None:
    with Serving(model, until="loading") as serving:
        browser.open(serving.url)
        while not browser.run("Boolean(document.querySelector('#status'))"):  # it does not listen yet
            browser.open(serving.url)
        browser.until(SETTLED)
        assert len(bars(browser)) == 9
        assert text(browser, "#problem") == ""


AXE = "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html + n.failureSummary)]))"
FOCUS = """e => {
    const style = getComputedStyle(e.type === "radio" ? e.nextElementSibling : e);
    return [e.id || e.className || e.tagName, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
}"""


def test_the_keyboard_is_enough(page: Tab) -> None:
    page.run("document.querySelector('.question .name').focus()")
    page.press("Enter")
    page.type("call_taxi")
    page.until("[...document.querySelectorAll('.bars bdi')].some(row => row.textContent == 'call_taxi')")
    assert list(body_of(page)["questions"]["action"]["criteria"])[:2] == ["book_table", "call_taxi"]
    page.run("document.activeElement.blur(); document.querySelector('.question li:nth-child(2) .name').focus()")
    for _ in range(2):
        page.press("Tab")
    assert page.run("document.activeElement.getAttribute('aria-label')") == "Remove option call_taxi"
    page.press(" ")
    assert page.run("document.activeElement.value") == "book_flight"
    page.until("![...document.querySelectorAll('.bars bdi')].some(row => row.textContent == 'call_taxi')")


def test_tab_comes_to_everything_and_shows_where_it_is(page: Tab) -> None:
    page.run("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    seen = []
    for _ in range(120):
        page.press("Tab")
        name, is_shown = page.run(f"({FOCUS})(document.activeElement)")
        assert is_shown, name
        seen.append(name)
        if name == "copy":
            break
    assert seen[0] == "skip"
    assert {"state", "id", "kind", "instructions", "name", "meaning", "add", "request", "copy"} <= set(seen)
    page.press("Tab", SHIFT)
    assert page.run("document.activeElement.id") == "request"


def test_it_works_on_a_phone(page: Tab) -> None:
    page.size(320, 640, is_phone=True)
    assert page.run("document.documentElement.scrollWidth") == 320
    small = page.run(
        "[...document.querySelectorAll('button, input:not([type=radio]), select, .segments span')]"
        ".filter(e => e.offsetParent && (e.offsetHeight < 24 || e.offsetWidth < 24)).map(e => e.outerHTML)"
    )
    assert small == []
    write(page, "#state", "Wake me up.")
    assert page.run("document.querySelector('.bars').getBoundingClientRect().right") <= 320


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)])
def test_axe_finds_nothing(page: Tab, scheme: str, width: int) -> None:
    page.size(width, 900, is_phone=width < 500)
    page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    page.run(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8") + "; 0")
    assert page.run(AXE) == []
    # With a question that is not finished, a name that is there twice, and answers that wait for that.
    page.click(".new button[value=choice]")
    page.until("document.querySelector('.question:nth-child(4) .sure').textContent")
    page.click(".question:nth-child(2) .id")
    page.select_all()
    page.type("action")
    page.until("document.querySelector('.question:nth-child(2) .problem').textContent")
    page.until(SETTLED)
    assert page.run(AXE) == []


def test_a_screen_reader_finds_names_and_hears_answers(page: Tab) -> None:
    found = page.accessible()
    for role, name in [
        ("textbox", "State"),
        ("textbox", "Option 1"),
        ("textbox", "What book_table means"),
        ("button", "Remove option book_table"),
        ("button", "Remove the question food"),
        ("textbox", "Level 0"),
        ("region", "Question 1: action"),
        ("combobox", "Kind"),
        ("radio", "Python"),
        ("region", "The request to copy"),
    ]:
        assert (role, name) in found, (role, name)
    assert page.run("document.querySelector('#announced').getAttribute('role')") == "status"
    page.until("document.querySelector('#announced').textContent")
    said = text(page, "#announced")
    assert re.match(r"action: \w+, \d", said)
    assert "food: " in said


def test_nothing_moves_for_who_wants_that(page: Tab) -> None:
    moving = "getComputedStyle(document.querySelector('.track i')).transitionDuration"
    assert page.run(moving) == "0.25s"
    page.prefer(prefers_reduced_motion="reduce")
    assert page.run(moving) == "0s"
