"""The page in a real browser: what can be seen, clicked, read and printed, and that it stays at home."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from browsing import CHROMIUM, DRIVER, Browser
from made import SHAPES, TYPICAL, Shape, run_json
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from fast.lab.report import write_report

Written = Callable[[str], Path]
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium and chromedriver")


@pytest.fixture
def typical(driver: webdriver.Chrome, written: Written) -> Browser:
    browser = Browser(driver)
    browser.open(written("typical"))
    return browser


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [1920, 1280, 390])
def test_it_renders_quietly_and_asks_nobody(
    shape: str, width: int, driver: webdriver.Chrome, written: Written
) -> None:
    browser = Browser(driver)
    browser.open(written(shape), width)
    assert browser.find("h1").is_displayed() and browser.find("#verdict").text
    assert browser.console() == []
    asked = browser.requests()
    assert asked, "the page itself must be among the requests, or none were heard"
    assert all(url.startswith(("file://", "data:")) for url in asked)
    assert browser.run("return document.documentElement.scrollWidth") <= width, "tables scroll in their box"
    measure = "return arguments[0].map(each => each.getBoundingClientRect().toJSON())"
    figures = browser.seen("figure svg[role=img]")
    assert figures or shape == "all_failed"
    for box in driver.execute_script(measure, figures):
        assert box["width"] > 100 and box["height"] > 20


COLLISIONS = """
const boxes = [...arguments[0].querySelectorAll('text')].map(each => [each.textContent, each.getBoundingClientRect()]);
const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
return boxes.flatMap(([text, box], place) =>
  boxes.slice(place + 1).filter(([, other]) => meet(box, other)).map(([other]) => `${text} | ${other}`))
"""


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "all_failed"])
@pytest.mark.parametrize("width", [1440, 390])
def test_texts_in_figures_dont_collide(
    shape: str, width: int, driver: webdriver.Chrome, written: Written
) -> None:
    browser = Browser(driver)
    browser.open(written(shape), width)
    figures = browser.seen("figure")
    assert figures
    assert [driver.execute_script(COLLISIONS, figure) for figure in figures] == [[]] * len(figures)


def test_contents_lead_to_their_sections_and_stay_in_sight(typical: Browser) -> None:
    links = typical.seen(".contents a")
    assert [link.text for link in links][:2] == ["Strategies", "Score along the way"]
    for link in (links[1], links[-1]):
        typical.driver.execute_script("arguments[0].click()", link)
        top = typical.run("return document.querySelector(location.hash).getBoundingClientRect().top")
        assert 0 <= top < 900, "the heading is on the screen"
        assert link.is_displayed() and 0 <= link.rect["y"] - typical.run("return scrollY") < 900


def test_long_names_wrap_between_arguments(driver: webdriver.Chrome, written: Written) -> None:
    """At the width of a phone too, each line of a name in the table begins with a whole argument."""
    browser = Browser(driver)
    browser.open(written("long_labels"), 390)
    lines = """
    const [first] = document.querySelectorAll('#summary tbody .label'), starts = [];
    const range = document.createRange(), walk = document.createTreeWalker(first, NodeFilter.SHOW_TEXT);
    let top = null;
    while (walk.nextNode()) for (const { index } of walk.currentNode.data.matchAll(/[^\\s]/g)) {
      range.setStart(walk.currentNode, index); range.setEnd(walk.currentNode, index + 1);
      const box = range.getBoundingClientRect();
      if (top === null || box.top > top + 5) { starts.push(walk.currentNode.data.slice(index)); top = box.top; }
    }
    return starts
    """
    starts = [start.split(",")[0].split("(")[0].split("=")[0] for start in browser.run(lines)]
    assert len(starts) > 3
    assert set(starts) <= {
        "Elastic",
        "tau",
        "topology",
        "Torus",
        "rows",
        "columns",
        "momentum",
        "correction",
    } | {f"age_{n})" for n in range(9)}


def show_whole_runs(browser: Browser) -> None:
    browser.click('input[name="y"][value="all"]')


def shown_chart(browser: Browser) -> str:
    (figure,) = browser.seen("figure[data-x]")
    return str(figure.get_attribute("id"))


def test_the_axes_can_be_changed(typical: Browser) -> None:
    assert shown_chart(typical) == "score-time-near"
    for axis in ("epochs", "samples", "bytes"):
        typical.click(f'input[name="x"][value="{axis}"]')
        assert shown_chart(typical) == f"score-{axis}-near"
    show_whole_runs(typical)
    assert shown_chart(typical) == "score-bytes"


def test_a_click_in_the_legend_hides_a_strategy_everywhere(typical: Browser) -> None:
    toggle, own = '[data-toggles="s5"]', '.figures [data-series="s5"]'
    assert typical.find(toggle).text == "gossip"
    before = len(typical.seen(own))
    assert before >= 2 + 5, "a line and a band, and five small figures"
    others = len(typical.seen('.figures [data-series="s1"]'))
    typical.click(toggle)
    assert typical.seen(own) == []
    assert len(typical.seen('.figures [data-series="s1"]')) == others
    assert typical.find(toggle).get_attribute("aria-pressed") == "false"
    typical.click('input[name="x"][value="samples"]')
    assert typical.seen(own) == [], "it is hidden in figures that come later too"
    typical.click('input[name="x"][value="time"]')
    typical.click(toggle)
    assert len(typical.seen(own)) == before
    typical.click("#show-none")
    assert typical.seen(".figures [data-series]") == []
    typical.click("#show-all")
    assert len(typical.seen(own)) == before


def test_a_legend_entry_makes_its_line_stand_out(typical: Browser) -> None:
    typical.run("document.querySelector('[data-toggles=\"s1\"]').focus()")
    typical.run("document.getAnimations().forEach(each => each.finish())")
    assert typical.style('#score-time [data-series="s1"]', "opacity") == "1"
    assert float(typical.style('#score-time [data-series="s2"]', "opacity")) < 0.5


def column(browser: Browser, number: int) -> list[str]:
    return [cell.text.split("\n")[0] for cell in browser.every(f"#summary tbody tr > :nth-child({number})")]


def test_the_table_is_sorted_by_its_heads(typical: Browser) -> None:
    def times() -> list[float]:
        return [float(text.split("\u202f")[0]) for text in column(typical, 2)]

    head = "#summary thead th:nth-child({})"
    slow_last = column(typical, 1)
    assert typical.find(head.format(2)).get_attribute("aria-sort") == "ascending"
    typical.click(head.format(2) + " button")
    assert typical.find(head.format(2)).get_attribute("aria-sort") == "descending"
    assert times() == sorted(times(), reverse=True)
    assert column(typical, 1) != slow_last
    typical.click(head.format(4) + " button")
    scores = [float(text) for text in column(typical, 4)]
    assert scores == sorted(scores, reverse=True), "of scores the highest is the best"
    assert typical.find(head.format(2)).get_attribute("aria-sort") == "none"
    typical.click(head.format(1) + " button")
    assert column(typical, 1) == sorted(made.name for made in TYPICAL)


def test_rows_without_a_number_stay_at_the_end(driver: webdriver.Chrome, written: Written) -> None:
    browser = Browser(driver)
    browser.open(written("troubled"))
    for _ in range(2):
        browser.click("#summary thead th:nth-child(2) button")
        assert set(column(browser, 2)[3:]) == {"not reached", "failed"}


def test_dark_and_light(typical: Browser, written: Written) -> None:
    def colours() -> tuple[str, ...]:
        stroke = typical.style('#score-time [data-series="s0"] path[style*="stroke: var"]', "stroke")
        text = typical.style("#score-time svg text", "fill")
        return typical.style("body", "background-color"), typical.style("body", "color"), stroke, text

    light = colours()
    typical.click("#theme")
    dark = colours()
    assert all(before != after for before, after in zip(light, dark, strict=True))
    assert typical.find("#theme").text == "Light"
    typical.driver.refresh()
    assert colours() == light, "the choice is remembered in the page only"
    typical.open(written("typical"), scheme="dark")
    assert colours() == dark, "and the system's own choice counts first"
    typical.click("#theme")
    assert colours() == light


def test_values_can_be_read_with_the_keyboard(typical: Browser) -> None:
    """The last tick of the run that lasted longest: all-reduce alone is there, with its mean final score."""
    show_whole_runs(typical)
    runs = [row for row in run_json(SHAPES["typical"]())["results"] if row["label"] == "allreduce"]
    plot = typical.find("#score-time .plot")
    plot.send_keys(Keys.ARROW_LEFT)
    (tip,) = typical.seen(".tip")
    end = max(row["curve"]["at_s"][-1] for row in runs)
    scores = [row["curve"]["score"][-1] for row in runs]
    lines = tip.text.split("\n")
    assert lines[0] == f"{end:.3g} s"
    values = " ".join(lines[1:]).replace("–", " ").split()
    assert values == ["allreduce", *(f"{each:.3f}" for each in (fmean(scores), min(scores), max(scores)))]
    assert (
        typical.find("#spoken").get_attribute("textContent") == f"{end:.3g} s: allreduce {fmean(scores):.3f}"
    )
    plot.send_keys(Keys.ESCAPE)
    assert typical.seen(".tip") == []


def test_the_keyboard_stays_in_the_region_that_is_shown(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """With a target that all reach early, the region ends long before the runs do."""
    browser = Browser(driver)
    browser.open(write_report(run_json(Shape(TYPICAL[:2], target=0.5)), tmp_path).parent)
    browser.find("#score-time-near .plot").send_keys(Keys.ARROW_LEFT)
    whole, near = browser.run("""
    const { charts } = JSON.parse(document.getElementById("values").textContent);
    return [charts["score-time"], charts["score-time-near"]]
    """)
    assert near["x"][1] < whole["x"][1] / 2
    place = browser.run("return document.querySelector('#score-time-near .guide').x1.baseVal.value")
    assert near["box"][0] <= place <= near["box"][2] + 0.01


def test_values_can_be_pointed_at_and_hidden_ones_are_left_out(typical: Browser) -> None:
    show_whole_runs(typical)
    typical.click('[data-toggles="s5"]')
    typical.run("document.getElementById('score-time').scrollIntoView({block: 'center'})")
    box = typical.run("return document.querySelector('#score-time svg').getBoundingClientRect().toJSON()")
    place = {"x": box["x"] + box["width"] * 0.3, "y": box["y"] + box["height"] * 0.5}
    typical.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    (tip,) = typical.seen(".tip")
    assert all(made.name in tip.text for made in TYPICAL[:5]) and "gossip" not in tip.text
    assert len(typical.seen("#score-time .dot")) == 5
    typical.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 2, "y": 2})
    assert typical.seen(".tip") == []


def test_texts_of_others_dont_run(driver: webdriver.Chrome, written: Written) -> None:
    browser = Browser(driver)
    browser.open(written("troubled"))
    assert "<script>alert('x')</script> & co" in column(browser, 1)[-1]
    assert browser.run("return document.scripts.length") == 2


def test_it_prints(typical: Browser) -> None:
    """Light though the page is dark, without controls, with nothing folded away or cut."""
    typical.click("#theme")
    typical.media("print")
    assert typical.style("html", "color-scheme") == "light"
    assert typical.seen(".choices, #theme, #show-all, .contents") == []
    width = typical.run("return document.querySelector('#score-time-near .scroll').clientWidth")
    assert 0 < typical.find("#score-time-near svg").size["width"] <= width
    typical.media()
    printed = typical.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF") and 4 <= pdf.count(b"/Type /Page\n") <= 14
