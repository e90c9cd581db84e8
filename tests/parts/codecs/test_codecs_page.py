"""docs/codecs.md: its table says what the code says, its code runs, its picture is up to date."""

from __future__ import annotations

import doctest
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import fast
from fast.errors import UsageError
from fast.parts.codecs import CODECS, TRANSFORMATIONS, Codec, Coder, NonFinite
from fast.sim import Compute, Network, Simulation, SimWorker
from fast.strategies.expression import parse_strategy
from fast.testing.strategy import LeastSquares, batches
from fast.view import Layout

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "codecs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LAYER = Layout.of([("weight", (512, 1024)), ("bias", (512,))], torch.float32)
NOT_FINITE = {NonFinite.KEPT: "kept", NonFinite.SPREADS: "spread", NonFinite.DROPPED: "dropped"}


def rows(after: str) -> list[list[str]]:
    """The cells of the table under this heading or sentence."""
    lines = TEXT.partition(after)[2].partition("|---")[2].splitlines()[1:]
    table = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def codec_of(cell: str) -> Codec:
    codec = getattr(parse_strategy(f"allreduce(codec={cell.strip('`')})"), "codec", None)
    assert isinstance(codec, Codec)
    return codec


ALL = rows("## All of them")
RECIPES = rows("**Recipes** carry the names")
each_codec = pytest.mark.parametrize("row", ALL, ids=lambda row: row[0])


def test_every_name_is_on_the_page() -> None:
    named = {cells[0].strip("`").partition("(")[0] for cells in (*ALL, *RECIPES)}
    explained = {"chain", "error_feedback", *TRANSFORMATIONS}
    assert named | explained == {*CODECS, *TRANSFORMATIONS}
    assert all(f"**`{name}(" in TEXT for name in explained)


@each_codec
def test_sizes_and_flags_are_those_of_the_code(row: list[str]) -> None:
    call, _, _, example, unbiased, summable, non_finite, _ = row
    codec = codec_of(call)
    most = "" if codec.sent(torch.zeros(8, dtype=torch.uint8), LAYER) is None else "at most "
    assert example == f"{most}{codec.nbytes(LAYER):,}"
    assert [unbiased, summable] == ["yes" if flag else "no" for flag in (codec.unbiased, codec.summable)]
    assert non_finite == NOT_FINITE[codec.non_finite]


@each_codec
def test_so_many_bytes_are_sent(row: list[str]) -> None:
    """The example's number, on values: exactly, or at most."""
    codec = codec_of(row[0])
    values = torch.randn(LAYER.size, generator=torch.Generator().manual_seed(1)).mul_(0.005)
    sent, most = Coder(codec, LAYER).encode(values).numel(), int(re.sub(r"\D", "", row[3]))
    assert sent <= most if row[3].startswith("at most") else sent == most


def test_recipes_are_what_the_page_says() -> None:
    for recipe, meaning, _ in RECIPES:
        assert codec_of(recipe) == codec_of(meaning)


@cache
def page() -> dict[str, Any]:
    """All blocks run one after the other, as a reader would: the names that they make."""
    names: dict[str, Any] = {"__name__": "page", "fast": fast}
    for number, block in enumerate(BLOCKS):
        if block.startswith(">>>"):
            example = doctest.DocTestParser().get_doctest(block, names, f"block {number}", None, None)
            report: list[str] = []
            failed = doctest.DocTestRunner(verbose=False).run(example, out=report.append).failed
            assert not failed, "".join(report)
        else:
            exec(compile(block, f"block {number}", "exec", dont_inherit=True), names)
    return names


def test_the_code_runs() -> None:
    """The page's own codec passes the kit there, and rounds as it says."""
    names = page()
    assert (
        names["strategy"].call == fast.presets.allreduce(codec=codec_of("error_feedback(top_k(0.01))")).call
    )
    coder = Coder(names["PowersOfTwo"](), Layout.single((8,), torch.float32))
    values = torch.tensor([0.0, 1.0, -1.4, 1.6, -3.0, 100.0, 2.0**-70, -0.3])
    expected = [0.0, 1.0, -1.0, 2.0, -4.0, 128.0, 0.0, -0.25]
    assert coder.decode(coder.encode(values)).tolist() == expected


def test_a_codec_that_nobody_knows_works_in_a_mean() -> None:
    replicas = [LeastSquares(0.05) for _ in range(3)]
    workers = [SimWorker(each, batches(number, 40), each.compute) for number, each in enumerate(replicas)]
    strategy = fast.presets.allreduce(codec=page()["PowersOfTwo"]())
    Simulation(strategy, workers, network=Network(1e9, 0.001), compute=Compute(), seed_torch=False).run()
    assert all(torch.equal(each.weights, replicas[0].weights) for each in replicas)
    assert replicas[0].weights.any()


def test_which_codecs_error_feedback_refuses() -> None:
    for call in ("qsgd(7)", "terngrad()", "random_k(0.01)", "dgc()"):
        with pytest.raises(UsageError):
            codec_of(f"error_feedback({call})")
    for call in ("qsgd(127)", "qsgd(7, bucket=32)", "random_k(0.01, scaled=False)"):
        codec_of(f"error_feedback({call})")


# The picture


def numbers(text: str) -> tuple[str, list[float]]:
    """A drawing without its numbers, and the numbers."""
    pattern = r"-?\d+(?:,\d{3})*(?:\.\d+)?"
    found = [float(number.replace(",", "")) for number in re.findall(pattern, text)]
    return re.sub(pattern, "#", text), found


def test_the_picture_is_up_to_date() -> None:
    """Within a pixel: the gradients in it are products of matrices, which not all machines round alike."""
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    assert spec is not None and spec.loader is not None
    made = sys.modules["make_pictures"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    drawn = (DOCS / "pictures" / "codecs.svg").read_text(encoding="utf-8")
    (kept, places), (new, new_places) = numbers(drawn), numbers(made.draw_codecs())
    assert kept == new, "run: python docs/make_pictures.py"
    assert places == pytest.approx(new_places, rel=0.1, abs=1.0), "run: python docs/make_pictures.py"
    shown = {call.partition("(")[0] for calls in made.SHOWN.values() for call in calls}
    assert shown == {cells[0].strip("`").partition("(")[0] for cells in ALL} | {"chain"}
