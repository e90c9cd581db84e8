"""What counts towards a step and an epoch, and what `join` refuses before it starts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import fast
from fast.engine import Seat, seated
from fast.errors import UsageError
from fast.loop.loading import strategy_from
from fast.loop.session import Session
from running import plainly

BATCHES = [torch.zeros(3, 1), torch.zeros(5, 1)]


def seat_with_session() -> tuple[Seat, Session]:
    seat = Seat(0, 2, connect=lambda: None, start_servers=lambda strategy, count: None, say=print)
    session = Session(model=None, optimizer=None, runtime=None)
    seat.sessions.append(session)
    return seat, session


@pytest.mark.parametrize(("training", "samples"), [(True, 8), (False, 1)])
def test_an_evaluation_adds_nothing_to_the_next_steps_weight(training, samples):
    seat, session = seat_with_session()
    with seated(seat), torch.set_grad_enabled(training):
        list(fast.own(BATCHES))
    assert session.take_samples() == samples


def test_a_loader_made_anew_every_epoch_is_shuffled_anew():
    seat, _ = seat_with_session()
    data = list(range(64))
    with seated(seat):
        epochs = [
            torch.cat(list(fast.shard(DataLoader(data, batch_size=8, shuffle=True)))).tolist()
            for _ in range(2)
        ]
    assert epochs[0] != epochs[1]


def test_an_optimizer_of_another_model_is_refused():
    def body():
        fast.join(nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))

    with pytest.raises(UsageError, match="holds none of the model's parameters"):
        plainly(body)


FILES = {
    "import": ("import nothing_of_this_name\n", "Mine", "can't be loaded: ModuleNotFoundError"),
    "syntax": ("def broken(:\n", "Mine", r"can't be loaded: SyntaxError.*line 1"),
    "argument": (
        "import fast\nclass Mine(fast.Strategy):\n"
        "    def __init__(self, *, every: int = 1):\n        raise ValueError('every is at least 1')\n"
        "    async def step(self, me): ...\n",
        "Mine(every=0)",
        "can't be built: ValueError: every is at least 1",
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_strategy_file_that_does_not_work_is_answered_with_a_sentence(kind, tmp_path):
    source, call, sentence = FILES[kind]
    file = tmp_path / f"strategy_{kind}.py"
    file.write_text(source)
    with pytest.raises(UsageError, match=sentence):
        strategy_from(f"{file}:{call}")
