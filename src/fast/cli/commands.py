"""The commands by name: what `fast --help` says of each, and where it is. Their modules import torch, which takes a
second or more, so a command's module is imported when that command is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

CONTEXT = MappingProxyType({"help_option_names": ["-h", "--help"]})


class RunCommand(TyperCommand):
    """Options end where the script begins, as with `python` and `torchrun`."""

    allow_interspersed_args = False

    def collect_usage_pieces(self, ctx: object) -> list[str]:
        return ["[OPTIONS]", "SCRIPT", "[ARGS]..."]


@dataclass(frozen=True)
class Place:
    """Where a command is: in `fast.cli.NAME` as `NAME_command`."""

    words: str
    """The first line of its help."""
    kind: type[TyperCommand] = TyperCommand


COMMANDS: Mapping[str, Place] = MappingProxyType(
    {
        "run": Place("Run SCRIPT on several workers of this machine, or of several hosts.", RunCommand),
        "worker": Place(
            "Run this host's workers of a run that `fast run --hosts` has begun on another host."
        ),
        "secret": Place("Write a new secret to FILE, for `fast run --hosts ... --secret FILE`."),
        "doctor": Place("Check this host, and with --hosts the ways between several hosts."),
        "replay": Place(
            "Repeat a run that was recorded with `fast run --record`: in this process, bit for bit."
        ),
        "compare": Place(
            "Train TASK with each strategy on real workers and compare time to target, score and traffic."
        ),
        "simulate": Place(
            "Train TASK with each strategy on simulated workers: real gradients, virtual time."
        ),
        "plan": Place(
            "Say which strategy to take, how fast it will be and why, from sizes, speeds and needs alone."
        ),
        "sweep": Place(
            "Try many settings of each strategy on TASK in the simulator: arguments and learning rates."
        ),
        "calibrate": Place(
            "Measure this machine with real workers and write a model of it for `fast simulate --cluster`."
        ),
        "report": Place("Write report.html and its figures, also for a run that goes on or was interrupted."),
        "strategies": Place("Show the strategies to start with; with --all the whole list."),
        "tasks": Place("List the built-in tasks: sizes, the score to reach, and the data that each needs."),
        "data": Place("List the data sets, or fetch one: nothing is ever downloaded during training."),
    }
)


class LateCommands(TyperGroup):
    """All commands with their first line; each as a whole once it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=place.words) for name, place in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> TyperCommand:
    """The whole command, with its options."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=dict(CONTEXT))
    function = getattr(import_module(f"fast.cli.{name}"), f"{name}_command")
    alone.command(name, cls=COMMANDS[name].kind, help=_flowing(function))(function)
    command = typer.main.get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


def _flowing(function: Callable[..., object]) -> str:
    """Its docstring without the breaks of lines inside paragraphs, which would also be broken on a narrow terminal."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
