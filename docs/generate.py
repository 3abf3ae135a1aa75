"""Write the tables of the docs that come from code; `--check` says whether they are current.

python docs/generate.py           writes docs/settings.md
python docs/generate.py --check   exit 1 when it would change
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# `python docs/generate.py` puts docs/ on the path, not the checkout that it documents.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launchhelm._settings import SETTINGS

DOCS = Path(__file__).resolve().parent


def settings_page() -> str:
    """Render docs/settings.md."""
    ours = [setting for setting in SETTINGS if setting.name.startswith("LAUNCHHELM_")]
    theirs = [setting for setting in SETTINGS if setting not in ours]
    return "\n".join(
        [
            "# Settings",
            "",
            "Every environment variable that is read, and nothing else is. An argument of `init`",
            "wins over a variable, a variable of the process over a line in `.env`. This page is",
            "made by `docs/generate.py` from `launchhelm/_settings.py`.",
            "",
            "## Ours",
            "",
            *_table(ours),
            "",
            "## Others that are read",
            "",
            *_table(theirs),
            "",
        ]
    )


def _table(settings: list) -> list[str]:
    rows = ["| variable | default | what it does |", "| --- | --- | --- |"]
    for setting in settings:
        default = f"`{setting.default}`" if setting.default else ""
        rows.append(f"| `{setting.name}` | {default} | {setting.help} |")
    return rows


PAGES = {"settings.md": settings_page}


def stale() -> list[str]:
    """Name the generated pages that are not what the code says."""
    return [
        name
        for name, render in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text("utf-8") != render()
    ]


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when stale")
    if parser.parse_args().check:
        for name in stale():
            print(f"docs/{name} is not current; run `make fix`", file=sys.stderr)
        return 1 if stale() else 0
    for name in stale():
        (DOCS / name).write_text(PAGES[name](), "utf-8")
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
