"""The verdict's sentences, for times whose means, ranges and ratios are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fast.lab.verdict import duration, verdict

Json = dict[str, Any]


def row(call: str, seed: int, seconds: float | None, **more: Any) -> Json:
    reached = seconds is not None
    known = {"reached_target": reached, "time_to_target_s": seconds, "final_score": 0.95, "diverged": False}
    label = call.partition("(")[0]
    return {"strategy": call, "asked": call, "label": label, "seed": seed, "rate": 1.0, **known, **more}


def rows(call: str, *seconds: float | None, **more: Any) -> list[Json]:
    return [row(call, seed, each, **more) for seed, each in enumerate(seconds)]


def failed(call: str, *seeds: int, error: str = "it broke") -> list[Json]:
    label = call.partition("(")[0]
    who = {"strategy": call, "asked": call, "label": label, "rate": 1.0, "error": error}
    return [{**who, "seed": seed} for seed in seeds]


def said(*groups: list[Json], world: str = "real", tune: int = 8) -> str:
    results = [each for group in groups for each in group]
    return verdict({"target": 0.94, "world": world, "settings": {"tune": tune}, "results": results})


def test_the_first_with_its_mean_and_range_and_the_ratios_paired_by_seed() -> None:
    text = said(
        rows("allreduce()", 4.0, 5.0, 6.0), rows("ssp()", 3.0, 3.1, 3.2), rows("torus()", 1.0, 2.0, 2.1)
    )
    assert text == (
        "torus reached 0.94 first: after 1.70 s (1.00 to 2.10 s over 3 seeds). "
        "It was 1.82 times as fast as the runner-up, ssp (1.52 to 3.00 over seeds). "
        "It was 2.94 times as fast as allreduce (2.50 to 4.00 over seeds)."
    )


def test_allreduce_as_the_runner_up_is_told_once() -> None:
    text = said(rows("allreduce()", 4.0, 4.0), rows("torus()", 2.0, 2.0), rows("ssp()", 9.0, 9.0))
    assert text.count("allreduce") == 1
    assert "2.00 times as fast as the runner-up, allreduce (2.00 over seeds)" in text


def test_allreduce_as_the_winner_is_compared_with_the_runner_up_only() -> None:
    text = said(rows("allreduce(lr=1)", 1.0, 1.0), rows("torus()", 2.0, 2.0))
    assert text.startswith("allreduce reached 0.94 first")
    assert text.count("times as fast") == 1


def test_overlapping_times_cant_be_told_apart() -> None:
    text = said(rows("torus()", 1.0, 2.0), rows("ssp()", 1.9, 1.5))
    assert "1.13 times as fast as the runner-up, ssp (0.75 to 1.90 over seeds)" in text
    assert "but their times overlap: the two can't be told apart with these seeds." in text


def test_faster_with_each_seed_though_times_overlap() -> None:
    text = said(rows("torus()", 1.0, 2.0), rows("ssp()", 1.5, 2.5))
    assert "although it was faster with each of them, the two can't be told apart with these seeds" in text


def test_times_that_touch_overlap_and_times_apart_dont() -> None:
    assert "can't be told apart" in said(rows("torus()", 1.0, 2.0), rows("ssp()", 2.0, 3.0))
    assert "can't be told apart" not in said(rows("torus()", 1.0, 2.0), rows("ssp()", 2.1, 3.0))


def test_equal_times_are_as_fast_as() -> None:
    text = said(rows("torus()", 2.0, 2.0), rows("ssp()", 2.0, 2.0))
    assert "It was as fast as the runner-up, ssp" in text and "can't be told apart" in text


def test_one_seed_has_no_range() -> None:
    text = said(rows("torus()", 1.0), rows("ssp()", 2.0))
    assert text == (
        "torus reached 0.94 first: after 1.00 s, with one seed only: how much that varies is unknown. "
        "It was 2.00 times as fast as the runner-up, ssp."
    )


def test_virtual_time_is_called_so() -> None:
    assert "after 2.00 s of virtual time (" in said(rows("torus()", 1.0, 3.0), world="sim")


def test_more_seeds_at_the_target_count_more_than_speed() -> None:
    """ssp is faster, but with one seed of two."""
    text = said(rows("torus()", 2.0, 3.0), rows("ssp()", 1.0, None))
    assert text == (
        "torus is the fastest of those that reached 0.94 with every seed: after 2.50 s (2.00 to 3.00 s over 2 "
        "seeds). It was 0.50 times as fast as the runner-up, ssp, with the one seed that both reached it with. "
        "ssp (1 of 2) didn't reach it with every seed."
    )


def test_ratios_are_over_the_seeds_that_both_reached_it_with() -> None:
    text = said(rows("torus()", 1.0, 1.0, 1.0), rows("ssp()", None, 3.0, 5.0))
    assert (
        "4.00 times as fast as the runner-up, ssp (3.00 to 5.00 over seeds, of the 2 that both reached it with)"
        in text
    )


def test_no_seed_in_common() -> None:
    text = said(rows("torus()", 1.0, None), rows("ssp()", None, 3.0))
    assert "It can't be compared with the runner-up, ssp: no seed reached the target with both." in text


def test_a_winner_that_got_there_sometimes() -> None:
    text = said(rows("torus()", 1.0, 2.0, None), rows("ssp()", None, None, None))
    assert text.startswith(
        "torus reached 0.94 first: after 1.50 s (1.00 to 2.00 s), but with 2 of 3 seeds only."
    )
    assert "No other strategy reached it." in text and "ssp didn't reach it." in text


def test_those_that_never_did_and_those_that_failed_are_named() -> None:
    many = [rows(f"gossip{n}()", None, None) for n in range(5)]
    text = said(rows("torus()", 1.0, 1.0), *many, failed("ssp()", 0, 1))
    assert "gossip0, gossip1, gossip2 and 2 others didn't reach it." in text
    assert text.endswith("ssp failed.")


def test_one_strategy_alone() -> None:
    assert said(rows("torus()", 1.0, 3.0)) == (
        "torus reached 0.94 first: after 2.00 s (1.00 to 3.00 s over 2 seeds)."
    )


def test_nobody_reached_it() -> None:
    low = [row("ssp()", seed, None, final_score=score) for seed, score in enumerate((0.90, 0.92))]
    high = [row("torus()", seed, None, final_score=score) for seed, score in enumerate((0.93, 0.91))]
    assert said(low, high) == (
        "Nobody reached 0.94. The highest final score is 0.920 (0.910 to 0.930 over 2 seeds), by torus. "
        "Try more epochs (--epochs) or a lower --target."
    )
    assert "Try more epochs (--epochs), tuned rates (--tune 8) or a lower --target." in said(
        low, high, tune=0
    )


def test_everybody_diverged() -> None:
    lost = rows("torus()", None, None, final_score=None, diverged=True)
    assert said(lost, failed("ssp()", 0, 1)) == (
        "Nobody reached 0.94: every run that didn't fail diverged. Try more trials (--tune)."
    )


def test_everybody_failed() -> None:
    assert said(failed("torus()", 0, 1, error="worker 1 left"), failed("ssp()", 0, 1)) == (
        "Every run failed, so there is nothing to compare. The first error, of torus: worker 1 left"
    )


def test_nothing_was_run() -> None:
    assert said() == "Nothing was run, so there is nothing to compare."


def test_the_same_preset_with_other_arguments_is_another_strategy() -> None:
    text = said(rows("ssp(bound=1)", 1.0, 1.0), rows("ssp(bound=9)", 2.0, 2.0))
    assert "2.00 times as fast" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.00025, "250 µs"),
        (0.0123, "12.3 ms"),
        (1.2345, "1.23 s"),
        (9.999, "10.0 s"),
        (99.99, "100 s"),
        (599, "599 s"),
        (600, "10.0 min"),
        (60_000, "16.7 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
