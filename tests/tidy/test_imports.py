"""Imports point one way, and few modules import what is not in the standard library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Which part may import which; docs/architecture.md draws this. A part may always import itself.
FLOOR = frozenset({"floor"})
STORE = FLOOR | {"store"}
BELOW_RUN = STORE | {"controls", "values"}
RUN = BELOW_RUN | {"views", "recorder", "run"}
MAY_IMPORT = {
    "floor": frozenset(),
    "store": FLOOR,
    "controls": FLOOR | {"values"},
    "values": FLOOR,
    "views": STORE | {"values", "controls"},
    "recorder": STORE | {"values"},
    "system": FLOOR,
    "run": RUN | {"system"},
    "torch": RUN | {"system"},
    "export": BELOW_RUN | {"views"},
    "snapshot": STORE | {"views"},
    "doctor": RUN,
    "api": FLOOR,
    "syncer": STORE | {"values", "views", "api"},
    # Storage of its own, so that a mistake shared with the run directory cannot hide.
    "server": FLOOR | {"values", "controls", "api"},
    # The way back of the syncer's mapping, so that the dashboard can show what a server holds.
    "mirror": STORE | {"values", "views", "syncer", "server"},
    "ui": BELOW_RUN | {"views"},
    "cli": RUN
    | {"ui", "system", "export", "snapshot", "doctor", "api", "syncer", "server", "mirror"},
}
PART_OF = {
    **dict.fromkeys(
        (
            "errors",
            "records",
            "env",
            "_clock",
            "_ids",
            "_settings",
            "_optional",
            "_strict",
            "_wording",
            "_faults",
        ),
        "floor",
    ),
    **dict.fromkeys(("_recorder", "_buffer", "_drain", "_overflow"), "recorder"),
    "views": "views",
    **dict.fromkeys(("export", "_export_files"), "export"),
    "snapshot": "snapshot",
    "__main__": "cli",
    **{
        name: name
        for name in ("store", "controls", "values", "system", "torch", "doctor", "ui", "cli")
    },
    **dict.fromkeys(
        (
            "run",
            "commands",
            "models",
            "runtime",
            "_commands",
            "_console",
            "_endings",
            "_left_commands",
            "_attach",
            "client",
            "_client_checkpoint",
            "_client_local",
            "_model_records",
            "rich",
            "transport",
        ),
        "run",
    ),
    "__init__": "run",
}
# The ways from the SDK to the syncer: a thread beside a run, and the calls of Client.
DOORS = ("launchhelm._attach", "launchhelm.transport")
# The doors to what others wrote: package -> the parts that may open them.
THIRD_PARTY = {
    "torch": {"torch"},
    "psutil": {"system"},
    "pynvml": {"system"},
    "orjson": {"floor", "store", "api", "server"},
    "sqlite_utils": {"server"},
    "httpx": {"api"},
    "watchdog": {"syncer"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "a2wsgi": {"cli"},
    "pyarrow": {"export"},
    "numpy": set(),
}


def part_of(module: str) -> str:
    """Name the part that a dotted module belongs to."""
    names = module.split(".")
    if module == "syncer.__main__":  # The verb under another name.
        return "cli"
    if names[0] == "syncer":
        return names[1] if names[1:2] in (["api"], ["server"], ["mirror"]) else "syncer"
    name = names[1] if len(names) > 1 else "__init__"
    if name.startswith("_run"):  # Pieces of run.py.
        return "run"
    if name.startswith("_views"):
        return "views"
    return PART_OF[name]


def imports(path: Path, module: str) -> Iterator[str]:
    """Yield every module that a file imports, also inside functions, as a dotted name."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                child = ROOT.joinpath(*base.split("."), alias.name)
                is_module = child.is_dir() or child.with_suffix(".py").exists()
                yield f"{base}.{alias.name}" if is_module else base


def sources() -> list[tuple[Path, str]]:
    files = [*ROOT.glob("launchhelm/**/*.py"), *ROOT.glob("syncer/**/*.py")]
    return [
        (path, ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        for path in sorted(files)
    ]


@pytest.mark.parametrize(("path", "module"), [pytest.param(*it, id=it[1]) for it in sources()])
def test_a_module_imports_only_what_lies_below_it(path: Path, module: str) -> None:
    here = part_of(module)
    wrong = []
    for imported in imports(path, module):
        top = imported.split(".")[0]
        if top in ("launchhelm", "syncer"):
            there = part_of(imported)
            allowed = there == here or there in MAY_IMPORT[here]
            if module in DOORS and top == "syncer":
                allowed = True
        else:
            allowed = top in sys.stdlib_module_names or here in THIRD_PARTY.get(top, set())
        if not allowed:
            wrong.append(imported)
    assert not wrong, f"{module} ({here}) may not import {wrong}"


def test_only_the_settings_and_env_modules_read_the_environment() -> None:
    """Every variable is named once, so that docs/settings.md is complete."""
    readers = {
        module
        for path, module in sources()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"))
        or (isinstance(node, ast.ImportFrom) and any(a.name == "environ" for a in node.names))
    }
    assert readers <= {"launchhelm._settings", "launchhelm.env"}


def test_sqlite_is_opened_through_one_door() -> None:
    openers = {
        module
        for path, module in sources()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func) == "sqlite3.connect"
    }
    assert openers <= {"launchhelm.store.connection", "syncer.server.database"}
