"""The contestants of the benchmarks do what their names say."""

from __future__ import annotations

from contextvars import Context
from pathlib import Path
from typing import Any

import torch

from fast.engine import current_seat
from fast.loop.session import close_sessions, session_of
from fast.runtime.logbook import metrics_file, read_lines
from fast.trace import Reduced
from running import parameters_of, plainly
from scripts import script

SMALL = [64, 64, 10]


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
