"""The docs say what the code does: names, links, commands, pictures; and nothing is out of date."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import fast
from fast.cli import commands
from fast.cli.app import make_app
from fast.cli.commands import load_command
from fast.strategies import catalogue

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in FRONT), *sorted(DOCS.rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
COMMANDS = {name: load_command(name) for name in commands.COMMANDS}


def script(name: str) -> ModuleType:
    """One of the scripts that write docs."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


# The reference and the pictures are made, not written


def test_the_reference_is_up_to_date() -> None:
    assert text_of(DOCS / "reference.md") == script("make_reference").page(), (
        "run: python docs/make_reference.py"
    )


@pytest.mark.parametrize("name", fast.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    assert f"\n## fast.{name}\n" in text_of(DOCS / "reference.md")


@pytest.mark.parametrize("name", catalogue())
def test_every_preset_has_its_section_and_its_picture(name: str) -> None:
    page = text_of(DOCS / "strategies.md")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert section, f"docs/strategies.md has no section {name}"
    assert f"pictures/{name}.svg" in section
    for said in ("**Sent:**", "**Staleness", "**Use it**", "**Don't**", "**Reference:**"):
        assert said in section, f"the section {name} says nothing under {said}"
    assert catalogue()[name].place.reference.split(" et al")[0].split(",")[0] in section


@pytest.mark.parametrize("name", catalogue())
def test_every_picture_is_up_to_date(name: str) -> None:
    picture = text_of(DOCS / "pictures" / f"{name}.svg")
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert picture == script("make_pictures").draw(name), "run: python docs/make_pictures.py"


@pytest.mark.parametrize("name", [n for n, p in catalogue().items() if p.place.optimization == "decentral"])
def test_the_page_about_momentum_says_what_each_strategy_takes(name: str) -> None:
    row = re.search(rf"^\| `{name}` \| [^|]+ \| ([^|]+) \|", text_of(DOCS / "momentum.md"), re.MULTILINE)
    assert row is not None, f"docs/momentum.md has no row for {name}"
    assert row[1] == (", ".join(catalogue()[name].moments) or "–")


# Links


def anchors(page: Path) -> set[str]:
    """As a forge makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def prose(page: Path) -> str:
    """Without blocks of code, in which brackets mean something else."""
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}, which isn't there"
        assert linked.is_relative_to(ROOT), f"{page.name} links to {target}, outside the project"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}, and there is no such heading"


def test_no_page_is_an_orphan() -> None:
    """Every page can be reached from the README."""
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", prose(page))
        waiting += [found for target in targets if (found := (page.parent / target).resolve()).is_file()]
    orphans = set(DOCS.rglob("*.md")) - seen
    assert not orphans, f"nothing leads to {sorted(str(page.relative_to(ROOT)) for page in orphans)}"


# Commands


def shown_commands(page: Path) -> Iterator[list[str]]:
    """Lines of shell in blocks of code: `fast ...` and `make ...`, without their comments."""
    for line in re.findall(r"^(?: {4,}|)(?:\$ )?((?:fast|make) [a-z].*)$", text_of(page), re.MULTILINE):
        yield shlex.split(line, comments=True)


def makes(target: str) -> bool:
    return re.search(rf"^{re.escape(target)}:", text_of(ROOT / "Makefile"), re.MULTILINE) is not None


def at_the_script(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The options of `fast run`, and what follows the script."""
    scripts = [n for n, argument in enumerate(arguments) if re.fullmatch(r"[\w/]+\.py", argument)]
    end = scripts[0] if scripts else len(arguments)
    return arguments[:end], arguments[end + 1 :]


@each_page
def test_commands_that_are_shown_exist(page: Path) -> None:
    """Their names, their options, and the files of this project that they name."""
    for program, name, *arguments in shown_commands(page):
        if program == "make":
            assert makes(name), f"{page.name} shows `make {name}`, which the Makefile doesn't have"
            continue
        assert name in COMMANDS, f"{page.name} shows `fast {name}`, which doesn't exist"
        known = {option for each in COMMANDS[name].params for option in each.opts}
        ours, theirs = at_the_script(arguments) if name == "run" else (arguments, [])
        misplaced = known.intersection(theirs)
        assert not misplaced, f"{page.name}: in `fast run`, {misplaced} stand behind the script"
        for argument in ours:
            if argument.startswith("-") and argument != "-":
                assert argument in known, f"{page.name}: fast {name} has no option {argument}"
        for argument in arguments:
            if argument.startswith("examples/"):
                file = ROOT / argument.partition(":")[0]
                assert file.exists(), f"{page.name}: there is no {argument}"


def test_the_readme_shows_every_command() -> None:
    shown = {name for program, name, *_ in shown_commands(ROOT / "README.md") if program == "fast"}
    assert shown == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    outcome = CliRunner().invoke(make_app(), [name, "--help"])
    assert outcome.exit_code == 0
    assert f"Usage: fast {name}" in outcome.output or f"{name} [OPTIONS]" in outcome.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    said = COMMANDS[name].help or ""
    assert " ".join(said.partition("\n\n")[0].split()) == commands.COMMANDS[name].words


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_is_in_usual_words(name: str) -> None:
    command = COMMANDS[name]
    texts = [command.help, *(getattr(each, "help", None) for each in command.params)]
    odd = re.compile(r"(?i)unless told|\bso many\b|is wanted|\bwhom\b|\beverybody\b|\bnobody\b|^(of|as) ")
    assert not [text for text in texts if text and odd.search(text)]


def test_square_brackets_in_help_are_shown() -> None:
    """They are marks of the library that shows it, unless they are escaped."""
    shown = CliRunner().invoke(make_app(), ["sweep", "--help"], env={"COLUMNS": "200"}).output
    assert "'fast-training[search]'" in shown and "[search]:" in shown and "\\[" not in shown


# What the docs must not say


@each_page
def test_pages_speak_our_words(page: Path) -> None:
    """`rank` and `node` are other people's words, and nothing is left for later."""
    found = re.findall(r"\b(ranks?|nodes?|TO" + r"DO|FIX" + r"ME)\b", prose(page))
    assert not found, f"{page.name} says {found}"
