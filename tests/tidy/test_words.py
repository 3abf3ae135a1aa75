"""What must not stand in the repository: machine paths, unfinished work, words of a plan."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Written so that no pattern matches its own line.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(wor[k]|roo[t]|hom[e]|opt/pyp[i])/"),
    "a number of a plan's decision": re.compile(r"\bD\d{1,2}\b|\b[Dd]ecision \d"),
    "a number of an issue": re.compile(r"\b[Ii]ssue #?\d"),
    "unfinished work": re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b"),
}
REQUIREMENT = re.compile(r"\bR\d\d\b")
INVARIANT = re.compile(r"\bI(1[0-5]|[1-9])\b")
URL = re.compile(r"https?://([\w.-]+)")
HOSTS = re.compile(
    r".*\.(example|invalid|test)|localhost|127\.0\.0\.1|0\.0\.0\.0|"
    r"(.*\.)?(launchhelm\.com|example\.(com|org|net)|apache\.org|pytorch\.org|sqlite\.org|"
    r"datasette\.io|keepachangelog\.com|semver\.org|rfc-editor\.org|w3\.org)"
)

# What others wrote, and what old versions of ours did.
EXEMPT = re.compile(r"golden/|static/vendor/|^LICENSE$")


def tracked() -> list[Path]:
    """List the text files that belong to the project; without git, those under its folders."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listing.stdout.decode().split("\0") if name]
    binary = (".db", ".jsonl", ".png")
    return [ROOT / name for name in names if not name.endswith(binary) and not EXEMPT.search(name)]


def findings(pattern: re.Pattern[str], *, but: tuple[str, ...] = ()) -> list[str]:
    found = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name in but or not path.is_file():
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    return found


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_tracked_holds(what: str) -> None:
    assert not findings(FORBIDDEN[what]), what


def test_requirement_numbers_stand_in_the_guarantees_only() -> None:
    assert not findings(REQUIREMENT, but=("docs/guarantees.md",))


def test_invariant_numbers_stand_in_the_guarantees_and_the_format_only() -> None:
    assert not findings(INVARIANT, but=("docs/guarantees.md", "docs/run-directory.md"))


def test_addresses_lead_to_places_that_are_not_somebodys_machine() -> None:
    strange = []
    for path in tracked():
        if path.is_file():
            for host in URL.findall(path.read_text("utf-8")):
                if not HOSTS.fullmatch(host):
                    strange.append(f"{path.relative_to(ROOT)}: {host}")
    assert not strange
