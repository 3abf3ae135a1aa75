"""The docs are complete, current, and their code runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from launchhelm import _settings, errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]

_FENCE = re.compile(
    r"(?:<!-- from (?P<source>\S+) -->\n)?```(?P<info>[^\n]*)\n(?P<code>.*?)```", re.S
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page: Path, language: str) -> list[tuple[str, str | None]]:
    """Return the code blocks of a language, each with the file it is said to come from."""
    text = page.read_text("utf-8")
    return [
        (match["code"], match["source"])
        for match in _FENCE.finditer(text)
        if match["info"].strip() == language
    ]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    headings = re.findall(r"^#+ +(.+)$", text, flags=re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(page.read_text("utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_shown_python_runs(page: Path, tmp_path: Path) -> None:
    """The `python` blocks of a page run one after the other, in one process and folder."""
    shown = blocks(page, "python")
    for code, source in shown:
        if source:
            assert code in (ROOT / source).read_text("utf-8"), f"differs from {source}"
    program = "\n".join(code for code, source in shown if not source)
    if not program:
        return
    (tmp_path / "page.py").write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_shown_commands_exist(page: Path) -> None:
    """`make X` has a target and `launchhelm X` a verb."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))
    verbs = {path.stem for path in (ROOT / "launchhelm" / "cli").glob("[a-z]*.py")}
    for code, _ in [*blocks(page, "sh"), *blocks(page, "console")]:
        for line in code.splitlines():
            words = line.removeprefix("$ ").split()
            if words[:1] == ["make"]:
                assert words[1] in targets, line
            if words[:1] == ["launchhelm"]:
                assert words[1] in verbs, line


def test_generated_pages_are_current() -> None:
    assert _load("docs/generate.py").stale() == []


def test_every_setting_is_documented() -> None:
    page = (DOCS / "settings.md").read_text("utf-8")
    assert [it.name for it in _settings.SETTINGS if f"`{it.name}`" not in page] == []


def test_every_error_has_a_heading() -> None:
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    ]
    headings = re.findall(r"^#+ `?(\w+)`?", (DOCS / "errors.md").read_text("utf-8"), flags=re.M)
    assert [name for name in [*classes, "DivergedStateError"] if name not in headings] == []


def test_every_page_is_reached_from_the_index() -> None:
    linked = set(_LINK.findall((DOCS / "index.md").read_text("utf-8")))
    assert [page.name for page in DOCS.glob("*.md") if page.name not in linked | {"index.md"}] == []


def test_the_tests_that_the_guarantees_name_exist() -> None:
    page = (DOCS / "guarantees.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    written = set()
    for path in [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("tests/typing/*.py")]:
        written |= set(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M))
    assert named, "docs/guarantees.md names no test"
    assert sorted(named - written) == []


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
