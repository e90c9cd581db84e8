"""The contestants of the benchmarks do what their names say."""

from __future__ import annotations

import json
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
import torch

import fast
from fast.engine import current_seat
from fast.lab import load_task
from fast.lab.sizes import Sizes
from fast.loop.loading import strategy_from
from fast.loop.session import close_sessions, session_of
from fast.parts.codecs import Coder
from fast.runtime.logbook import metrics_file, read_lines
from fast.trace import Reduced
from fast.view import Layout
from running import Runner, from_text, parameters_of, plainly
from scripts import script

SMALL = [64, 64, 10]
WORKERS = 2


def results(runner: Runner, body: str, folder: Path, **options: Any) -> list[Any]:
    return runner.results(f"contestant_bodies:{body}", WORKERS, folder=str(folder), **options)


# One worker, alone


def test_all_machinery_runs_the_machinery_and_bare_pytorch_runs_none(tmp_path: Path) -> None:
    join_cost = script("join_cost")

    def contest() -> None:
        seat, context = current_seat(), Context()
        found = join_cost.contestants(SMALL, tmp_path, context)
        models = {name: contestant.args[0] for name, contestant in found.items()}
        sessions = {name: session_of(seat, model) for name, model in models.items()}
        assert sessions[join_cost.BARE] is None
        assert sessions[join_cost.OURS].runtime is None, "alone, `allreduce` needs none"
        records: list[Any] = []
        sessions[join_cost.MACHINERY].runtime.world.observe([records.append])
        for contestant in found.values():
            for _ in range(3):
                contestant()
        assert [record.members for record in records if isinstance(record, Reduced)] == [(0,)] * 3
        weights = {name: parameters_of(model) for name, model in models.items()}
        assert all(torch.equal(weights[join_cost.BARE], each) for each in weights.values())
        assert not torch.equal(weights[join_cost.BARE], parameters_of(script("training_step").mlp(SMALL)))
        close_sessions(seat)
        context.run(current_seat).logbook.close()
        lines = read_lines(metrics_file(tmp_path, "worker 0"))
        assert [line["step"] for line in lines if line["kind"] == "values"] == [1, 2, 3]
        assert [line["bytes_sent"] >= 0 for line in lines if line["kind"] == "totals"]

    plainly(contest)


# Several workers


@pytest.mark.real
def test_in_a_training_step_all_exchange_but_the_floor(runner: Runner, tmp_path: Path) -> None:
    """Ours and DDP with buckets of any size come to the same weights, from batches that differ."""
    contest = script("training_step")
    first, second = results(runner, "train_each", tmp_path)
    kinds = {name: kind for name, (kind, _) in first.items()}
    buckets = [contest.ddp(megabytes) for megabytes in contest.BUCKETS_MB]
    assert kinds == {
        contest.OURS: "joined",
        **dict.fromkeys(buckets, "DistributedDataParallel"),
        contest.FLOOR: "Sequential",
    }
    weights = [
        {name: from_text(text, torch.float32) for name, (_, text) in told.items()} for told in (first, second)
    ]
    for name in (contest.OURS, *buckets):
        assert torch.equal(weights[0][name], weights[1][name])
        assert torch.allclose(weights[0][name], weights[0][contest.OURS], atol=1e-6)
    assert not torch.allclose(weights[0][contest.FLOOR], weights[1][contest.FLOOR], atol=1e-4)


@pytest.mark.real
def test_an_all_reduce_adds_and_the_copy_moves_as_much_memory(runner: Runner, tmp_path: Path) -> None:
    contest = script("allreduce")
    for told in results(runner, "reduce_each", tmp_path):
        assert told == {
            contest.OURS: [1.5] * 12,
            contest.GLOO: [3.0] * 12,
            contest.MEMORY: (WORKERS + 1) * 48 // (2 * WORKERS),
        }


@pytest.mark.real
def test_the_script_without_fast_is_ddp_on_shares_of_the_data(runner: Runner, tmp_path: Path) -> None:
    first, second = results(runner, "run_ddp", tmp_path, to=str(tmp_path / "result.json"))
    assert first[0] == second[0], "DDP keeps the replicas equal"
    assert first[2] and set(json.loads((tmp_path / "result.json").read_text())) == {"score", "samples_per_s"}
    assert len(first[1]) == len(second[1]) and set(first[1]).isdisjoint(second[1])
    assert {*first[1], *second[1]} == set(range(4096))


@pytest.mark.real
def test_over_tcp_those_with_tls_encrypt_and_the_others_dont(runner: Runner, tmp_path: Path) -> None:
    contest = script("tcp")
    sender, receiver = results(runner, "send_each", tmp_path)
    for told in (sender, receiver):
        assert told["kinds"] == {
            contest.RAW: "socket",
            contest.RAW_TLS: "SSLSocket",
            contest.PLAIN: "socket",
            contest.TLS: "SSLSocket",
        }
    assert sender["letters"] == {contest.PLAIN: [0, 1], contest.TLS: [0, 1]}
    assert receiver["letters"] == {contest.PLAIN: [1, 0], contest.TLS: [1, 0]}


# Codecs


def test_every_codec_sends_fewer_bytes_and_torch_does_the_same_by_hand() -> None:
    """What comes out of the torch expressions is about what comes out of the codec they stand beside."""
    contest = script("codecs")
    torch.manual_seed(0)
    values = torch.randn(32 * contest.COLUMNS)
    layout = Layout.single((32, contest.COLUMNS), torch.float32)
    for entry in contest.entries(values.numel()):
        coder = Coder(entry.codec, layout)
        sent = coder.encode(values).clone()
        ours = coder.decode(sent)
        assert sent.numel() < 0.6 * layout.nbytes, entry.name
        if entry.encode is None:
            continue
        parts = entry.encode(values)
        assert sum(part.nbytes for part in parts) < 0.6 * layout.nbytes, entry.name
        theirs = entry.decode(*parts).reshape(-1)
        errors = [float((each - values).norm() / values.norm()) for each in (ours, theirs)]
        assert errors[0] == pytest.approx(errors[1], rel=0.25, abs=1e-3), entry.name


# In the simulator


def test_with_buckets_a_step_overlaps_and_without_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time: 20 ms of computing, and what is sent while backward runs is not waited for afterwards."""
    contest = script("overlap")
    plain = contest.simulated_s(fast.presets.allreduce(), 2, "1gbit")
    for megabytes in contest.BUCKETS_MB:
        strategy = strategy_from(contest.bucketed(megabytes))
        assert strategy.bucket_bytes == megabytes * 1e6
        assert 0.02 < contest.simulated_s(strategy, 2, "1gbit") < plain


def test_who_leaves_leaves_and_its_data_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = script("leaving")
    monkeypatch.setattr(contest, "STEPS", 6)
    monkeypatch.setattr(contest, "LEAVE_AT", 2)
    steps = [
        [report.steps for report in contest.train("allreduce", 0, **options).workers]
        for options in ({}, {"leave": True}, {"workers": 6})
    ]
    assert steps == [[6] * 8, [*[6] * 6, 2, 2], [6] * 6]
    task = load_task("digits")
    everybody, without = (contest.OfEight().assign(task, workers, 0) for workers in (8, 6))
    assert [list(each) for each in without] == [list(each) for each in everybody[:6]]


def test_on_slow_links_the_packed_one_sends_fewer_bytes() -> None:
    contest = script("slow_links")
    plain, *packed = (
        contest.step_of(call, contest.SLOW.network, "digits", 4)
        for call in (*contest.BASE.calls, *contest.PACKED.calls)
    )
    assert packed and all(sent < plain[1] / 2 for _, sent in packed)


def test_the_synchronous_baselines_are_all_reduce() -> None:
    for name, call in (
        ("stragglers", script("stragglers").SYNCHRONOUS),
        ("moments", script("moments").SYNCHRONOUS),
        ("slow_links", script("slow_links").BASE.calls[0]),
    ):
        strategy = strategy_from(call)
        assert strategy.call == fast.presets.allreduce().call and strategy.synchronous, name


def test_beside_the_simulator_one_computes_gradients_and_the_other_trains() -> None:
    contest = script("simulator_speed")
    task = contest.Mlp()
    eager, trained = (contest.OneByOne(task, 2, 3, trains=trains) for trains in (False, True))
    before = [parameters_of(model).clone() for model in (*eager._models, *trained._models)]
    for contestant in (eager, trained):
        contestant()
        assert all(
            parameter.grad is not None for model in contestant._models for parameter in model.parameters()
        )
    after = [parameters_of(model) for model in (*eager._models, *trained._models)]
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [True, True, False, False]
    simulated = contest.Simulated(task, "gossip", 2, 3)
    simulated()
    assert sum(participant.me.steps for participant in simulated._simulation.workers) >= 3


def test_the_scores_compare_decentral_presets_with_all_reduce() -> None:
    """Each is itself, and takes several steps between two exchanges at most a tenth of the run."""
    contest = script("preset_scores")
    assert strategy_from(contest.SYNCHRONOUS).call == fast.presets.allreduce().call
    calls = {
        preset.name: strategy_from(contest.default_call(preset, 100))
        for preset in contest.decentral_presets()
    }
    assert calls and contest.SYNCHRONOUS not in calls
    for name, strategy in calls.items():
        assert strategy.call.startswith(f"{name}(")
        assert all(getattr(strategy, each, 1) <= 10 for each in ("tau", "interval"))


def test_at_scale_ours_takes_all_steps_and_the_limit_moves_as_many_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contest, events = script("simulator_scale"), []
    bare = contest.bare_queue_s
    monkeypatch.setattr(
        contest, "bare_queue_s", lambda workers, count: events.append(count) or bare(workers, count)
    )
    effort = contest.Effort(worker_steps=40, repetitions=2)
    row, _ = contest.contest(Sizes.of_parameters(1000), "gossip", 8, effort)
    assert row.peer_name == contest.LIMIT and len(events) == 2 and min(events) >= 8 * effort.steps(8)
