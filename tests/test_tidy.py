"""The house style as checks: rooms, purity, names, sizes; each proved red on a planted tree."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
LAB = ROOT / "lab" / "src"  # breaks and measures the product; may import all of it

# From the top of the house to its floor. Imports point only down.
LAB_ORDER = tuple(
    f"lab.{name}"
    for name in (
        *("commands", "spark", "bench", "hostile", "cluster", "reconcile", "lives"),
        *("node", "shard", "counter", "harness", "disk"),
    )
)
ORDER = (
    *LAB_ORDER,
    "cli",
    "doctor",
    "spark",
    "client",
    "server",
    "node",
    "partition",
    "metadata",
    "vsr",
    "journal",
    "wire",
    "storage",
    "model",
    "errors",
)
OPEN_TO_ALL = frozenset({"model", "errors"})


def _below(room: str) -> frozenset[str]:
    return frozenset(ORDER[ORDER.index(room) + 1 :])


_NODE_AND_BELOW = _below("node") | {"node"}

ALLOWED: dict[str, frozenset[str]] = {
    **{room: _below(room) | {"headrace"} for room in LAB_ORDER},
    "cli": _below("cli") | {"headrace"},  # the package root, for its version
    "doctor": _NODE_AND_BELOW,
    "spark": frozenset({"client", "wire", "headrace"}),  # the package root, for its API
    "client": frozenset({"wire"}),
    "server": frozenset({"node", "wire"}),
    "node": _below("node"),
    "partition": frozenset({"storage", "journal"}),
    "metadata": frozenset(),
    "vsr": frozenset(),
    "journal": frozenset({"storage"}),
    "wire": frozenset(),
    "storage": frozenset(),
    "model": frozenset(),
    "errors": frozenset(),
}

# Modules with a list of their own, instead of their room's. A package stands for all it holds.
ALLOWED_HERE: dict[str, frozenset[str]] = {
    "headrace": frozenset({"client"}),  # exports the public API
    "headrace.__main__": frozenset({"cli"}),
    "headrace.client.connect.embedded": frozenset({"wire", "server", "node"}),
    "headrace.spark.stores": frozenset(),
    "headrace.spark.worker": frozenset({"wire"}),
    "headrace_lab": frozenset({"headrace"}),
    "headrace_lab.__main__": frozenset({"headrace_lab"}),
    "headrace_lab.main": frozenset({"headrace_lab", "cli"}),
    "headrace_lab.verbs": frozenset({"cli"}),
    "pyspark_headrace": frozenset({"spark"}),
}
PACKAGES = ("headrace", "pyspark_headrace", "headrace_lab")
DOORS = ("headrace.spark",)  # rooms that users import from

# Runs on executors, where only these are installed.
WORKER = "headrace.spark.worker"
STORES = "headrace.spark.stores"
WORKER_LIBRARIES = {
    WORKER: sys.stdlib_module_names | {"pyarrow", "headrace"},
    STORES: sys.stdlib_module_names | {"headrace"},
}
# What it is faster with, and does without: tests/spark/test_worker.py imports all without it.
# What only an object store needs, loaded for one: tests/stores/test_store.py does without it.
WORKER_MAY_HAVE = {
    "headrace.spark.worker.sums": {"xxhash"},
    "headrace.spark.stores.object_store": {"obstore"},
}
# The parts of a room that see only some of it: themselves, and these.
SEES = {WORKER: (WORKER, STORES), STORES: (STORES,)}

PURE = frozenset({"vsr", "metadata", "wire", "model"})
# Clock; chance; file; socket; thread and process; event loop; log.
IMPURE_MODULES = frozenset(
    {"datetime", "sched", "time"}
    | {"random", "secrets", "uuid"}
    | {"fcntl", "glob", "io", "mmap", "os", "pathlib", "posix", "shutil", "tempfile"}
    | {"http", "select", "selectors", "socket", "socketserver", "ssl", "urllib"}
    | {"_thread", "concurrent", "multiprocessing", "queue", "signal", "subprocess", "threading"}
    | {"anyio", "asyncio", "contextvars", "trio", "uvloop"}
    | {"logging"}
)
IMPURE_CALLS = frozenset({"open", "input", "print"})

BANNED_MODULES = frozenset({"pickle", "marshal", "shelve"})  # loading runs what was stored
BANNED_CALLS = frozenset({"eval", "exec", "__import__", "import_module", "yaml.load"})
MAY_IMPORT_BY_NAME = frozenset(
    {"headrace.cli.verbs", "headrace_lab.verbs"}
)  # names from a table of its own
# In names of files and folders.
BANNED_WORDS = frozenset(
    {"util", "utils", "helper", "helpers", "common", "impl", "base", "manager", "managers"}
)

MODULE_LINES_MAX = 700  # one thing; past 500 look for a second one
FOLDER_MODULES_MAX = 16
FUNCTION_LINES_MAX = 60
PROTOCOL_METHODS_MAX = 8

_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*")
_SENTENCE = re.compile(r"\w.*[.!?](\s|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Module:
    """One source file, read once for all checks."""

    path: Path  # relative to the source tree's root
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The room it is in; the package's own name for what lies at its root."""
        room = _room_of(self.name)
        _, *rest = self.name.split(".")
        return rest[0] if room not in ORDER and len(rest) > 1 else room

    def at(self, line: int, fault: str) -> str:
        return f"{self.path}:{line}: {fault}"

    def is_in(self, package: str) -> bool:
        return self.name == package or self.name.startswith(f"{package}.")

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every import, also inside functions, as line and full dotted name."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)

    def calls(self) -> Iterator[tuple[int, str]]:
        """Every call by name, as line and name as written."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield node.lineno, ast.unparse(node.func)


def modules(root: Path) -> list[Module]:
    found = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(path.relative_to(root), text, _parsed(text)))
    return found


@cache
def _parsed(text: str) -> ast.Module:
    """Parse a module once for all checks: nobody changes the tree."""
    return ast.parse(text)


def room_faults(root: Path) -> list[str]:
    """Modules outside every room."""
    return [
        module.at(1, f"no room is called {module.room!r}")
        for module in modules(root)
        if module.room not in ORDER and module.name not in ALLOWED_HERE
    ]


def import_faults(root: Path) -> list[str]:
    """Imports of a room that the importing room may not see."""
    faults = []
    for module in modules(root):
        allowed = _allowed(module)
        for line, target in module.imports():
            if target.split(".")[0] not in PACKAGES or _is_own(module, target):
                continue
            if _room_of(target) not in allowed | OPEN_TO_ALL:
                faults.append(module.at(line, f"{module.room} may not import {target}"))
    return faults


def _allowed(module: Module) -> frozenset[str]:
    # The package roots stand for themselves only; other entries for all they hold.
    for name, allowed in ALLOWED_HERE.items():
        if module.name == name or (name not in PACKAGES and module.is_in(name)):
            return allowed
    return ALLOWED.get(module.room, frozenset())


def _is_own(module: Module, target: str) -> bool:
    """A room sees all of itself; what runs on executors sees only what does, too."""
    for package, seen in SEES.items():
        if module.is_in(package):
            return f"{target}.".startswith(tuple(f"{each}." for each in seen))
    return _room_of(target) == module.room


def _room_of(target: str) -> str:
    package, *rest = target.split(".")
    name = "".join(("lab." if package == "headrace_lab" else "", *rest[:1]))
    return name if name in ORDER else package


def relative_import_faults(root: Path) -> list[str]:
    return [
        module.at(node.lineno, "relative import")
        for module in modules(root)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]


def purity_faults(root: Path) -> list[str]:
    """Clocks, chance, files, sockets, threads and logs in rooms that may have none."""
    faults = []
    for module in modules(root):
        if module.room not in PURE:
            continue
        for line, target in module.imports():
            if target.split(".")[0] in IMPURE_MODULES:
                faults.append(module.at(line, f"{module.room} is pure but imports {target}"))
        for line, name in module.calls():
            if name in IMPURE_CALLS:
                faults.append(module.at(line, f"{module.room} is pure but calls {name}"))
    return faults


def worker_faults(root: Path) -> list[str]:
    """Libraries that an executor does not have."""
    return [
        module.at(line, f"an executor has no {target}")
        for package, libraries in WORKER_LIBRARIES.items()
        for module in modules(root)
        if module.is_in(package)
        for line, target in module.imports()
        if target.split(".")[0] not in libraries | WORKER_MAY_HAVE.get(module.name, set())
    ]


def docstring_faults(root: Path) -> list[str]:
    """Modules that do not say what they are for, and `__init__.py` files that do more."""
    faults = []
    for module in modules(root):
        if not _SENTENCE.search(ast.get_docstring(module.tree) or ""):
            faults.append(module.at(1, "does not open with a sentence of purpose"))
        elif (
            module.path.name == "__init__.py"
            and module.name not in (*PACKAGES, *DOORS)
            and len(module.tree.body) > 1
        ):
            faults.append(module.at(1, "__init__.py holds more than a docstring"))
    return faults


def size_faults(root: Path) -> list[str]:
    """Modules, functions and seams that are too big."""
    faults = []
    for module in modules(root):
        if (lines := len(module.text.splitlines())) > MODULE_LINES_MAX:
            faults.append(module.at(1, f"module of {lines} lines"))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size, limit, unit = _line_count(node), FUNCTION_LINES_MAX, "lines"
            elif isinstance(node, ast.ClassDef) and _is_protocol(node):
                size, limit, unit = _method_count(node), PROTOCOL_METHODS_MAX, "methods"
            else:
                continue
            if size > limit:
                faults.append(module.at(node.lineno, f"{node.name} has {size} {unit}"))
    return faults


def _line_count(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _is_protocol(node: ast.ClassDef) -> bool:
    bases = (ast.unparse(base).partition("[")[0] for base in node.bases)
    return any(base.split(".")[-1] == "Protocol" for base in bases)


def _method_count(node: ast.ClassDef) -> int:
    """A property is a field of the seam, not a method."""
    return sum(
        isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and "property" not in map(ast.unparse, each.decorator_list)
        for each in node.body
    )


def folder_faults(root: Path) -> list[str]:
    """Folders with more modules than one can take in at a glance."""
    counts = Counter(
        module.path.parent for module in modules(root) if module.path.name != "__init__.py"
    )
    return [
        f"{folder}: {count} modules in one folder"
        for folder, count in sorted(counts.items())
        if count > FOLDER_MODULES_MAX
    ]


def name_faults(root: Path) -> list[str]:
    """Files and folders named for no purpose."""
    return [
        module.at(1, "a name that says nothing")
        for module in modules(root)
        if BANNED_WORDS & set(re.split(r"[._]", module.name))
    ]


def class_faults(root: Path) -> list[str]:
    """Class names that stand for more than one thing in the product, or in the lab."""
    found: dict[tuple[bool, str], list[str]] = {}
    for module in modules(root):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                key = (module.is_in("headrace_lab"), node.name)
                found.setdefault(key, []).append(module.at(node.lineno, node.name))
    return [
        f"{place} is there twice, as in {places[0]}"
        for places in found.values()
        for place in places[1:]
    ]


def danger_faults(root: Path) -> list[str]:
    """Code that runs data, or that hides an import from these checks."""
    faults = []
    for module in modules(root):
        for line, target in module.imports():
            if target.split(".")[0] in BANNED_MODULES:
                faults.append(module.at(line, f"imports {target}"))
        for line, name in module.calls():
            if name == "import_module" and module.name in MAY_IMPORT_BY_NAME:
                continue
            if name in BANNED_CALLS or name.endswith(".import_module"):
                faults.append(module.at(line, f"calls {name}"))
    return faults


CHECKS = [
    room_faults,
    import_faults,
    relative_import_faults,
    purity_faults,
    worker_faults,
    docstring_faults,
    size_faults,
    folder_faults,
    name_faults,
    class_faults,
    danger_faults,
]


@pytest.mark.parametrize("root", [SRC, LAB], ids=["product", "lab"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_house_is_tidy(check: Callable[[Path], list[str]], root: Path):
    assert modules(root)
    assert check(root) == []


def test_every_room_lists_only_rooms_below_it():
    assert tuple(ALLOWED) == ORDER
    for room, allowed in ALLOWED.items():
        assert allowed - {"headrace"} <= _below(room)
    for name, allowed in ALLOWED_HERE.items():
        room = _room_of(name)
        assert allowed - set(PACKAGES) <= (_below(room) if room in ORDER else frozenset(ORDER))


def test_the_lock_pins_every_version_and_names_no_place():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 10
    assert [line for line in pins if not _PINNED.fullmatch(line)] == []


# Each row plants one file and names the check that it turns red.
DOC = '"""A module."""\n'
PLANTED = [
    (room_faults, "headrace/attic/box.py", DOC),
    (room_faults, "headrace/loose.py", DOC),
    (import_faults, "headrace/storage/file.py", "from headrace.journal import scan"),
    (import_faults, "headrace/journal/recovery/scan.py", "import headrace.cli.main"),
    (import_faults, "headrace/journal/recovery/scan.py", "from headrace import node"),
    (import_faults, "headrace/journal/recovery/scan.py", "from headrace import __version__"),
    (
        import_faults,
        "headrace/journal/recovery/scan.py",
        "def f():\n    import headrace.vsr.replica",
    ),
    (import_faults, "headrace/errors.py", "import headrace.storage.file"),
    (import_faults, "headrace/client/connect/remote.py", "import headrace.node.group.driver"),
    (
        import_faults,
        "headrace/spark/source/data_source.py",
        "import headrace.node.group.driver",
    ),
    (
        import_faults,
        "headrace/spark/worker/read.py",
        "import headrace.spark.source.data_source",
    ),
    (import_faults, "headrace/spark/worker/read.py", "import headrace.client.connect.remote"),
    (import_faults, "headrace/__init__.py", "import headrace.node.group.driver"),
    (import_faults, "pyspark_headrace/__init__.py", "import headrace.client.connect.remote"),
    (import_faults, "headrace/cli/main.py", "import headrace_lab.disk.memory"),
    (import_faults, "headrace/cli/main.py", "from headrace_lab import verbs"),
    (import_faults, "headrace_lab/disk/memory.py", "import headrace_lab.node.kill"),
    (room_faults, "headrace_lab/attic/box.py", DOC),
    (relative_import_faults, "headrace/journal/recovery/scan.py", "from . import entry"),
    (relative_import_faults, "headrace/journal/recovery/scan.py", "from ..storage import file"),
    (purity_faults, "headrace/vsr/replica.py", "import time"),
    (purity_faults, "headrace/vsr/replica.py", "from random import Random"),
    (purity_faults, "headrace/metadata/state.py", "import os.path"),
    (purity_faults, "headrace/wire/codec.py", "def f():\n    import asyncio"),
    (purity_faults, "headrace/model/ids.py", "open('x')"),
    (worker_faults, "headrace/spark/worker/read.py", "import xxhash"),
    (worker_faults, "headrace/spark/stores/path_store.py", "import pyarrow"),
    (worker_faults, "headrace/spark/stores/store.py", "import obstore"),
    (import_faults, "headrace/spark/stores/store.py", "import headrace.spark.worker.files"),
    (import_faults, "headrace/spark/stores/store.py", "import headrace.wire.messages"),
    (docstring_faults, "headrace/journal/recovery/scan.py", "x = 1"),
    (docstring_faults, "headrace/journal/recovery/scan.py", '"""Scan"""'),
    (docstring_faults, "headrace/journal/recovery/scan.py", ""),
    (docstring_faults, "headrace/journal/__init__.py", ""),
    (docstring_faults, "headrace/journal/__init__.py", DOC + "x = 1"),
    (size_faults, "headrace/journal/recovery/scan.py", DOC + "x = 1\n" * 700),
    (size_faults, "headrace/journal/recovery/scan.py", "def f():\n" + "    x = 1\n" * 60),
    (size_faults, "headrace/journal/recovery/scan.py", "async def f():\n" + "    x = 1\n" * 60),
    (
        size_faults,
        "headrace/storage/seam.py",
        "class S(typing.Protocol[T]):\n" + "    def f(self): ...\n" * 9,
    ),
    (name_faults, "headrace/journal/utils.py", DOC),
    (name_faults, "headrace/journal/snapshot_manager.py", DOC),
    (name_faults, "headrace/common/scan.py", DOC),
    (danger_faults, "headrace/journal/recovery/scan.py", "import pickle"),
    (danger_faults, "headrace/journal/recovery/scan.py", "from pickle import loads"),
    (danger_faults, "headrace/journal/recovery/scan.py", "eval('1')"),
    (danger_faults, "headrace/journal/recovery/scan.py", "exec('1')"),
    (danger_faults, "headrace/journal/recovery/scan.py", "yaml.load(text)"),
    (
        danger_faults,
        "headrace/journal/recovery/scan.py",
        "importlib.import_module('headrace.cli')",
    ),
]


@pytest.mark.parametrize(("check", "path", "text"), PLANTED)
def test_a_planted_fault_is_found(tmp_path, check, path, text):
    _plant(tmp_path, path, text)
    faults = check(tmp_path)
    assert len(faults) == 1
    assert faults[0].startswith(f"{path}:")


PATH = "    @property\n    def path(self): ...\n"
INNOCENT = [
    ("headrace/__init__.py", "from headrace.client.connect.remote import connect"),
    ("headrace/__main__.py", "from headrace.cli.main import main"),
    (
        "headrace/cli/main.py",
        "from headrace import __version__\nimport headrace.doctor.look.deep_check",
    ),
    ("headrace_lab/node/kill.py", "import headrace.cli.main, headrace_lab.disk.memory"),
    (
        "headrace/client/connect/embedded.py",
        "import headrace.node.group.driver, headrace.server.connections.tcp, time",
    ),
    ("headrace/journal/__init__.py", "# the room"),
    (
        "headrace/journal/recovery/scan.py",
        "from headrace.journal import walk\nimport os, xxhash",
    ),
    ("headrace/journal/frame.py", "from headrace import errors\nimport headrace.model.ids"),
    (
        "headrace/spark/source/data_source.py",
        "import headrace.spark.worker.read, headrace.client.connect.remote",
    ),
    ("headrace/spark/worker/read.py", "import headrace.spark.worker.frame, json, pyarrow"),
    ("headrace/spark/worker/files.py", "import headrace.spark.stores.store"),
    (
        "headrace/spark/stores/object_store.py",
        "import obstore\nfrom headrace.spark.stores.seam import FileStore",
    ),
    ("headrace/storage/seam.py", "class S(Protocol):\n" + PATH + "    def f(self): ...\n" * 8),
    ("headrace/storage/file.py", "def f():\n" + "    x = 1\n" * 59),
    ("headrace/vsr/replica.py", "import struct, enum\nimport headrace.errors"),
    ("pyspark_headrace/__init__.py", "from headrace.spark.source.data_source import Source"),
]


def test_a_house_in_order_has_no_faults(tmp_path):
    for path, text in INNOCENT:
        _plant(tmp_path, path, DOC + text if text else "")
    assert len(modules(tmp_path)) == len(INNOCENT)
    assert [fault for check in CHECKS for fault in check(tmp_path)] == []


@pytest.mark.parametrize(
    ("twin", "first"),
    [
        ("headrace/vsr/log.py", "headrace/model/ids.py"),
        ("headrace_lab/disk/ops.py", "headrace_lab/disk/memory.py"),
    ],
)
def test_a_class_name_is_there_once(tmp_path, twin, first):
    _plant(tmp_path, "headrace/model/ids.py", DOC + "class Op: ...\n")
    _plant(tmp_path, "headrace/journal/ring.py", DOC + "class Slot: ...\n")
    _plant(tmp_path, "headrace_lab/disk/memory.py", DOC + "class Op: ...\n")
    assert class_faults(tmp_path) == []
    _plant(tmp_path, twin, DOC + "class Op: ...\n")
    assert class_faults(tmp_path) == [f"{twin}:2: Op is there twice, as in {first}:2: Op"]


def test_a_folder_may_have_16_modules_and_no_more(tmp_path):
    for number in range(FOLDER_MODULES_MAX):
        _plant(tmp_path, f"headrace/model/ids{number}.py", DOC)
    _plant(tmp_path, "headrace/model/__init__.py", DOC)
    assert folder_faults(tmp_path) == []
    _plant(tmp_path, "headrace/model/namespace.py", DOC)
    assert folder_faults(tmp_path) == ["headrace/model: 17 modules in one folder"]


def test_a_module_may_have_700_lines_and_no_more(tmp_path):
    _plant(tmp_path, "headrace/model/ids.py", DOC + "x = 1\n" * 699)
    assert size_faults(tmp_path) == []


def _plant(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
