"""The built-in tasks, and how tasks are found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import lab_sets as sets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from typer.testing import CliRunner

import fast
from fast.cli.app import make_app
from fast.errors import UsageError
from fast.lab import datasets, load_task
from fast.lab.datasets import DataSet, State
from fast.lab.datasets.installing import install
from fast.lab.tasks import TASKS, Digits, Kjv, Quadratic, samples_of, target_of
from fast.lab.tasks.kjv import CharacterModel
from fast.lab.tasks.listing import facts_of
from fast.lab.tasks.mnist import Mnist, MnistSmall, mlp

HERE = Path(__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one of this test's own."""
    monkeypatch.setenv("FAST_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


class TinyMnist(Mnist):
    """The rules of the real ones on a few random images."""

    name = "tiny"
    target = 0.5
    rate: ClassVar[float] = 0.1
    source: ClassVar[DataSet] = sets.TINY_MNIST
    validation_images: ClassVar[int] = 12

    def model(self) -> nn.Module:
        return mlp(784, 10)


@pytest.fixture
def tiny(cache: Path) -> TinyMnist:
    install(sets.TINY_MNIST, sets.mnist_contents())
    return TinyMnist()


@pytest.fixture
def text(cache: Path, tmp_path: Path) -> str:
    """A text of the user's own stands in for the Bible."""
    content = "".join(f"{number:07d}\n" for number in range(25_000))
    (tmp_path / "own.txt").write_text(content)
    datasets.take(datasets.KJV, tmp_path / "own.txt", lambda words: None)
    return content


class Says(nn.Module):
    """A model that gives these answers, piece after piece, whatever it is shown."""

    def __init__(self, answers: Tensor, classes: int) -> None:
        super().__init__()
        self._answers, self._classes, self._said = answers, classes, 0

    def forward(self, x: Tensor) -> Tensor:
        answers = self._answers[self._said : self._said + len(x)]
        self._said += len(x)
        return F.one_hot(answers.long(), self._classes).float()


# Digits


def test_digits_has_every_image_once() -> None:
    task = Digits()
    parts = [task.batch(task.train()), task.validation(), task.test()]
    assert [len(labels) for _, labels in parts] == [896, 201, 700]
    pixels = torch.cat([images for images, _ in parts]) * 16
    ours = sorted(map(tuple, pixels.int().tolist()))
    assert ours == sorted(map(tuple, load_digits().data.astype(int).tolist()))
    assert parts[0][0].dtype == torch.float32 and float(parts[0][0].max()) == 1.0


def test_the_labels_of_digits_belong_to_their_images() -> None:
    data, task = load_digits(), Digits()
    known = {
        tuple(image): label for image, label in zip(data.data.astype(int).tolist(), data.target, strict=True)
    }
    for images, labels in (task.batch(task.train()), task.validation(), task.test()):
        assert [known[tuple(image)] for image in (images * 16).int().tolist()] == labels.tolist()


def test_the_test_images_of_digits_are_a_fixed_choice() -> None:
    """The first 700 of one permutation, whatever the state of torch's generator."""
    torch.manual_seed(12345)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(20_190_213))
    assert Digits().test()[1].tolist() == load_digits().target[order[:700].numpy()].tolist()


def test_a_batch_is_what_its_indices_say() -> None:
    task = Digits()
    images, labels = task.batch([5, 0, 5])
    assert torch.equal(images[0], images[2]) and not torch.equal(images[0], images[1])
    assert labels[1] == task.batch([0])[1][0]


# MNIST


def first_pixels(images: Tensor) -> list[int]:
    return images[:, 0].tolist()


def test_mnist_is_cut_into_parts_that_have_nothing_in_common(tiny: TinyMnist) -> None:
    train, validation, test = tiny.batch(tiny.train()), tiny.validation(), tiny.test()
    assert [len(labels) for _, labels in (train, validation, test)] == [48, 12, 20]
    given, _ = sets.drawn(60, seed=1)
    ours = sorted(map(tuple, torch.cat([train[0], validation[0]]).tolist()))
    assert ours == sorted(map(tuple, given.tolist()))
    assert torch.equal(test[0], torch.from_numpy(sets.drawn(20, seed=2)[0]))
    for images, labels in (train, validation, test):
        assert first_pixels(images) == labels.tolist(), "an image has another one's label"


def test_the_labels_of_mnist_are_those_of_its_training_samples(tiny: TinyMnist) -> None:
    assert list(tiny.labels()) == tiny.batch(tiny.train())[1].tolist()
    assert tiny.labels()[7] == tiny.batch([7])[1].item()


def test_the_split_of_mnist_doesnt_depend_on_torchs_generator(tiny: TinyMnist) -> None:
    before = tiny.validation()[0]
    torch.manual_seed(99)
    fresh = type("Again", (TinyMnist,), {"validation_images": 13})()
    assert torch.equal(fresh.validation()[0][:12], before)


def test_images_stay_bytes_and_models_standardize_them(tiny: TinyMnist) -> None:
    images, _ = tiny.batch([0, 1, 2])
    assert images.dtype == torch.uint8
    expected = (images.double() / 255 - 0.1307) / 0.3081
    assert torch.allclose(mlp(784, 5)[0](images).double(), expected, atol=1e-6)
    assert images.dtype == torch.uint8, "the model changed what it was shown"


def test_small_mnist_is_cut_into_parts_that_have_nothing_in_common(cache: Path) -> None:
    install(sets.TINY_SMALL, sets.small_contents())
    task = MnistSmall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MnistSmall, "source", sets.TINY_SMALL)
        parts = [task.batch(task.train()), task.validation(), task.test()]
        assert list(task.labels()) == parts[0][1].tolist()
    assert [len(labels) for _, labels in parts] == [70, 10, 20]
    ours = sorted(map(tuple, torch.cat([images for images, _ in parts]).tolist()))
    assert ours == sorted(map(tuple, sets.drawn(100, seed=3)[0].tolist()))


@pytest.mark.parametrize("images", [20, 2050])
def test_the_score_is_the_share_of_right_answers(tiny: TinyMnist, images: int) -> None:
    """Also of more images than are scored at once."""
    labels = torch.arange(images) % 10
    batch = torch.zeros(images, 784, dtype=torch.uint8), labels
    assert tiny.score(Says(labels, 10), batch) == 1.0
    assert tiny.score(Says(torch.zeros(images), 10), batch) == pytest.approx(0.1)
    wrong = labels.clone()
    wrong[:5] = (wrong[:5] + 1) % 10
    assert tiny.score(Says(wrong, 10), batch) == pytest.approx(1 - 5 / images)


def test_scoring_looks_at_pieces_and_keeps_no_graph(tiny: TinyMnist) -> None:
    seen: list[tuple[int, bool]] = []

    class Watching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((len(x), torch.is_grad_enabled()))
            return torch.zeros(len(x), 10)

    tiny.score(Watching(), (torch.zeros(2500, 784, dtype=torch.uint8), torch.zeros(2500, dtype=torch.int64)))
    assert seen == [(1000, False), (1000, False), (500, False)]


# The language model


def test_windows_of_text_are_cut_into_parts_that_have_nothing_in_common(text: str) -> None:
    task = Kjv()
    train, validation, test = task.batch(task.train()), task.validation(), task.test()
    windows = [text[start : start + 65] for start in range(0, len(text) - 64, 65)]
    ours = [bytes(row.tolist()).decode() for part in (train, validation, test) for row in part]
    assert sorted(ours) == sorted(windows) and len(set(windows)) == len(windows)
    assert len(validation) == len(test) == 48, "one block of 16 windows in 64, three times"
    assert len(samples := task.train()) == len(train) == len(windows) - 96 == samples_of(task) and samples[-1]


def test_sections_of_the_text_are_its_classes(text: str) -> None:
    task = Kjv()
    labels = list(task.labels())
    assert labels == sorted(labels) and set(labels) == set(range(10))
    assert len(labels) == len(task.train())
    assert labels[0] == 0 and bytes(task.batch([0])[0].tolist()) == text[:65].encode()


def test_a_character_model_sees_only_what_came_before() -> None:
    torch.manual_seed(0)
    model = CharacterModel()
    for parameter in model.parameters():  # a fresh one has layers that add nothing
        nn.init.normal_(parameter, std=0.3)
    some = torch.randint(0, 256, (3, 64), dtype=torch.uint8)
    other = some.clone()
    other[:, 40:] = torch.randint(0, 256, (3, 24), dtype=torch.uint8)
    before, after = model(some), model(other)
    assert before.shape == (3, 64, 256)
    assert torch.allclose(before[:, :40], after[:, :40], atol=1e-5)
    assert not torch.allclose(before[:, 40:], after[:, 40:], atol=1e-2)


def test_a_character_model_is_asked_for_the_next_character() -> None:
    """Its loss is small only for a model that knows what follows."""
    task = Kjv()
    batch = torch.arange(65, dtype=torch.uint8).repeat(4, 1)

    class Next(nn.Module):
        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

        def forward(self, text: Tensor) -> Tensor:
            return 50 * F.one_hot(text.long() + self.step, 256).float()

    assert float(task.loss(Next(1), batch)) < 1e-6 and task.score(Next(1), batch) == 1.0
    assert float(task.loss(Next(0), batch)) > 40 and task.score(Next(0), batch) == 0.0


def test_text_that_is_scored_in_pieces(text: str) -> None:
    """A constant answer is right as often as that character occurs."""
    task = Kjv()
    batch = task.batch(range(150))

    class Always(nn.Module):
        def forward(self, text: Tensor) -> Tensor:
            return F.one_hot(torch.full(text.shape, ord("0")), 256).float()

    share = float((batch[:, 1:] == ord("0")).double().mean())
    assert 0 < share < 1 and task.score(Always(), batch) == pytest.approx(share)


# Least squares


def test_the_optimum_is_that_of_least_squares() -> None:
    task = Quadratic()
    x, y = (part.double().numpy() for part in task.batch(task.train()))
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    assert np.allclose(task.optimum().numpy(), best, atol=1e-9)


def linear(weights: Tensor) -> nn.Module:
    model = Quadratic().model()
    with torch.no_grad():
        next(model.parameters()).copy_(weights)
    return model


def test_the_score_is_the_share_of_the_way_to_the_optimum() -> None:
    task = Quadratic()
    batch, best = task.test(), task.optimum()
    assert task.score(linear(best), batch) == pytest.approx(1.0, abs=1e-6)
    assert task.score(task.model(), batch) == pytest.approx(0.0, abs=1e-9)
    assert task.score(linear(best / 2), batch) == pytest.approx(0.75, abs=1e-6), "f is quadratic along a line"
    assert task.score(linear(-best), batch) == 0.0
    assert task.score(linear(best * torch.nan), batch) == 0.0


def test_the_loss_of_a_batch_has_the_gradient_of_least_squares() -> None:
    task = Quadratic()
    model = linear(torch.linspace(-1, 1, 32))
    x, y = task.batch(range(100, 164))
    task.loss(model, (x, y)).backward()  # type: ignore[no-untyped-call]
    expected = x.T @ (x @ torch.linspace(-1, 1, 32) - y) / 64
    assert torch.allclose(next(model.parameters()).grad.squeeze(), expected, atol=1e-5)  # type: ignore[union-attr]


def test_the_classes_of_least_squares_have_optima_of_their_own() -> None:
    """So that a split by class makes workers disagree."""
    task = Quadratic()
    labels = torch.tensor(task.labels())
    x, y = (part.double() for part in task.batch(task.train()))
    assert len(labels) == len(y) and set(labels.tolist()) == set(range(8))
    best = task.optimum()
    for cluster in range(8):
        mine = labels == cluster
        own = torch.linalg.lstsq(x[mine], y[mine, None]).solution.squeeze()
        assert float((own - best).norm() / best.norm()) > 0.1


# All of them


@pytest.mark.parametrize(
    ("name", "weights_bytes", "samples", "shape"),
    [
        ("digits", 19_240, 896, (64,)),
        ("quadratic", 128, 4096, (32,)),
        ("mnist-small", 203_560, 3500, (784,)),
        ("mnist-mlp", 203_560, 55_000, (784,)),
        ("mnist-cnn", 217_256, 55_000, (784,)),
        ("mnist-wide", 7_454_760, 55_000, (784,)),
        ("kjv", 348_672, 62_383, (64,)),
    ],
)
def test_sizes_are_known_without_data(
    cache: Path, name: str, weights_bytes: int, samples: int, shape: tuple[int]
) -> None:
    task = TASKS[name]()
    facts = facts_of(task)
    assert (facts.weights_bytes, facts.train_samples) == (weights_bytes, samples)
    assert all(state in (State.MISSING, State.BUNDLED) for state in facts.data.values())
    integers = torch.zeros(3, *shape, dtype=torch.uint8)
    shown = integers if name.startswith(("mnist", "kjv")) else integers.float()
    assert task.model()(shown).shape[0] == 3


def test_the_convolutions_are_small() -> None:
    assert facts_of(TASKS["mnist-cnn"]()).parameters < 60_000


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_complete(name: str) -> None:
    task = TASKS[name]()
    assert task.name == name and task.about and 0 < target_of(task) < 1 and task.epochs > 0
    optimizer = task.optimizer(task.model())
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.defaults["momentum"] == 0 and optimizer.defaults["weight_decay"] == 0


def train_epoch(
    task: fast.Task, model: nn.Module, optimizer: torch.optim.Optimizer, order: torch.Generator
) -> None:
    """As one worker with the batches of four, which is what `allreduce` does."""
    rows: list[int] = torch.randperm(samples_of(task), generator=order).tolist()
    step = 4 * task.batch_size
    for start in range(0, len(rows), step):
        task.loss(model, task.batch(rows[start : start + step])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", ["digits", "quadratic"])
def test_tasks_without_downloads_reach_their_target(name: str) -> None:
    """On validation data, in well under half of their epochs."""
    task = TASKS[name]()
    torch.manual_seed(0)
    model = task.model()
    optimizer, order = task.optimizer(model), torch.Generator().manual_seed(0)
    for _ in range(round(task.epochs / 3)):
        train_epoch(task, model, optimizer, order)
    assert task.score(model, task.validation()) >= target_of(task)


@pytest.mark.parametrize("name", ["mnist-mlp", "mnist-small", "kjv"])
def test_the_real_data_have_the_expected_parts(name: str) -> None:
    task = TASKS[name]()
    if any(datasets.state_of(datasets.find(each)) is not State.PRESENT for each in task.data()):
        pytest.skip(f"the data of {name} aren't in the cache, and tests don't download; see `fast data`")
    sizes = {"mnist-mlp": (5000, 10_000), "mnist-small": (500, 1000), "kjv": (1008, 1008)}[name]
    parts = [part if isinstance(part, Tensor) else part[1] for part in (task.validation(), task.test())]
    assert tuple(map(len, parts)) == sizes
    labels = task.labels()
    assert labels is not None and len(labels) == samples_of(task) and set(labels) == set(range(10))


# How tasks are found


def test_a_task_of_a_file() -> None:
    assert load_task(f"{HERE / 'problems.py'}:Dropout").name == "dropout"


WHOLE = """
import fast
class Base(fast.Task):
    def model(self): ...
    def optimizer(self, model): ...
    def loss(self, model, batch): ...
    def train(self): return SAMPLES
    def test(self): ...
    def batch(self, indices): ...
class Mine(Base):
    name = "mine"
    def score(self, model, batch): return 1.0
SAMPLES = range(10)
"""


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "mytask.py").write_text(text)
    return str(tmp_path / "mytask.py")


def test_the_only_task_of_a_file_needs_no_name(tmp_path: Path) -> None:
    """Its unfinished base class doesn't count, and neither does what it imports."""
    path = written(tmp_path, f"from fast.lab.tasks import Digits\nclass Other: ...\n{WHOLE}")
    assert load_task(path).name == "mine"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Net: ...\nclass Trainer: ...", "has no task. It defines Net, Trainer. A task is a subclass"),
        ("x = 3", "has no task. It defines no classes. A task is a subclass of fast.Task"),
        (WHOLE + "class Yours(Mine): ...", "has 2 tasks: Mine, Yours. Name one: .*mytask.py:Mine"),
        (WHOLE.replace("def score", "def scores"), "has 2 tasks|lacks score"),
        (
            "import fast\nclass Half(fast.Task): ...",
            r"isn't a whole task: it lacks batch\(\), loss\(\), model",
        ),
        ("import gone", "can't be loaded: ModuleNotFoundError"),
        ("class Broken(:", "can't be loaded: SyntaxError"),
    ],
)
def test_files_without_one_task_are_answered(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_task(written(tmp_path, text))


@pytest.mark.parametrize(
    ("samples", "says"),
    [("range(0)", r"Mine.train\(\) has no samples"), ("iter([1])", "something without a length")],
)
def test_training_samples_are_counted(tmp_path: Path, samples: str, says: str) -> None:
    task = load_task(written(tmp_path, WHOLE.replace("range(10)", samples)))
    with pytest.raises(UsageError, match=says):
        samples_of(task)


def test_missing_data_are_noticed_when_a_task_is_loaded(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"the data set mnist isn't here yet. Run: fast data mnist"):
        load_task("mnist-mlp")


def test_data_of_a_task_of_ones_own_are_noticed_too(tmp_path: Path, cache: Path) -> None:
    needing = WHOLE.replace('name = "mine"', 'name = "mine"\n    def data(self): return ["kjv"]')
    with pytest.raises(UsageError, match="Run: fast data kjv"):
        load_task(written(tmp_path, needing))
    with pytest.raises(UsageError, match="there is no data set 'imagenet'"):
        load_task(written(tmp_path, needing.replace('"kjv"', '"imagenet"')))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("digit", "Did you mean digits?"),
        (
            "imagenet",
            "Built in: digits, quadratic, mnist-small, mnist-mlp, mnist-cnn, mnist-wide, kjv. A task",
        ),
        ("nowhere.py:Task", "there is no file nowhere.py"),
        ("nowhere.py", "there is no file nowhere.py"),
        (f"{HERE / 'problems.py'}:Drop", "has no Drop"),
        (f"{HERE / 'problems.py'}:", "after the colon comes the name"),
        (f"{HERE / 'problems.py'}:not_a_task", "is 3, and a task is a subclass of fast.Task"),
        (f"{HERE / 'problems.py'}:Unfinished", "lacks batch"),
    ],
)
def test_wrong_tasks_are_answered(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        load_task(text)


def test_a_task_without_target_asks_for_one() -> None:
    with pytest.raises(UsageError, match="--target"):
        target_of(object())  # type: ignore[arg-type]


# The commands


def told(*arguments: str) -> str:
    outcome = CliRunner().invoke(make_app(), list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_tasks_are_listed_without_their_data(cache: Path) -> None:
    said = told("tasks")
    for name in TASKS:
        assert name in said
    assert "1,863,690" in said and "7.5 MB" in said and "run: fast data mnist" in said


def test_data_are_listed_and_fetched_from_files(cache: Path, tmp_path: Path) -> None:
    assert "fast data mnist-small" in told("data")
    (tmp_path / "mine.txt").write_text(sets.own_text(), encoding="utf-8")
    assert "it isn't the text of the catalogue" in told("data", "kjv", "--from", str(tmp_path / "mine.txt"))
    assert "your own" in told("data")


def test_lists_are_written_as_json(cache: Path) -> None:
    import json

    sets_told = json.loads(told("data", "--json", "-"))
    assert sets_told["schema"] == 1 and [each["name"] for each in sets_told["sets"]] == list(
        datasets.CATALOGUE
    )
    assert {each["state"] for each in sets_told["sets"]} == {"bundled", "missing"}
    tasks_told = {each["name"]: each for each in json.loads(told("tasks", "--json", "-"))["tasks"]}
    assert tasks_told["mnist-wide"]["weights_bytes"] == 7_454_760
    assert tasks_told["kjv"]["data"] == [{"name": "kjv", "state": "missing"}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data", "mnits"], "Did you mean mnist"),
        (["data", "--from", "here"], "say which data set that is"),
        (["data", "mnist", "--from", "/gone"], "there is no such file or folder"),
    ],
)
def test_wrong_commands_are_answered(cache: Path, arguments: Sequence[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CliRunner().invoke(make_app(), list(arguments), catch_exceptions=False)


def test_the_public_task_has_no_data_and_no_classes_unless_it_says_so() -> None:
    task = load_task(f"{HERE / 'problems.py'}:Dropout")
    assert isinstance(task, fast.Task)
    assert task.labels() is None and tuple(task.data()) == () and task.about == ""


def test_the_task_in_the_docs_works(tmp_path: Path) -> None:
    """As it is printed there: it loads, it learns, and its parts fit each other."""
    page = (HERE.parents[1] / "docs" / "how-to" / "write-a-task.md").read_text(encoding="utf-8")
    task = load_task(written(tmp_path, page.partition("```python\n")[2].partition("```")[0]))
    torch.manual_seed(0)
    model = task.model()
    optimizer, order = task.optimizer(model), torch.Generator().manual_seed(0)
    before = task.score(model, task.validation())
    for _ in range(round(task.epochs / 5)):
        train_epoch(task, model, optimizer, order)
    labels = task.labels()
    assert labels is not None and len(labels) == samples_of(task)
    assert before < 0.7 < target_of(task) <= task.score(model, task.validation())
