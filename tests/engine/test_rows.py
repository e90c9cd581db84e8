"""What a participant writes, as lines and as progress bars that still change."""

from __future__ import annotations

import io
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from fast.engine.messages import Channel
from fast.engine.rows import LINE_BYTES, Rows


def read(*pieces: bytes) -> list[tuple[str, bool]]:
    """The lines, and which of them are bars."""
    found: list[tuple[str, bool]] = []
    rows = Rows(lambda text, bar: found.append((text, bar)))
    for piece in pieces:
        rows.feed(piece)
    rows.end()
    return found


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\n\ntwo", [("one", False), ("", False), ("two", False)]),
        (b"of Windows\r\nboth\r\n", [("of Windows", False), ("both", False)]),
        (b"50 %\r100 %\n", [("100 %", True)]),
        (b"50 %\r", [("50 %", False)]),
        (b"50 %\r60 %\r", [("60 %", True)]),
        (b"\r 50 %\r      \rwritten\n\r 60 %\n", [("written", False), (" 60 %", True)]),
        (b"\r 99 %\r     \r\r next\n", [(" next", True)]),
        (b"\r 99 %\r     \r", []),
        (b"\r outer\n\r inner\x1b[A\r OUTER\n\r INNER\x1b[A\n\n", [(" OUTER", True), (" INNER", True)]),
        (b"\r a\n\n\n\x1b[2A\rb\n", [(" a", True), ("", False), ("", False), ("b", True)]),
        (b"colour \x1b[31mred\x1b[0m \x1b\n", [("colour \x1b[31mred\x1b[0m \x1b", False)]),
        (b"half \x1b[", [("half \x1b[", False)]),
    ],
)
def test_lines_and_bars(data, lines):
    assert read(data) == lines


@given(
    st.lists(st.sampled_from([b"a", b"bc", b" ", b"\r", b"\n", b"\x1b[A", b"\x1b[2A", b"\xc3\xa9", b"\x1b"])),
    st.integers(1, 5),
)
def test_it_does_not_matter_in_which_pieces_it_arrives(words, size):
    data = b"".join(words)
    assert read(*(data[at : at + size] for at in range(0, len(data), size))) == read(data)


def tqdm_output(nested: bool) -> bytes:
    """What real bars write; every update is written, however fast."""
    out = io.StringIO()
    options = {"file": out, "mininterval": 0, "miniters": 1, "ascii": True}
    for epoch in tqdm(range(3), desc="epochs", **options):
        for _ in tqdm(range(20), desc="steps", leave=False, **options) if nested else ():
            pass
        tqdm.write(f"epoch {epoch}", file=out)
    return out.getvalue().encode()


@pytest.mark.parametrize("nested", [False, True])
def test_bars_of_tqdm_leave_one_line(nested):
    lines = read(tqdm_output(nested))
    assert [text for text, bar in lines if not bar] == ["epoch 0", "epoch 1", "epoch 2"]
    bars = [text for text, bar in lines if bar]
    assert len(bars) == 1 and re.match(r"epochs: 100%.* 3/3 ", bars[0])


def test_bars_that_are_under_way_are_shown_as_on_a_terminal():
    rows = Rows(lambda text, bar: None)
    rows.feed(b"plain\n\repochs 1/3\n\rsteps 4/20\x1b[A")
    assert rows.bars() == ["epochs 1/3", "steps 4/20"]
    rows.feed(b"\n\rsteps 5/20\x1b[A\repochs 2/3")
    assert rows.bars() == ["epochs 2/3", "steps 5/20"]
    rows.feed(b"\n\r          \r\x1b[A")
    assert rows.bars() == ["epochs 2/3"]


def test_a_bar_that_was_left_behind_is_a_line_once_time_has_passed():
    found: list[str] = []
    rows = Rows(lambda text, bar: found.append(text))
    rows.feed(b"\r100 %\n")
    assert rows.bars() == ["100 %"] and not found, "a bar above may still change"
    rows.settle()
    assert rows.bars() == [] and found == ["100 %"]


def test_bars_do_not_pile_up():
    found: list[str] = []
    rows = Rows(lambda text, bar: found.append(text))
    rows.feed(b"".join(b"\rbar %d\n" % number for number in range(1000)))
    assert len(rows.bars()) < 20 and len(found) > 980
    assert found == [f"bar {number}" for number in range(len(found))]


def test_a_line_without_an_end_comes_in_pieces():
    """What is held stays bounded, and no letter is cut in two."""
    found: list[str] = []
    rows = Rows(lambda text, bar: found.append(text))
    text = "€" * LINE_BYTES  # three bytes each
    for at in range(0, len(text), 1000):
        rows.feed(text[at : at + 1000].encode())
        assert len(text[: at + 1000].encode()) - len("".join(found).encode()) <= LINE_BYTES
    rows.feed(b"\nnext\n")
    assert "".join(found) == text + "next" and found[-1] == "next"
    assert all(len(line.encode()) <= LINE_BYTES for line in found)


def test_a_queue_never_waits_for_its_reader_and_loses_nothing():
    ours, theirs = socket.socketpair()
    writer, reader = Channel(ours), Channel(theirs)
    sent = [{"number": number, "text": "x" * 100_000} for number in range(50)]
    for message in sent:
        writer.queue(message)
    assert writer.queued_bytes > 1_000_000, "nobody has read, and nothing has waited"
    got = []
    while len(got) < len(sent):
        got += reader.read(wait=False) or []
        writer.flush()
    assert got == sent and not writer.queued_bytes
    reader.close()
    writer.queue(sent[0])
    assert not writer.queued_bytes, "nobody will read it"
    writer.close()
