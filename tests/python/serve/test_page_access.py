from __future__ import annotations

import re
from importlib.resources import files

import pytest
from asking import FIRST, SETTLED, body_of, text, write
from browser import SHIFT, Tab

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
    assert {"state", "id", "kind", "instructions", "name", "meaning", "add", "SUMMARY", "request", "copy"} <= set(seen)
    page.press("Tab", SHIFT)
    assert page.run("document.activeElement.id") == "request"


def test_it_works_on_a_phone(page: Tab) -> None:
    page.size(320, 640, is_phone=True)
    page.click(f"{FIRST} summary")
    page.until(f"document.querySelector('{FIRST} .tree')")
    assert page.run("document.documentElement.scrollWidth") == 320
    small = page.run(
        "[...document.querySelectorAll('button, input:not([type=radio]), select, summary, .segments span')]"
        ".filter(e => e.offsetParent && (e.offsetHeight < 24 || e.offsetWidth < 24)).map(e => e.outerHTML)"
    )
    assert small == []
    write(page, "#state", "Wake me up.")
    assert page.run("document.querySelector('.bars').getBoundingClientRect().right") <= 320


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)])
def test_axe_finds_nothing(page: Tab, scheme: str, width: int) -> None:
    page.size(width, 900, is_phone=width < 500)
    page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    page.click(f"{FIRST} summary")
    page.until(f"document.querySelector('{FIRST} .tree')")
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


def test_a_screen_reader_finds_names_and_is_told_of_answers(page: Tab) -> None:
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
        ("radio", "Python, over HTTP"),
        ("region", "The request to copy"),
    ]:
        assert (role, name) in found, (role, name)
    assert page.run("document.querySelector('#told').getAttribute('role')") == "status"
    page.until("document.querySelector('#told').textContent")
    said = text(page, "#told")
    assert re.match(r"action: \w+, \d", said)
    assert "food: " in said


def test_nothing_moves_for_who_wants_that(page: Tab) -> None:
    moving = "getComputedStyle(document.querySelector('.track i')).transitionDuration"
    assert page.run(moving) == "0.25s"
    page.prefer(prefers_reduced_motion="reduce")
    assert page.run(moving) == "0s"
