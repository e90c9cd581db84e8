"""The folder of a comparison: nothing that was measured is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fast.errors import FastError, UsageError
from fast.lab import Folder
from fast.lab.journal import write_atomically


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_line_is_there_as_soon_as_it_was_said(tmp_path: Path) -> None:
    with Folder.create(tmp_path / "a") as folder:
        folder.note("tick", tick=1, at=float("nan"))
        assert lines(folder.path) == [{"kind": "tick", "tick": 1, "at": None}]
        folder.finish("run", "one", {"score": 0.5})
        assert lines(folder.path)[1] == {"kind": "run", "key": "one", "values": {"score": 0.5}}


def test_what_was_finished_is_known_again_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    with Folder.create(tmp_path / "a") as folder:
        folder.finish("run", "one", {"score": 0.5})
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "run", "key": "two", "val')
    with Folder.resume(tmp_path / "a") as folder:
        assert folder.finished == {"one": {"score": 0.5}}
        folder.finish("run", "two", {"score": 0.6})
    assert [line["key"] for line in lines(tmp_path / "a")] == ["one", "two"]


def test_a_line_that_a_full_disk_has_torn_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    with Folder.create(tmp_path / "a") as folder:
        folder.finish("run", "one", {"score": 0.5})
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tick", "ru\n')
    with Folder.resume(tmp_path / "a") as folder:
        folder.finish("run", "two", {"score": 0.6})
    with Folder.resume(tmp_path / "a") as folder:
        assert list(folder.finished) == ["one", "two"]


def test_an_old_folder_is_not_written_over(tmp_path: Path) -> None:
    Folder.create(tmp_path / "a").close()
    with pytest.raises(UsageError, match="is there already"):
        Folder.create(tmp_path / "a")
    with pytest.raises(UsageError, match="no metrics"):
        Folder.resume(tmp_path)


def test_two_processes_dont_mix_their_lines(tmp_path: Path) -> None:
    with Folder.create(tmp_path / "a"), pytest.raises(UsageError, match="another process"):
        Folder.resume(tmp_path / "a")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_is_said_in_words_and_keeps_what_was_there(tmp_path: Path) -> None:
    with Folder.create(tmp_path / "a") as folder:
        folder.finish("run", "one", {"score": 0.5})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "metrics.jsonl").symlink_to("/dev/full")
    full = Folder(tmp_path / "full", resume=False)
    with pytest.raises(FastError, match=r"can't be written: No space left.*--resume"):
        full.note("tick")
    full.close()
    assert lines(tmp_path / "a")[0]["key"] == "one"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a disk that is always full")
def test_a_file_that_cant_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    write_atomically(file, b"old")
    (tmp_path / ".run.json.new").symlink_to("/dev/full")
    with pytest.raises(FastError, match="No space left"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"


def test_a_folder_that_cant_be_made_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"can't be made: Not a directory.*--runs") as raised:
        Folder.create(tmp_path / "file" / "a")
    assert "--resume" not in str(raised.value), "there is nothing to go on with"
