"""Fetch the two libraries of the dashboard's page from npm, and write down what they are.

    python tools/vendor.py

npm finds the registry itself. Nothing in launchhelm/ui/static/vendor/ is edited by hand; the hashes
in VENDOR.json are compared by tests/tidy/test_vendor.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

VENDOR: Final = Path(__file__).resolve().parents[1] / "launchhelm/ui/static/vendor"

PACKAGES: Final = {
    ("uplot", "1.6.32"): {
        "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
        "dist/uPlot.min.css": "uPlot.min.css",
        "LICENSE": "LICENSE.uplot",
    },
    ("lit-html", "3.3.3"): {
        "lit-html.js": "lit-html.js",
        "directive.js": "directive.js",
        "directive-helpers.js": "directive-helpers.js",
        "directives/repeat.js": "directives/repeat.js",
        "LICENSE": "LICENSE.lit",
    },
}
"""What we take of each package, and under which name; licences are kept beside the code."""


def main() -> None:
    """Write the files and VENDOR.json."""
    listed = [_take(name, version, files) for (name, version), files in PACKAGES.items()]
    text = json.dumps({"packages": listed}, indent=2)
    (VENDOR / "VENDOR.json").write_text(text + "\n", encoding="utf-8")


def _take(name: str, version: str, files: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        command = ["npm", "pack", f"{name}@{version}", "--json", f"--pack-destination={directory}"]
        (packed,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        archive = Path(directory, packed["filename"])
        digest = hashlib.sha512(archive.read_bytes()).digest()
        if packed["integrity"] != "sha512-" + base64.b64encode(digest).decode():
            raise SystemExit(f"{name} {version} is not what the registry promised.")
        with tarfile.open(archive) as opened:
            taken = {ours: _read(opened, f"package/{theirs}") for theirs, ours in files.items()}
            about = json.loads(_read(opened, "package/package.json"))
    for ours, content in taken.items():
        place = VENDOR / ours
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return {
        "name": name,
        "version": version,
        "license": about["license"],
        "integrity": packed["integrity"],
        "sha256": {ours: hashlib.sha256(content).hexdigest() for ours, content in taken.items()},
    }


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    if member is None:
        raise SystemExit(f"There is no file {name} in {archive.name!r}.")
    return member.read()


if __name__ == "__main__":
    main()
