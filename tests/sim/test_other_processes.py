"""The same seed gives the same trace in another process, whatever the order of its sets and dictionaries."""

from __future__ import annotations

import os
import subprocess
import sys

CALLS = (
    "allreduce",
    "ssp(bound=2)",
    "gossip(p=0.5)",
    "torus",
    "ad_psgd",
    "sgp",
    "easgd(tau=2)",
    "tensorflow",
)
FAULTS = "worker 1 stops at step 6; letters from 0 to 2 take 30ms longer; worker 3 freezes at 60ms for 50ms"
SCRIPT = """
import sys
from fast.lab import Simulated, load_task
from fast.lab.sizes import Sizes, simulate_sizes
from fast.loop.loading import strategy_from
from fast.sim import TraceHash

sizes = Sizes.of_task("quadratic", load_task("quadratic"))
for call in sys.argv[2:]:
    for workers, scenario in ((4, sys.argv[1]), (7, None)):
        hashed = TraceHash()
        world = Simulated(network="1gbit,1ms", straggler="3x@0.2", spread=0.3, scenario=scenario)
        simulate_sizes(sizes, strategy_from(call), workers=workers, steps=12, world=world, seed=5, observers=[hashed])
        print(call, workers, hashed.hexdigest())
"""


def printed(hash_seed: int) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, FAULTS, *CALLS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_trace_does_not_depend_on_the_order_of_sets():
    first, second = printed(1), printed(2)
    assert first == second
    assert len(set(first)) == len(first) == 2 * len(CALLS)
