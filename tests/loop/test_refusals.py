"""What can't work with others ends the run with one sentence, before it does any harm."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import fast
from fast.errors import NotFinite, UsageError
from running import parameters_of, plainly

REFUSALS = {
    "use_scaler": ({}, "GradScaler skips steps .* or with one worker"),
    "use_closure": ({}, r"step\(closure\) .* or one worker"),
    "use_lbfgs": ({}, r"LBFGS computes gradients of its own inside step\(closure\)"),
    "be_infinite": ({"check": True, "who": 1}, r"gradient of '0\.weight' .* NaN or infinity"),
    "join_twice": ({}, "called twice in one worker.*ModuleDict"),
    "join_no_module": ({}, "needs a torch.nn.Module as its model and got list"),
    "join_no_optimizer": ({}, "needs a torch.optim optimizer and got str"),
    "clip_on_a_server": ({}, "before_apply can't be called with ssp.*runs on a server"),
    "step_after_the_end": ({}, "called after fast.consolidate.*Consolidate once"),
    "consolidate_a_stranger": ({}, "a model that was not joined here"),
    "freeze_later": ({}, r"'0\.weight' was trainable and is frozen now"),
    "write_into_the_mean": ({}, "changed the result of mean.*Leave read_only out"),
}


@pytest.mark.real
@pytest.mark.parametrize("body", REFUSALS)
def test_it_is_refused_with_a_sentence(body, runner):
    arguments, sentence = REFUSALS[body]
    failure = runner.failure(f"loop_bodies:{body}", 2, **arguments)
    assert failure.usage, "a wrong call ends with exit code 2"
    assert not failure.traceback
    assert re.search(sentence, failure.message), failure.message


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["easgd(tau=2)", "sparknet(tau=2)", "mpca_sgd(tau=2)"])
def test_where_workers_optimize_they_may_clip_although_there_is_a_server(strategy, runner):
    assert runner.results("loop_bodies:clip_beside_a_server", 2, strategy=strategy) == [3, 3]


@pytest.mark.real
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("shape", r"parameters of worker 0 have 0\.weight \[4, 3\] where worker 1 has 0\.weight \[5, 3\]"),
        ("number", "worker 0 has 4 parameters and worker 1 has 6"),
        ("buffers", "worker 0 has 0 buffers and frozen parameters and worker 1 has 1"),
        ("dtype", "worker 0 trains in float32 and worker 1 in float64"),
        ("strategy", r"worker 0 joins with strategy allreduce\(.*\) and worker 1 with torus\("),
    ],
)
def test_workers_that_bring_different_things_are_told_what_differs(how, sentence, runner):
    failure = runner.failure("loop_bodies:differ", 3, how=how)
    assert failure.usage
    assert re.search(sentence, failure.message), failure.message


@pytest.mark.real
def test_without_the_check_a_nan_spreads_as_in_torch(runner):
    results = runner.results("loop_bodies:be_infinite", 2, check=False, who=1)
    assert results == [[False] * 4] * 2


@pytest.mark.real
def test_changed_gradients_are_mentioned_once_and_not_refused(runner):
    said = []
    outcome = runner.outcome(
        "loop_bodies:clip_own_gradient", 2, listen=lambda e: e["event"] == "say" and said.append(e["text"])
    )
    assert outcome.failure is None
    assert sum("use before_apply" in line for line in said) == 2  # each worker once


# Alone


def joined_alone(**options) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    return fast.join(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_alone_too_a_nan_is_refused_before_the_step():
    def script():
        model, optimizer = joined_alone(check_finite=True)
        before = parameters_of(model)
        (model(torch.ones(2, 3)).sum() * float("inf")).backward()
        with pytest.raises(
            NotFinite, match="gradient of weight holds NaN or infinity; the step was not applied"
        ):
            optimizer.step()
        assert torch.equal(parameters_of(model), before)

    plainly(script)


def test_alone_too_before_apply_sees_the_gradient_before_the_step():
    def script():
        seen = []
        model, optimizer = joined_alone(before_apply=lambda: seen.append(model.bias.grad.item()))
        before = model.bias.item()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        assert seen == [2.0]
        assert model.bias.item() == pytest.approx(before - 0.1 * 2.0)

    plainly(script)


def test_a_plain_script_has_no_servers_to_offer():
    class Served(fast.Strategy):
        def servers(self, workers):
            return 1

    def script():
        with pytest.raises(UsageError, match=r"needs 1 server, and a plain script has none.*fast run"):
            joined_alone(strategy=Served())

    plainly(script)


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("alreduce", "Did you mean allreduce"),
        (3, "neither a name such as 'torus', nor a call .* nor a Strategy object"),
        ("torus(", "can't be read"),
    ],
)
def test_a_strategy_that_can_not_be_read_is_refused(strategy, sentence):
    def script():
        with pytest.raises(UsageError, match=sentence):
            joined_alone(strategy=strategy)

    plainly(script)
