"""The built-in task, and how tasks are found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from fast.errors import UsageError
from fast.lab import load_task
from fast.lab.tasks import target_of

HERE = Path(__file__).parent


def test_digits_has_every_image_once_and_700_for_the_test() -> None:
    task = load_task("digits")
    train, test = task.batch(task.train()), task.test()
    assert len(train[1]) == 1097 and len(test[1]) == 700
    pixels = torch.cat([train[0], test[0]]) * 16
    ours = sorted(map(tuple, pixels.int().tolist()))
    assert ours == sorted(map(tuple, load_digits().data.astype(int).tolist()))
    assert train[0].dtype == torch.float32 and float(train[0].max()) == 1.0


def test_the_labels_of_digits_belong_to_their_images() -> None:
    data, task = load_digits(), load_task("digits")
    known = {
        tuple(image): label for image, label in zip(data.data.astype(int).tolist(), data.target, strict=True)
    }
    images, labels = task.test()
    assert [known[tuple(image)] for image in (images * 16).int().tolist()] == labels.tolist()


def test_the_split_doesnt_depend_on_torchs_generator() -> None:
    from fast.lab import tasks

    before = load_task("digits").test()[1]
    torch.manual_seed(12345)
    tasks._digits.cache_clear()
    assert torch.equal(load_task("digits").test()[1], before)


def test_a_batch_is_what_its_indices_say() -> None:
    task = load_task("digits")
    images, labels = task.batch([5, 0, 5])
    assert torch.equal(images[0], images[2]) and not torch.equal(images[0], images[1])
    assert labels[1] == task.batch([0])[1][0]


def test_the_score_is_the_share_of_right_answers() -> None:
    task = load_task("digits")
    images, labels = task.test()

    class Mostly(torch.nn.Module):
        """Right for all but the first 35 of 700."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answers = labels.clone()
            answers[:35] = (answers[:35] + 1) % 10
            return torch.nn.functional.one_hot(answers, 10).float()

    assert task.score(Mostly(), (images, labels)) == pytest.approx(0.95)


def test_a_task_of_a_file() -> None:
    assert load_task(f"{HERE / 'problems.py'}:Dropout").name == "dropout"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("digit", "Did you mean digits?"),
        ("imagenet", "Built in: digits. A task of your own is given as file.py:Name"),
        ("nowhere.py:Task", "there is no file nowhere.py"),
        (f"{HERE / 'problems.py'}:Drop", "has no Drop"),
        (f"{HERE / 'problems.py'}:", "after the colon comes the name"),
        (f"{HERE / 'problems.py'}:not_a_task", "is 3, and a task is a subclass of fast.Task"),
        (f"{HERE / 'problems.py'}:Unfinished", "abstract"),
    ],
)
def test_wrong_tasks_are_answered(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        load_task(text)


def test_a_task_without_target_asks_for_one() -> None:
    with pytest.raises(UsageError, match="--target"):
        target_of(object())  # type: ignore[arg-type]
