"""What the page brings with it is what VENDOR.json says, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

STATIC = Path(__file__).resolve().parents[2] / "launchhelm/ui/static"
VENDOR = STATIC / "vendor"
OUTSIDE = re.compile(r"""(?:src|href|from|import|url)\s*[=(]?\s*["'(]\s*(?:https?:)?//""")
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|unsafeHTML"
    r"|\bstyle=|<style|\bon[a-z]+=[\"']"
)


def _packages() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((VENDOR / "VENDOR.json").read_text())["packages"]
    return listed


def test_vendored_files_are_those_whose_hashes_are_written_down() -> None:
    written = {
        name: digest for package in _packages() for name, digest in package["sha256"].items()
    }
    present = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name != "VENDOR.json"
    }

    assert present == written


def test_every_vendored_package_has_its_licence_beside_it() -> None:
    for package in _packages():
        texts = [name for name in package["sha256"] if name.startswith("LICENSE")]
        assert package["license"] in {"MIT", "BSD-3-Clause"}
        assert texts and (VENDOR / texts[0]).read_text().strip(), package["name"]


def test_no_script_or_style_comes_from_elsewhere_and_none_is_made_of_text() -> None:
    ours = [path for path in STATIC.rglob("*") if path.is_file() and VENDOR not in path.parents]

    assert {path.suffix for path in ours} <= {".html", ".js", ".css", ".svg"}
    for path in ours:
        text = path.read_text(encoding="utf-8")
        assert not OUTSIDE.search(text), path
        assert not DANGEROUS.search(text), (path, DANGEROUS.search(text))


def test_the_page_has_no_script_or_style_in_the_markup() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")

    assert re.findall(r"<script[^>]*>", page)
    assert not re.search(r"<script[^>]*>\s*[^<\s]", page)
