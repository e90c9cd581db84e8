"""docs/how-to/hostile-workers.md: its code runs, its commands can be read, and it names every rule."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from typing import Any

from fast.loop.loading import strategies_from
from fast.parts import ROBUST
from fast.sim.faults import parse_scenario
from fast.strategies import catalogue

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "hostile-workers.md").read_text(
    encoding="utf-8"
)
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_code_does_what_the_page_says() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(BLOCKS):
        if not block.startswith(">>>"):
            exec(compile(block, f"block {number}", "exec", dont_inherit=True), names)
            continue
        example = doctest.DocTestParser().get_doctest(block, names, f"block {number}", None, None)
        report: list[str] = []
        failed = (
            doctest.DocTestRunner(verbose=False).run(example, out=report.append, clear_globs=False).failed
        )
        assert not failed, "".join(report)
        names.update(example.globs)
    assert len(BLOCKS) == 3 and "multi_krum(hostile=1" in names["strategy"].call


def test_the_table_has_every_strategy_that_takes_a_rule_and_no_other() -> None:
    section = TEXT.split("## Where a rule goes")[1].split("\n## ")[0]
    listed = {row.split("(")[0] for row in re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)}
    assert listed == {name for name, each in catalogue().items() if "rule" in each.signature.parameters}
    left_out = section.split("No other strategy takes a rule")[1]
    assert {word.split("(")[0] for word in re.findall(r"`([^`]+)`", left_out)} <= set(catalogue())


def test_the_commands_can_be_read() -> None:
    (line,) = re.findall(r"^ {4}\$ (fast simulate .*)$", TEXT, re.MULTILINE)
    words = shlex.split(line)
    workers = int(words[words.index("--workers") + 1])
    scenario = parse_scenario(words[words.index("--scenario") + 1])
    for strategy in strategies_from(words[words.index("--strategies") + 1]):
        strategy.check(workers)
        scenario.check(strategy, workers, strategy.servers(workers))
    (call,) = re.findall(r'--strategy "(.*?)"', TEXT)
    strategies_from(call)[0].check(5)


def test_every_rule_is_on_the_page_with_what_it_needs() -> None:
    table = TEXT.partition("## Which rule")[2].partition("The final scores")[0]
    rows = dict(re.findall(r"^\| `(\w+)[^|]*\|[^|]*\|([^|]*)\|", table, re.MULTILINE))
    assert set(rows) >= set(ROBUST)
    assert "2f + 3" in rows["krum"] and "2f + 3" in rows["multi_krum"] and "2f + 1" in rows["trimmed_mean"]
