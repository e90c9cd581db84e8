"""The order that a loader's own generator gives: the same on every worker, and that of one plain process.

Worker 0's generator decides. When a pass begins whose generator hasn't been used with these data before, or has been
seeded anew since, worker 0 shows the generator's state and the others take it over. From there on each worker goes on
from where its last pass ended, so nobody waits, and what else draws from the generator in between (an evaluation on
worker 0 alone) can't drive the workers' orders apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import Generator, Tensor

from fast.core.seeds import stream_seed
from fast.runtime import WorkerRuntime
from fast.transport import Phase

_WINDOW = "orders"
_KEPT = 64
"""Number of states that worker 0 shows at a time. A worker that is further behind goes on with its own."""
_NAP_S = 0.1


@dataclass
class _Data:
    """What is known of one set of data."""

    key: int
    """Its name among the workers, whichever other data each of them goes through."""
    agreed: int = 0
    """How often worker 0's state was taken over."""
    ends: WeakKeyDictionary[Generator, Generator] = field(default_factory=WeakKeyDictionary)
    """Where the last pass left each generator."""

    def copy(self) -> _Data:
        return _Data(self.key, self.agreed, WeakKeyDictionary(self.ends))


@final
class Orders:
    """One worker's orders, for all loaders that have a generator."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._world, self._transport = runtime.world, runtime.transport
        self._first = runtime.world.start_view.workers[0]
        self._data: dict[int, _Data] = {}
        self._shown: Tensor | None = None
        self._before: WeakKeyDictionary[Generator, Tensor] | None = None

    @contextmanager
    def drawing(self, generator: Generator, data: object, length: int) -> Iterator[None]:
        """Inside, the generator gives the order of the next pass over these data."""
        if self._before is not None:
            self._before.setdefault(generator, generator.get_state())
        known = self._known(data, length)
        end = known.ends.get(generator)
        if end is None or _seeded_anew(generator, end):
            generator.set_state(self._agree(generator.get_state(), stream_seed(known.key, known.agreed)))
            known.agreed += 1
        else:
            generator.set_state(end.get_state())
        yield
        known.ends[generator] = _copy(generator)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Passes inside leave nothing behind."""
        known = {name: data.copy() for name, data in self._data.items()}
        before = self._before = WeakKeyDictionary()
        try:
            yield
        finally:
            self._data, self._before = known, None
            for generator, state in before.items():
                generator.set_state(state)

    def _known(self, data: object, length: int) -> _Data:
        """Workers may meet different data first: so data are named by what they are, then by their number."""
        if id(data) not in self._data:
            name = f"{type(data).__name__} {length}"
            alike = [each.key for each in self._data.values()]
            number = next(n for n in range(len(alike) + 1) if stream_seed(n, name) not in alike)
            self._data[id(data)] = _Data(stream_seed(number, name))
        return self._data[id(data)]

    # Agreeing

    def _agree(self, mine: Tensor, key: int) -> Tensor:
        """Worker 0's state. Where worker 0 has left without showing one, every worker goes on with its own."""
        if self._world.id == self._first:
            self._show(mine, key)
            return mine
        with self._world.patience:
            while True:
                token = self._transport.listen()
                gone = self._transport.phase(self._first) >= Phase.DONE
                found = self._find(
                    mine.numel(), key
                )  # after the phase: what was shown before leaving is seen
                if found is not None or gone:
                    return mine if found is None else found
                self._world.pump()
                self._transport.sleep(token, _NAP_S)
                self._world.patience.check((self._first,), "order of the data")

    def _show(self, state: Tensor, key: int) -> None:
        """The state first, then its key, then that it is there."""
        if self._shown is None:
            memory = self._transport.allocate(8 + _KEPT * (8 + state.numel()))
            self._shown = self._transport.window(_WINDOW, memory)
        count = self._shown[:8].view(torch.int64)
        slot = _slot(self._shown, int(count) % _KEPT, state.numel())
        slot[8:] = state
        slot[:8].view(torch.int64).fill_(key)
        count += 1
        self._transport.set_phase(self._transport.phase(self._first))  # wakes the workers that wait for it

    def _find(self, size: int, key: int) -> Tensor | None:
        memory = self._transport.peek(self._first, _WINDOW)
        if memory is None:
            return None
        for number in range(min(_KEPT, int(memory[:8].view(torch.int64)))):
            slot = _slot(memory, number, size)
            if int(slot[:8].view(torch.int64)) == key:
                return slot[8:].clone()
        return None


def _slot(memory: Tensor, number: int, size: int) -> Tensor:
    """Its key, then its state."""
    return memory[8:].view(_KEPT, 8 + size)[number]


def _copy(generator: Generator) -> Generator:
    return Generator().set_state(generator.get_state())


def _seeded_anew(generator: Generator, end: Generator) -> bool:
    """Whether the script has called `manual_seed` since the last pass. Other draws don't count."""
    seed = generator.initial_seed()
    fresh = Generator().manual_seed(seed).get_state()
    return seed != end.initial_seed() or torch.equal(generator.get_state(), fresh)
