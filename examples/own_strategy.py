"""A strategy of one's own: a class with one method, written like the paper's pseudo-code.

    fast run --workers 4 --strategy examples/own_strategy.py:Dissemination examples/digits.py
    fast simulate digits --workers 16 --strategies allreduce,examples/own_strategy.py:Dissemination
    python examples/own_strategy.py         # the contract's kit, then 16 simulated workers

The idea is that of GossipGraD (Daily et al., 2018): in every step a worker averages its weights
with those of one other, at a distance that doubles from step to step, so that after log2(P)
steps everybody has heard of everybody. One letter per step, whatever the number of workers.
"""

from fast import Me, Strategy, Tag


class Dissemination(Strategy):
    """w_i <- optimizer(w_i, g_i);  w_i <- (w_i + w_j) / 2  with  j = i - 2^k mod P"""

    synchronous = True
    identity_alone = True
    tags = (Tag("weights", carries="weights"),)

    def __init__(self, *, every: int = 1) -> None:
        self.every = every

    async def step(self, me: Me) -> None:
        me.apply(me.gradient)
        size, round_ = len(me.workers), me.steps // self.every
        if size == 1 or me.steps % self.every:
            return
        hop = 2 ** (round_ % (size - 1).bit_length())
        me.send(me.workers[(me.index + hop) % size], me.weights, tag="weights")
        got, _ = await me.gather("weights", [me.workers[(me.index - hop) % size]])
        for letter in got.values():
            me.weights.lerp_(letter.tensor, 0.5)


def main() -> None:
    from fast.lab import Simulated, compare
    from fast.testing import check_strategy

    check_strategy(Dissemination)
    print("Dissemination keeps the contract of a strategy.")
    names = ["allreduce", "dpsgd", f"{__file__}:Dissemination"]
    for result in compare("digits", names, workers=16, world=Simulated(), epochs=60).results:
        name = result.strategy.rpartition("/")[2]
        print(f"{name:40} score {result.final_score:.3f}, sent {result.bytes_sent_per_worker / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
