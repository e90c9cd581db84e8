"""What must hold for each of the presets alike."""

from math import isfinite

import pytest
import torch

from fast.codecs import error_feedback, int8, one_bit_sgd, top_k
from fast.errors import FastError, UsageError
from fast.rules import momentum_corrected
from fast.sim import NETWORKS, Compute, Network, TraceHash, parse_straggler
from fast.strategies import catalogue
from fast.strategies.presets import (
    ad_psgd,
    agn,
    allreduce,
    bigdl,
    caffeonspark,
    choco,
    dc_asgd,
    diloco,
    distbelief,
    downpour,
    dpsgd,
    eamsgd,
    easgd,
    essp,
    firecaffe,
    gosgd,
    gossip,
    gossipgrad,
    hogwild,
    local_sgd,
    mpca_sgd,
    mxnet,
    noloco,
    one_shot,
    osgp,
    parameter_server,
    petuum,
    post_local_sgd,
    project_adam,
    proxies,
    pytorch,
    sfb,
    sgp,
    slowmo,
    sparknet,
    ssp,
    staleness_aware,
    streaming_diloco,
    tensorflow,
    torus,
    tree_easgd,
    vap,
)
from fast.trace import Dropped, Included, Left, Sent, Stepped

from .problem import LeastSquares, RandomCompute, equal, random_network, weights

PROBLEM = LeastSquares()
STRATEGIES = {
    "allreduce": allreduce(),
    "local_sgd": local_sgd(tau=3),
    "post_local_sgd": post_local_sgd(tau=3, after=4, moments="correct"),
    "sparknet": sparknet(tau=2, moments="average"),
    "one_shot": one_shot(),
    "ssp": ssp(bound=2),
    "ssp0": ssp(bound=0),
    "shards": ssp(bound=1, servers=3),
    "essp": essp(bound=2),
    "vap": vap(limit=0.02),
    "parameter_server": parameter_server(tau=1),
    "petuum": petuum(bound=1),
    "lazy": petuum(bound=2, eager=False),
    "mxnet": mxnet("dist_async"),
    "bigdl": bigdl(),
    "caffeonspark": caffeonspark(),
    "pytorch": pytorch(bucket_mb=1e-5),
    "tensorflow": tensorflow(),
    "tensorflow0": tensorflow(backups=0, servers=2),
    "given up": tensorflow(quorum=0.5, cancel=True),
    "downpour": downpour(fetch=3, push=2),
    "distbelief": distbelief(warm=3),
    "dc_asgd": dc_asgd(),
    "staleness_aware": staleness_aware(n=2, servers=2),
    "agn": agn(steps=2),
    "slowmo": slowmo(tau=3),
    "diloco": diloco(interval=2),
    "streaming_diloco": streaming_diloco(fragments=2, interval=3, overlap=2),
    "noloco": noloco(interval=2),
    "dpsgd": dpsgd(moments="correct"),
    "torus": torus(rule=momentum_corrected(0.5)),
    "easgd": easgd(tau=2),
    "springs in step": easgd(tau=2, synchronous=True),
    "eamsgd": eamsgd(tau=2),
    "tree_easgd": tree_easgd(up=2, down=1),
    "mpca_sgd": mpca_sgd(tau=2),
    "replaced": mpca_sgd(tau=3, replace=True),
    "gossip": gossip(p=0.4),
    "gosgd": gosgd(p=1.0),
    "ad_psgd": ad_psgd(),
    "sgp": sgp(),
    "osgp": osgp(),
    "gossipgrad": gossipgrad(),
    "sfb": sfb(),
    "choco": choco(codec=top_k(0.5), gamma=0.4),
    "firecaffe": firecaffe(),
    "proxies": proxies(group=2),
    "caches": proxies(group=2, flush=2),
    "hogwild": hogwild(),
    "project_adam": project_adam(),
    "buckets": torus(codec=int8(), bucket_mb=1e-5),
    "pushed buckets": ssp(bound=1, codec=error_feedback(top_k(0.3)), bucket_mb=1e-5),
    "compressed": allreduce(codec=one_bit_sgd(), bucket_mb=1e-5),
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
SAVED = {
    name: strategy
    for name, strategy in STRATEGIES.items()
    if not strategy.racy and (strategy.synchronous or not (strategy.never_stale or isfinite(strategy.reach)))
}
"""Who is late for a quorum, or whose push is too large for what somebody computes on, has done fewer steps
than others, and would wait for those who have paused."""
every_saved_strategy = pytest.mark.parametrize("strategy", SAVED.values(), ids=SAVED.keys())


def build(strategy, counts, *, seed=0, observers=(), momentum=0.5, **options):
    size = len(counts)
    options = {
        "compute": RandomCompute(),
        "network": random_network(size, seed, size + strategy.servers(size)),
        **options,
    }
    batches = PROBLEM.batches(size, counts)
    return PROBLEM.simulation(
        strategy, batches, lr=0.01, momentum=momentum, seed=seed, observers=observers, **options
    )


def test_the_table_has_every_preset():
    assert {strategy.call.partition("(")[0] for strategy in STRATEGIES.values()} == set(catalogue())


@every_strategy
def test_same_seed_same_trace_and_same_bits(strategy):
    traces, ends = [], []
    for seed in (1, 1, 2):
        trace = TraceHash()
        simulation = build(strategy, [7, 7, 7, 7], seed=seed, observers=[trace])
        simulation.run()
        traces.append((trace.hexdigest(), trace.records))
        ends.append(weights(simulation))
    assert traces[0] == traces[1] != traces[2]
    assert equal(ends[0], ends[1])


def test_another_seed_is_another_gossip_even_with_equal_times():
    traces = []
    for seed in (1, 2):
        trace = TraceHash()
        build(
            gossip(p=0.4), [9] * 4, seed=seed, observers=[trace], compute=Compute(), network=NETWORKS["1gbit"]
        ).run()
        traces.append(trace.hexdigest())
    assert traces[0] != traces[1]


def test_another_seed_is_another_random_straggler():
    compute = Compute(0.02, parse_straggler("5x@0.3"))
    times = []
    for seed in (1, 1, 2):
        simulation = build(torus(), [9] * 4, seed=seed, compute=compute, network=NETWORKS["1gbit"])
        log = []
        simulation.run(on_step=lambda me, now, log=log: log.append((me.id, now)))
        times.append(log)
    assert times[0] == times[1] != times[2]


@every_strategy
@pytest.mark.parametrize("counts", [[1], [6], [6, 6], [1, 9], [4, 9, 2], [5, 1, 9, 3, 9]], ids=repr)
def test_unequal_numbers_of_batches_end_cleanly(strategy, counts):
    for seed in range(3):
        stepped, left = [], []

        def watch(record, stepped=stepped, left=left):
            if isinstance(record, Stepped):
                stepped.append(record.who)
            if isinstance(record, Left):
                left.append((record.who, record.step))

        simulation = build(strategy, counts, seed=seed, observers=[watch])
        simulation.run()
        assert [stepped.count(i) for i in range(len(counts))] == counts, f"seed {seed}"
        assert sorted(left) == list(enumerate(counts)), f"seed {seed}"
        assert simulation.total_samples == 2 * sum(counts)
        assert torch.isfinite(weights(simulation)).all(), f"seed {seed}"
        assert not list(simulation.on_the_way()), f"seed {seed}"


@every_strategy
def test_a_worker_without_any_batch_leaves_at_once(strategy):
    simulation = build(strategy, [0, 4, 4])
    simulation.run()
    assert [p.me.steps for p in simulation.workers] == [0, 4, 4]


@every_strategy
def test_stop_ends_every_worker_at_a_step_boundary(strategy):
    simulation = build(strategy, [100] * 3)
    simulation.run(stop=lambda sim: sim.total_samples >= 30)
    assert 30 <= simulation.total_samples <= 30 + 2 * 2 * 3
    assert all(p.left for p in simulation.workers)


@every_saved_strategy
@pytest.mark.parametrize("counts", [[9, 9, 9], [9, 3, 12, 5]], ids=repr)
def test_resumed_equals_continued(strategy, counts):
    def paused():
        simulation = build(strategy, counts, seed=5)
        simulation.run(pause_after=5)
        return simulation

    def second_half(simulation, trace):
        simulation.run()
        state = [(p.me.steps, p.me.version, repr(p.me.state), p.left) for p in simulation.participants]
        return weights(simulation), trace.hexdigest(), simulation.now_ns, simulation.total_samples, state

    saved = paused().checkpoint()
    assert all(state["steps"] <= 5 for state in saved["participants"])
    results = []
    for resume in (False, True, True):
        trace = TraceHash()
        simulation = build(strategy, counts, seed=5, observers=[trace])
        if resume:
            simulation.restore(saved)
        else:
            simulation.run(pause_after=5)
            trace.__init__()
        results.append(second_half(simulation, trace))
    for result in results[1:]:
        assert equal(result[0], results[0][0])
        assert result[1:] == results[0][1:]


def test_a_pause_is_not_needed_for_the_synchronous_to_be_the_same():
    for name in ("allreduce", "local_sgd", "ssp0", "dpsgd"):
        straight, paused = (build(STRATEGIES[name], [9, 9, 9]) for _ in range(2))
        straight.run()
        for steps in (2, 5):
            paused.run(pause_after=steps)
        paused.run()
        assert equal(weights(straight), weights(paused)), name


def test_a_checkpoint_holds_the_letters_that_wait():
    simulation = build(dpsgd(), [9, 9, 9])
    simulation.run(pause_after=4)
    saved = simulation.checkpoint()
    assert [len(state["letters"]) for state in saved["participants"]] == [2, 2, 2]


def test_restore_refuses_what_does_not_fit():
    simulation = build(torus(), [5, 5])
    simulation.run(pause_after=3)
    saved = simulation.checkpoint()
    with pytest.raises(UsageError, match="hasn't run"):
        simulation.restore(saved)
    with pytest.raises(UsageError, match="2 participants and this simulation 3"):
        build(torus(), [5, 5, 5]).restore(saved)
    with pytest.raises(UsageError, match=r"worker 1 had taken 3 batches .* ends after 1"):
        build(torus(), [5, 1]).restore(saved)


def test_no_checkpoint_in_the_middle():
    simulation = build(torus(), [5, 5])
    with pytest.raises(FastError, match="pause_after"):
        simulation.run(on_step=lambda me, now: simulation.checkpoint())


@pytest.mark.parametrize("name", ["dpsgd", "torus", "gossip"])
def test_every_letter_is_read_or_reported_as_dropped(name):
    sent, read, dropped = [], [], []

    def watch(record):
        match record:
            case Sent():
                sent.extend((record.who, to) for to in record.to)
                assert record.nbytes == len(record.to) * (8 * 20 + 256)
            case Included():
                read.append((record.sender, record.who))
            case Dropped():
                dropped.append((record.sender, record.to))

    build(STRATEGIES[name], [9, 4, 12, 7], observers=[watch]).run()
    assert sent
    assert sorted(sent) == sorted(read + dropped)


def test_the_time_of_a_synchronous_step_is_the_formula():
    network, nbytes = Network(1e6, 1e-3), 8 * 20
    simulation = build(allreduce(), [3, 3, 3], network=network, compute=Compute(0.02))
    simulation.run()
    one = 20_000_000 + round(2 * 2 / 3 * nbytes / 1e6 * 1e9) + 2 * 1_000_000
    assert simulation.now_ns == 3 * one
    simulation = build(ssp(bound=0), [3, 3, 3], network=network, compute=Compute(0.02))
    done = {}
    simulation.run(on_step=lambda me, now: done.update({me.id: now}))
    there_and_back = 2 * (round((nbytes + 256) / 1e6 * 1e9) + 1_000_000)
    assert set(done.values()) == {3 * (20_000_000 + there_and_back)}
