"""Excerpts of runs: slices that add up, timelines, and traces that keep the rules of their format."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import msgspec
import pytest

from fast.engine import current_seat
from fast.engine.threads import run_threads
from fast.errors import UsageError
from fast.lab.recording import Arrival, Departure, Slice
from fast.lab.tracing import (
    RECORD_LIMIT,
    Excerpt,
    Recorder,
    append_events,
    records_for,
    timeline_of,
    trace_events,
)
from fast.loop import consolidate, join
from fast.loop.loading import strategy_from
from fast.loop.serving import serve
from fast.loop.session import close_sessions
from fast.sim import Compute, Network, Straggler
from fast.trace import (
    Applied,
    Computed,
    Included,
    Left,
    Meter,
    Received,
    Reduced,
    Sent,
    Stepped,
    Turned,
    Waited,
)
from preset_bodies import batches, loss_of, make_model, make_optimizer, simulation
from table import DIFFERENT

every_call = pytest.mark.parametrize("call", DIFFERENT)
SLOW = Network(1e6, 2e-3)
UNEQUAL = Compute(0.02, Straggler(3.0, share=0.3), workers_s={1: 0.013, 3: 0.05})


def recorded(records, limit=RECORD_LIMIT):
    recorder = Recorder("worker 0", limit)
    for record in records:
        recorder(record)
    return recorder.excerpt()


def simulated(call, steps, **options):
    """Excerpts and meters of a simulated run, and all of its records."""
    strategy, records = strategy_from(call), []
    names = [f"worker {i}" for i in range(len(steps))]
    names += [f"server {i}" for i in range(strategy.servers(len(steps)))]
    recorders, meters = [Recorder(name) for name in names], [Meter() for _ in names]

    def observe(record):
        records.append(record)
        recorders[record.who](record)
        meters[record.who](record)

    run = simulation(strategy, steps, observers=[observe], **{"compute": UNEQUAL, "network": SLOW, **options})
    run.run()
    return [recorder.excerpt() for recorder in recorders], meters, records


def on_threads(call, workers=3, steps=8):
    """Excerpts and meters of a run with a real clock."""
    excerpts, meters = {}, {}

    def watch(name):
        recorder, meters[name] = Recorder(name), Meter()
        return recorder

    def body(id):
        recorder = watch(f"worker {id}")
        model = make_model()
        optimizer = make_optimizer(model)
        join(model, optimizer, call, observers=[recorder, meters[recorder.name]])
        for batch in batches(id, steps):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        consolidate(model)
        close_sessions(current_seat())
        excerpts[id] = recorder.excerpt()

    def server(strategy, number):
        recorder = watch(f"server {number}")
        serve(strategy, number, observers=[recorder, meters[recorder.name]])
        excerpts[workers + number] = recorder.excerpt()

    run_threads(workers, body, server)
    return [excerpts[who] for who in sorted(excerpts)], meters


# Slices


STEP = (
    Sent(0, 40, (1,), "mix", 600, 0, 10),
    Computed(0, 150, 50),
    Waited(0, 190, (1,), "mix", 30),
    Received(0, 192, 1, "mix", (0,)),
    Received(0, 192, 2, "mix", (0,)),
    Included(0, 193, 1, "mix", 0),
    Reduced(0, 230, 600, (0, 1), 20),
    Applied(0, 235, 0),
    Stepped(0, 240, 1, 32),
    Sent(0, 250, (1, 2), "mix", 600, 1, 5),
    Turned(0, 260, 150),
)


def test_a_step_is_cut_into_slices_that_follow_each_other():
    excerpt = recorded(
        [*STEP, Computed(0, 360, 260), Received(0, 360, 1, "mix", (1, 2)), Turned(0, 360, 360)]
    )
    assert excerpt.slices == [
        Slice("send", 30, 10, "mix to 1"),
        Slice("compute", 50, 100),
        Slice("merge", 150, 10),
        Slice("wait", 160, 30, "mix of 1"),
        Slice("merge", 190, 2),
        Slice("merge", 192, 18),
        Slice("send", 210, 20, "mean of 0, 1"),
        Slice("merge", 230, 15),
        Slice("send", 245, 5, "mix to 1, 2"),
        Slice("merge", 250, 10),
        Slice("compute", 260, 100),
        Slice("merge", 360, 0),
    ]
    assert excerpt.sent == [Departure(0, [1], "mix", 0), Departure(8, [1, 2], "mix", 1)]
    assert excerpt.read == [
        Arrival(5, 1, "mix", [0]),
        Arrival(5, 2, "mix", [0]),
        Arrival(11, 1, "mix", [1, 2]),
    ]
    assert (excerpt.name, excerpt.who, excerpt.stopped_ns) == ("worker 0", 0, None)


def test_what_is_read_after_the_last_step_has_a_slice_too():
    excerpt = recorded([*STEP, Received(0, 500, 1, "mix", (1,)), Left(0, 520, 1)])
    assert excerpt.slices[-1] == Slice("merge", 500, 20)
    assert excerpt.read[-1] == Arrival(len(excerpt.slices) - 1, 1, "mix", [1])


def test_slices_say_what_they_are_for():
    told = recorded(
        [
            Waited(3, 10, (), "news", 10),
            Waited(3, 20, (0, 1, 2, 4, 5), "mix", 10),
            Reduced(3, 30, 8, tuple(range(256)), 10),
            Turned(3, 30, 0),
        ]
    )
    assert [piece.note for piece in told.slices] == ["news of anybody", "mix of 5 peers", "mean of 256 peers"]
    assert told.who == 3


def test_a_recorder_keeps_so_many_records_and_says_when_it_stopped():
    whole = recorded(STEP)
    assert recorded(STEP, limit=8).stopped_ns == 260 and recorded(STEP, limit=8).slices == whole.slices
    cut = recorded(STEP, limit=3)
    assert cut.stopped_ns == 190
    assert cut.slices == whole.slices[:2], "a turn that didn't end within the excerpt isn't in it"
    assert recorded([]) == Excerpt("worker 0")


def test_many_participants_share_the_room():
    assert [records_for(n) for n in (1, 8, 256, 10_000)] == [20_000, 20_000, 1_562, 200]


def test_an_excerpt_crosses_a_process_boundary_as_json():
    excerpt = recorded(STEP, limit=8)
    plain = json.loads(json.dumps(msgspec.to_builtins(excerpt)))
    assert plain["slices"][0] == ["send", 30, 10, "mix to 1"]
    assert msgspec.convert(plain, Excerpt) == excerpt


@every_call
def test_slices_add_up_to_what_the_meter_says(call):
    excerpts, meters, _ = simulated(call, [9, 6, 11, 7])
    for excerpt, meter in zip(excerpts, meters, strict=True):
        total = Counter()
        for piece in excerpt.slices:
            total[piece.kind] += piece.duration_ns
        assert total["compute"] == meter.computed_ns
        assert total["send"] == meter.sent_ns
        assert total["wait"] == meter.waited_ns
        assert total["merge"] == meter.merged_ns
        check_slices(excerpt)
        assert excerpt.slices[0].start_ns == 0


def check_slices(excerpt):
    end_ns = excerpt.slices[0].start_ns
    for piece in excerpt.slices:
        assert piece.duration_ns >= 0
        assert piece.start_ns >= end_ns, "slices overlap"
        end_ns = piece.end_ns


# Timelines


def test_a_timeline_joins_neighbours_and_is_counted_from_the_beginning():
    second = Excerpt("server 0", 2, [Slice("wait", 10, 60), Slice("merge", 70, 0), Slice("wait", 70, 200)])
    timeline = timeline_of([recorded(STEP), second], 55, 40)
    assert timeline == {
        "participants": [
            {
                "name": "worker 0",
                "slices": [
                    ["compute", 0.0, pytest.approx(95e-9)],
                    ["merge", pytest.approx(95e-9), pytest.approx(10e-9)],
                    ["wait", pytest.approx(105e-9), pytest.approx(30e-9)],
                    ["merge", pytest.approx(135e-9), pytest.approx(20e-9)],
                    ["send", pytest.approx(155e-9), pytest.approx(20e-9)],
                    ["merge", pytest.approx(175e-9), pytest.approx(15e-9)],
                    ["send", pytest.approx(190e-9), pytest.approx(5e-9)],
                    ["merge", pytest.approx(195e-9), pytest.approx(10e-9)],
                ],
            },
            {"name": "server 0", "slices": [["wait", 0.0, pytest.approx(215e-9)]]},
        ]
    }


def test_a_timeline_ends_where_the_first_has_done_enough_steps():
    excerpts, _, _ = simulated("ssp(bound=inf)", [60, 60], compute=Compute(0.02, workers_s={1: 0.05}))
    timeline = timeline_of(excerpts, 0, 10)
    fast, slow, server = timeline["participants"]
    assert sum(kind == "compute" for kind, *_ in fast["slices"]) == 10
    end_s = max(start_s + duration_s for _, start_s, duration_s in fast["slices"])
    for participant in (slow, server):
        last = participant["slices"][-1]
        assert last[1] + last[2] <= end_s + 1e-9
    assert sum(kind == "compute" for kind, *_ in slow["slices"]) == 5


def test_a_timeline_ends_where_records_end():
    whole = Excerpt(
        "worker 0", 0, [Slice("compute", 0, 50), Slice("merge", 50, 50), Slice("compute", 100, 50)]
    )
    cut = Excerpt("worker 1", 1, [Slice("compute", 0, 60)], stopped_ns=70)
    both = timeline_of([whole, cut], 0)["participants"]
    assert both[0]["slices"] == [["compute", 0.0, 50e-9], ["merge", 50e-9, 10e-9]]
    assert both[1]["slices"] == [["compute", 0.0, 60e-9]]


def test_a_timeline_of_many_stays_small():
    def long(who):
        pieces = (Slice(("compute", "wait")[k % 2], 10 * k, 10) for k in range(2_000))
        return Excerpt(f"worker {who}", who, list(pieces))

    timeline = timeline_of([long(who) for who in range(300)], 0)
    drawn = [len(participant["slices"]) for participant in timeline["participants"]]
    assert sum(drawn) <= 4_000 and min(drawn) == max(drawn) == 10
    instant = [Excerpt("worker 0", 0, [Slice(("send", "wait")[k % 2], k, 1) for k in range(20_000)])]
    assert len(timeline_of(instant, 0)["participants"][0]["slices"]) <= 4_000


def test_a_run_that_recorded_nothing_has_an_empty_timeline():
    assert timeline_of([Excerpt("worker 0")], 0) == {"participants": [{"name": "worker 0", "slices": []}]}


# Traces


def check_trace(events):
    """The rules of the trace event format, and how viewers bind the ends of arrows. Returns the arrows
    as (begin, end), each with the slice that it belongs to."""
    tracks, named, flows = defaultdict(list), Counter(), defaultdict(list)
    for event in events:
        assert isinstance(event["pid"], int) and event["pid"] > 0
        if event["ph"] == "M":
            assert event["name"] in (
                "process_name",
                "process_sort_index",
                "thread_name",
                "thread_sort_index",
            )
            named[event["name"], event["pid"], event.get("tid")] += 1
            (argument,) = event["args"].values()
            assert isinstance(argument, int if event["name"].endswith("index") else str)
            continue
        assert event["ph"] in "Xsf"
        assert isinstance(event["tid"], int) and event["tid"] not in (0, event["pid"])
        assert isinstance(event["ts"], float) and event["ts"] >= 0
        assert isinstance(event["name"], str) and isinstance(event["cat"], str)
        tracks[event["pid"], event["tid"]].append(event)
    assert set(named.values()) <= {1}
    for (pid, tid), track in tracks.items():
        assert named["process_name", pid, None] == named["thread_name", pid, tid] == 1
        _check_track(track, flows)
    for ends in flows.values():
        assert sorted(end["ph"] for end, _ in ends) == ["f", "s"], "an arrow has one beginning and one end"
    arrows = [sorted(ends, key=lambda end: end[0]["ph"] == "f") for ends in flows.values()]
    for (begin, _), (end, _) in arrows:
        assert begin["ts"] <= end["ts"], "an arrow goes back in time"
        assert (begin["name"], begin["cat"], begin["pid"]) == (end["name"], end["cat"], end["pid"])
        assert begin["tid"] != end["tid"]
    return arrows


def _check_track(track, flows):
    """Time never goes back; slices don't overlap; an end of an arrow lies in the slice begun last."""
    current, end_ns = None, 0
    assert [event["ts"] for event in track] == sorted(event["ts"] for event in track)
    for event in track:
        if event["ph"] == "X":
            start_ns = round(event["ts"] * 1000)
            assert event["dur"] >= 0 and start_ns >= end_ns
            current, end_ns = event, start_ns + round(event["dur"] * 1000)
        else:
            assert current is not None and current["ts"] <= event["ts"] <= current["ts"] + current["dur"]
            assert ("bp" in event) == (event["ph"] == "f")
            flows[event["id"]].append((event, current))


@every_call
def test_a_trace_keeps_the_rules_and_has_every_letter(call):
    excerpts, _, records = simulated(call, [9, 6, 11, 7])
    arrows = check_trace(list(trace_events(0, call, excerpts, 0)))
    for (_, sending), (_, reading) in arrows:
        assert sending["name"] == "send" and reading["name"] in ("merge", "compute")
    received = [record for record in records if isinstance(record, Received)]
    read = Counter(
        (record.sender, record.who, record.tag, record.at_ns) for record in received for _ in record.steps
    )
    drawn = Counter((begin["tid"] - 1000, end["tid"] - 1000, end["name"], round(end["ts"] * 1e3))
                    for (begin, _), (end, _) in arrows)  # fmt: skip
    assert drawn == read
    sent = {(record.who, peer, record.tag, record.at_ns)
            for record in records if isinstance(record, Sent) for peer in record.to}  # fmt: skip
    assert {(begin["tid"] - 1000, end["tid"] - 1000, begin["name"], round(begin["ts"] * 1e3))
            for (begin, _), (end, _) in arrows} <= sent  # fmt: skip


@every_call
def test_a_trace_of_a_real_clock_keeps_the_rules_too(call):
    excerpts, meters = on_threads(call)
    began_ns = min(excerpt.slices[0].start_ns for excerpt in excerpts)
    for excerpt in excerpts:
        check_slices(excerpt)
        computed_ns = sum(piece.duration_ns for piece in excerpt.slices if piece.kind == "compute")
        assert computed_ns == meters[excerpt.name].computed_ns
    arrows = check_trace(list(trace_events(3, call, excerpts, began_ns)))
    read = [letter for excerpt in excerpts for letter in excerpt.read]  # what was sent needn't have been read
    assert len(arrows) == sum(len(letter.steps) for letter in read)
    assert any(meter.links for meter in meters.values()) or not read
    assert all(sending["dur"] > 0 for (_, sending), _ in arrows)
    late = check_trace(list(trace_events(3, call, excerpts, began_ns + 500_000)))
    assert len(late) == len(arrows), "what was before the beginning stands at it"


def test_a_trace_says_who_is_who_and_what_was_sent():
    other = Excerpt("worker 1", 1, [Slice("compute", 60, 200), Slice("merge", 260, 20)], [],
                    [Arrival(1, 0, "mix", [0])])  # fmt: skip
    events = list(trace_events(1, "dpsgd", [recorded(STEP), other], 30))
    assert events[:6] == [
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "dpsgd"}},
        {"ph": "M", "pid": 2, "name": "process_sort_index", "args": {"sort_index": 2}},
        {"ph": "M", "pid": 2, "tid": 1000, "name": "thread_name", "args": {"name": "worker 0"}},
        {"ph": "M", "pid": 2, "tid": 1000, "name": "thread_sort_index", "args": {"sort_index": 0}},
        {"ph": "M", "pid": 2, "tid": 1001, "name": "thread_name", "args": {"name": "worker 1"}},
        {"ph": "M", "pid": 2, "tid": 1001, "name": "thread_sort_index", "args": {"sort_index": 1}},
    ]
    assert events[6] == {
        "ph": "X", "pid": 2, "tid": 1000, "ts": 0.0, "dur": 0.01, "name": "send", "cat": "send",
        "args": {"what": "mix to 1"},
    }  # fmt: skip
    ((begin, sending), (end, reading)) = check_trace(events)[0]
    assert (begin["ts"], sending) == (0.0, events[6])
    assert (end["ts"], reading["ts"], reading["dur"]) == (0.23, 0.23, 0.02)


def test_letters_that_look_alike_are_matched_in_their_order():
    sender = Excerpt("server 0", 1, [Slice("send", 10, 1), Slice("send", 20, 1), Slice("send", 30, 1)],
                     [Departure(k, [0], "reply", 0) for k in range(3)])  # fmt: skip
    reader = Excerpt("worker 0", 0, [Slice("merge", 15, 1), Slice("merge", 25, 1)], [],
                     [Arrival(0, 1, "reply", [0]), Arrival(1, 1, "reply", [0])])  # fmt: skip
    arrows = check_trace(list(trace_events(0, "ssp", [reader, sender], 0)))
    assert [(begin["ts"], end["ts"]) for (begin, _), (end, _) in arrows] == [(0.01, 0.015), (0.02, 0.025)]


def test_arrows_of_several_trainings_are_never_confused():
    excerpts, _, _ = simulated("dpsgd", [5, 5])
    one, two = (list(trace_events(process, "dpsgd", excerpts, 0)) for process in (0, 1))
    assert len(check_trace(one + two)) == 2 * len(check_trace(one))


# The file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def test_a_trace_file_is_valid_after_every_call(path):
    written = []
    for number in range(4):
        events = [{"ph": "X", "name": f"{number}.{k}", "ts": k / 3} for k in range(number)]
        append_events(path, events)
        written += events
        assert json.loads(path.read_text()) == written


def test_a_run_that_was_killed_leaves_a_file_that_is_gone_on_with(path):
    first = [{"name": "a", "args": {"n": 1}}, {"name": "b"}]
    append_events(path, first)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        append_events(path, [{"name": "later"}])
        *kept, later = json.loads(path.read_text())
        assert later == {"name": "later"}
        assert kept == first[: len(kept)]
        assert len(kept) >= whole[:length].count(b",\n")


def test_events_that_fail_half_way_leave_what_was_there(path):
    append_events(path, [{"name": "a"}])

    def failing():
        yield {"name": "b"}
        raise KeyError("no more")

    with pytest.raises(KeyError):
        append_events(path, failing())
    append_events(path, [{"name": "c"}])
    assert [event["name"] for event in json.loads(path.read_text())] == ["a", "b", "c"]


def test_long_events_survive_as_well(path):
    append_events(path, [{"name": "x" * 200_000}])
    path.write_bytes(path.read_bytes()[:-30])
    append_events(path, [{"name": "y"}])
    assert json.loads(path.read_text())[-1] == {"name": "y"}


def test_another_file_is_not_written_into(path):
    path.write_text("{}")
    with pytest.raises(UsageError, match="is no trace"):
        append_events(path, [])
    assert path.read_text() == "{}"
