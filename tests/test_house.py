"""The rules of the house, read from the source: layers, cards, bans, words and sizes."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType

import pytest

from fast.strategies import catalogue, presets
from fast.strategies.expression import parse_strategy

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fast"

LAYERS = (
    ("cli",),
    ("lab",),
    ("loop",),
    ("sim", "engine", "adapters"),
    ("runtime",),
    ("strategies", "transport"),
    ("collectives",),
    ("core",),
    ("parts", "membership", "wire"),
    ("view",),
    ("trace",),
    ("errors",),
)
"""From top to bottom. Imports go downward only; those on one line never import each other."""
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FRONT = ("__init__", "__main__")
"""What users import; it may import anything, and no room imports it."""

WORLDLY = ("cli", "lab", "loop", "sim", "engine", "runtime", "transport")
"""The rooms that have a clock, randomness, an environment, threads and sockets."""
PICKLES = ("pickle", "cloudpickle", "dill", "marshal", "shelve")
WORLDLY_MODULES = ("time", "random", "threading", "socket", "secrets", "uuid", "datetime", "asyncio",
                   "subprocess", "multiprocessing", "select", "selectors", "signal")  # fmt: skip
HOMELESS = ("utils", "common", "helpers", "util", "helper", "misc")
FOREIGN_WORDS = ("rank", "node", "client")
MEANT = ("low_rank", "client_context")
"""Where such a word means something else: the order of a matrix, the side of TLS that connects."""
MUTABLE = ("list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque", "ChainMap",
           "WeakValueDictionary", "WeakKeyDictionary", "WeakSet")  # fmt: skip
PRESET_LINES = 15
PROGRAM_LINES = 30


@dataclass(frozen=True)
class Import:
    """One import of one of our own modules."""

    target: str
    line: int
    typing_only: bool
    nested: bool


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def room(self) -> str:
        return self.path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @cached_property
    def module(self) -> str:
        return ".".join(("fast", *self.path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )

    def fails(self, line: int, why: str) -> str:
        return f"{self.where}:{line}: {why}"

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Imports of our own modules; `from fast.core import Me` counts for fast.core."""
        found = []
        typing_only = {id(inner) for guard in guards(self.tree) for inner in ast.walk(guard)}
        nested = {id(inner) for function in functions(self.tree) for inner in ast.walk(function)}
        for statement in ast.walk(self.tree):
            for target in imported(statement, self.package):
                if target.split(".")[0] == "fast":
                    known = Import(
                        target, statement.lineno, id(statement) in typing_only, id(statement) in nested
                    )  # type: ignore[attr-defined]
                    found.append(known)
        return tuple(found)

    @cached_property
    def package(self) -> str:
        return self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]


def guards(tree: ast.AST) -> Iterator[ast.If]:
    """The `if TYPE_CHECKING:` blocks."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield statement


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for statement in ast.walk(tree):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement


def imported(statement: ast.AST, package: str) -> list[str]:
    """The modules that a statement imports, by their full names."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if not isinstance(statement, ast.ImportFrom):
        return []
    base = statement.module or ""
    if statement.level:
        above = package.split(".")[: len(package.split(".")) - statement.level + 1]
        base = ".".join([*above, base] if base else above)
    return [
        f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base for alias in statement.names
    ]


@cache
def is_module(name: str) -> bool:
    """Whether one of our own files or rooms has this name; all else that is imported is inside one."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def room_of(module: str) -> str:
    """fast.core.me -> core. What is in no room belongs to the front."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (parts[1] in LEVEL or parts[1] == "testing") else "__init__"


def sources(folder: Path = PACKAGE) -> list[Source]:
    return [Source(path, path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


def rooms() -> list[str]:
    """Rooms that have been moved into; an empty folder is not one."""
    return sorted({source.room for source in SOURCES if source.path.parent != PACKAGE})


SOURCES = tuple(sources())


def each_source(check: Callable[[Source], None]) -> Callable[[], None]:
    """One test for all modules: thousands of tests of a millisecond each take longer to run than to check."""

    def over_all() -> None:
        wrong = []
        for source in SOURCES:
            try:
                check(source)
            except AssertionError as found:
                wrong.append(str(found))
        assert not wrong, "\n".join(wrong)

    over_all.__doc__ = check.__doc__
    return over_all


# Layers


def test_every_room_has_its_layer() -> None:
    unknown = {source.room for source in SOURCES} - set(LEVEL) - set(FRONT) - {"testing"}
    assert not unknown, f"{sorted(unknown)} have no place in LAYERS; find the room whose noun they handle"


def may_import(room: str, other: str) -> bool:
    if room == other or room in FRONT:
        return True
    if room == "testing":
        return other not in ("cli", "lab", *FRONT)
    return other in LEVEL and LEVEL[other] > LEVEL[room]


@each_source
def test_imports_go_downward(source: Source) -> None:
    wrong = [
        source.fails(each.line, f"{source.room} imports {each.target}")
        for each in source.imports
        if not may_import(source.room, room_of(each.target))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_cycles_between_modules() -> None:
    """Imports for annotations only, and those inside functions, may close a circle; others not."""
    modules = {source.module for source in SOURCES}
    edges = {
        source.module: {
            each.target
            for each in source.imports
            if not each.typing_only and not each.nested and each.target in modules
        }
        for source in SOURCES
    }
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle of imports: {' -> '.join((*path, module))}"
        if module in finished:
            return
        for target in sorted(edges[module]):
            visit(target, (*path, module))
        finished.add(module)

    for module in sorted(edges):
        visit(module, ())


# Cards


def card(room: str) -> str:
    init = PACKAGE / room / "__init__.py"
    assert init.exists(), f"{room} has no __init__.py, so it has no card"
    return ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("room", rooms())
def test_every_room_has_its_card(room: str) -> None:
    missing = [line for line in ("Job:", "May import:", "Never:") if line not in card(room)]
    assert not missing, f"the card of {room} says nothing under {missing}"


@pytest.mark.parametrize("room", rooms())
def test_cards_tell_the_truth_about_imports(room: str) -> None:
    """A card that lists rooms lists all that are used; 'everything below' is a list too."""
    allowed = card(room).partition("May import:")[2].partition("Never:")[0]
    if "everything" in allowed:
        return
    listed = set(re.findall(r"[a-z]+", allowed))
    used = {room_of(each.target) for source in SOURCES if source.room == room for each in source.imports}
    assert used - {room} <= listed, (
        f"{room} uses {sorted(used - listed - {room})}, which its card doesn't name"
    )


# Bans


@each_source
def test_nothing_is_pickled(source: Source) -> None:
    """torch.save and torch.load are pickle too; safetensors and msgspec are not."""
    wrong = [
        source.fails(statement.lineno, f"imports {target}")  # type: ignore[attr-defined]
        for statement in ast.walk(source.tree)
        for target in imported(statement, source.package)
        if target.split(".")[0] in PICKLES
    ]
    wrong += [
        source.fails(found.lineno, f"uses {ast.unparse(found)}, which pickles")
        for found in ast.walk(source.tree)
        if isinstance(found, ast.Attribute)
        and found.attr in ("save", "load")
        and ast.unparse(found.value) == "torch"
    ]
    assert not wrong, "\n".join(wrong)


@each_source
def test_nothing_is_evaluated(source: Source) -> None:
    wrong = [
        source.fails(found.lineno, f"calls {found.func.id}")
        for found in ast.walk(source.tree)
        if isinstance(found, ast.Call)
        and isinstance(found.func, ast.Name)
        and found.func.id in ("eval", "exec")
    ]
    assert not wrong, "\n".join(wrong)


@each_source
def test_the_world_stays_outside(source: Source) -> None:
    """A strategy and all below it get clock, randomness, environment and messages from the world."""
    if source.room in WORLDLY:
        return
    wrong = [
        source.fails(statement.lineno, f"imports {target}")  # type: ignore[attr-defined]
        for statement in ast.walk(source.tree)
        for target in imported(statement, source.package)
        if target.split(".")[0] in WORLDLY_MODULES
    ]
    wrong += [source.fails(line, f"uses {what}") for line, what in environment_and_dice(source)]
    assert not wrong, "\n".join(wrong)


def environment_and_dice(source: Source) -> Iterator[tuple[int, str]]:
    """os.environ and its kin; and, where strategies live, torch's global generator."""
    drawing = r"torch\.(rand\w*|normal|bernoulli|multinomial|manual_seed)|(np|numpy)\.random\..*"
    for found in ast.walk(source.tree):
        if isinstance(found, ast.ImportFrom) and found.module == "os":
            named = [
                alias.name
                for alias in found.names
                if alias.name in ("environ", "environb", "getenv", "putenv")
            ]
            yield from ((found.lineno, f"os.{name}") for name in named)
        if isinstance(found, ast.Attribute):
            what = ast.unparse(found)
            if re.fullmatch(r"os\.(environb?|getenvb?|putenv)", what):
                yield found.lineno, what
            if source.room not in ("adapters", "testing", *FRONT) and re.fullmatch(drawing, what):
                yield found.lineno, what


BEHIND_ME = ("world", "replica", "start_view", "account", "coding")
"""What `me` is made of. Who is in changes during training: `me.workers` has them."""


def test_strategies_touch_only_me() -> None:
    seen, wrong = set(), []
    for source in SOURCES:
        if source.room != "strategies":
            continue
        for found in ast.walk(source.tree):
            if not isinstance(found, ast.Attribute):
                continue
            of_me = isinstance(found.value, ast.Name) and found.value.id == "me"
            seen.update({found.attr} if of_me else ())
            if found.attr in BEHIND_ME or (of_me and found.attr.startswith("_")):
                why = f"{ast.unparse(found)}: strategies touch `me` and nothing behind it"
                wrong.append(source.fails(found.lineno, why))
        wrong += [
            source.fails(statement.lineno, f"imports {name}: strategies get what they need from `me`")
            for statement in ast.walk(source.tree)
            if isinstance(statement, ast.ImportFrom)
            for name in sorted({alias.name for alias in statement.names} & {"World", "Replica"})
        ]
    assert not wrong, "\n".join(wrong)
    assert {"weights", "workers", "all_workers"} <= seen, "nobody touches `me`, so nothing was checked"


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on import, also those inside if, try and with."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for block in ("body", "orelse", "finalbody"):
                yield from top_level(getattr(statement, block, []))
            for handler in getattr(statement, "handlers", []):
                yield from top_level(handler.body)


def assigned(statement: ast.stmt) -> tuple[list[str], ast.expr | None]:
    """The names and the value of an assignment."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            return [ast.unparse(target) for target in targets], value
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
            return [ast.unparse(target)], value
    return [], None


def called_name(value: ast.expr | None) -> str:
    return ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Tuple):
        return any(is_mutable(each) for each in value.elts)
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return isinstance(value, displays) or called_name(value) in MUTABLE


@each_source
def test_no_mutable_state_at_module_level(source: Source) -> None:
    """A thousand workers fit in one process. Constants are tuples, frozensets or MappingProxyType."""
    wrong = []
    for statement in top_level(source.tree.body):
        names, value = assigned(statement)
        if names != ["__all__"] and is_mutable(value):
            wrong.append(source.fails(statement.lineno, f"{', '.join(names)} is mutable"))
    wrong += [
        source.fails(found.lineno, "changes the module's own names with `global`")
        for found in ast.walk(source.tree)
        if isinstance(found, ast.Global)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_current_worker_is_the_only_context_variable() -> None:
    found = [
        source.where
        for source in SOURCES
        for statement in top_level(source.tree.body)
        if called_name(assigned(statement)[1]) == "ContextVar"
    ]
    assert len(found) <= 1, f"one ContextVar, in engine, and found are {found}"
    assert all(where.startswith("src/fast/engine/") for where in found), f"{found} is not in engine"


def test_no_homeless_modules() -> None:
    homeless = [
        source.where for source in SOURCES if {*Path(source.where).with_suffix("").parts} & {*HOMELESS}
    ]
    assert not homeless, f"{homeless}: a homeless function goes to the room whose noun it handles"


@pytest.mark.parametrize("folder", ["src", "tests", "examples", "benchmarks"])
def test_nothing_is_left_for_later(folder: str) -> None:
    later = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    wrong = [
        source.fails(number, line.strip())
        for source in sources(ROOT / folder)
        for number, line in enumerate(source.text.splitlines(), 1)
        if later.search(line)
    ]
    assert not wrong, "\n".join(wrong)


# Words


def own_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names that this file itself gives to things; what foreign libraries call theirs is theirs."""
    for found in ast.walk(tree):
        match found:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield found.lineno, name
            case (
                ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield found.lineno, name
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                yield from ((found.lineno, alias.asname) for alias in aliases if alias.asname)


def words(name: str) -> set[str]:
    """local_rank, localRank and LocalRank are made of the same words."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {part.lower().removesuffix("s") for part in parts}


@each_source
def test_one_word_for_one_thing(source: Source) -> None:
    """It is a worker, a server or a peer; `rank` is said only where a foreign engine speaks."""
    if source.room == "engine":
        return
    wrong = [
        source.fails(line, f"{name!r}: say worker, server, peer or index")
        for line, name in own_names(source.tree)
        if words(name) & set(FOREIGN_WORDS) and name not in MEANT
    ]
    assert not wrong, "\n".join(wrong)


# Sizes


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the first statement after the docstring to the last line."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def is_preset(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(called_name(decorator) == "preset" for decorator in function.decorator_list)


def test_presets_and_programs_are_short() -> None:
    seen, wrong = set(), []
    for source in SOURCES:
        if source.room != "strategies":
            continue
        for function in functions(source.tree):
            program = isinstance(function, ast.AsyncFunctionDef)
            limit = PRESET_LINES if is_preset(function) else PROGRAM_LINES if program else None
            if limit is None:
                continue
            seen.add(function.name)
            if body_lines(function) > limit:
                why = f"{function.name} has {body_lines(function)} lines, and {limit} is the limit"
                wrong.append(source.fails(function.lineno, why))
    assert not wrong, "\n".join(wrong)
    assert {*catalogue(), "step", "serve"} <= seen, (
        "the presets and programs weren't found, so nothing was checked"
    )


# Presets: an executed example, a row in the table test, a place in the docs


@pytest.mark.parametrize("name", catalogue())
def test_every_preset_has_an_example_that_works(name: str) -> None:
    preset = catalogue()[name]
    example = doctest.DocTestParser().get_doctest(
        preset.__doc__ or "", vars(presets).copy(), name, None, None
    )
    assert example.examples, f"{name} has no example in its docstring"
    assert any(name in each.source for each in example.examples), f"the example of {name} doesn't call it"
    report: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(example, out=report.append).failed
    assert not failed, "".join(report)


@pytest.mark.parametrize("name", [source.module for source in SOURCES if ">>> " in source.text])
def test_examples_in_docstrings_work(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0, f"{name} shows an example that doctest doesn't find"
    assert not outcome.failed


def table() -> ModuleType:
    path = ROOT / "tests" / "table.py"
    if not path.exists():
        pytest.skip("tests/table.py, the table of all presets, isn't written yet")
    spec = importlib.util.spec_from_file_location("table_of_presets", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_preset_has_its_row_in_the_table() -> None:
    rows = table().PRESETS
    assert set(rows) == set(catalogue())
    for name, calls in rows.items():
        assert calls, f"the row of {name} has no calls"
        for call in calls:
            assert parse_strategy(call).call.startswith(f"{name}("), f"{call} stands in the row of {name}"


def test_every_preset_is_in_the_docs() -> None:
    page = ROOT / "docs" / "strategies.md"
    if not page.exists():
        pytest.skip("docs/strategies.md isn't written yet")
    named = set(re.findall(r"\w+", page.read_text(encoding="utf-8")))
    missing = [name for name in catalogue() if name not in named]
    assert not missing, f"docs/strategies.md says nothing about {missing}"
