"""A dashboard as a user starts it, and Debian's Chromium to look at it.

    with Dashboard(root) as dashboard:
        page.goto(dashboard.address)

Chromium is found by LAUNCHHELM_TEST_CHROMIUM or at /usr/bin/chromium. Every name but that of this
host fails in it, and every page must ask nobody but the dashboard and break no rule of its policy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT: Final = Path(__file__).resolve().parents[2]

# Read at once: tests run without our variables.
CHROMIUM: Final = os.environ.get("LAUNCHHELM_TEST_CHROMIUM") or shutil.which("chromium") or ""
SCREENSHOTS: Final = os.environ.get("LAUNCHHELM_SCREENSHOTS", "")

FLAGS: Final = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
DEADLINE_MS: Final = 60_000
"""For machines that do much else; a quiet one needs a second or two."""

AXE: Final = "axe-core@4.14.1"


class Dashboard:
    """`launchhelm ui` in a process of its own; gone at the end of the block.

    Args:
        root: Directory of runs.
        options: Further arguments.
        stuck_s: After how long without a step a run is called stuck, where 30 s is too long.
    """

    def __init__(self, root: Path, *options: str, stuck_s: float | None = None) -> None:
        # Paths of sockets are short.
        self._private = tempfile.TemporaryDirectory()
        start = "import sys; from launchhelm.cli import main; sys.exit(main())"
        if stuck_s is not None:
            start = f"import launchhelm.views.findings as f; f.STUCK_S = {stuck_s}; {start}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, "ui", str(root), "--json", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": self._private.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        facts = json.loads(line)
        self.address: str = facts["address"]
        self.token: str = facts["token"]
        self.base = self.address.partition("/#")[0]

    def url(self, path: str = "/") -> str:
        """Return the address of a view, with the token."""
        return f"{self.base}{path}#token={self.token}"

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.communicate(timeout=60.0)
        self._private.cleanup()


@contextmanager
def looking(
    browser: Browser, *, base: str = "", allowed: tuple[str, ...] = (), **options: Any
) -> Iterator[Page]:
    """Give a fresh page; at the end it must have asked nobody else and complained of nothing.

    Args:
        base: Address of the dashboard, "" for any of this host.
        allowed: Patterns of console messages that the test provokes.
        options: Of the browser's context, for example color_scheme.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
    context.set_default_timeout(DEADLINE_MS)
    page = context.new_page()
    said: list[str] = []
    asked: set[str] = set()
    page.on("pageerror", lambda error: said.append(f"{error}\n{error.stack}"))
    page.on(
        "console",
        lambda message: said.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("request", lambda request: asked.add(request.url))
    try:
        yield page
    finally:
        context.close()
    bad = [text for text in said if not any(re.search(pattern, text) for pattern in allowed)]
    assert not bad, bad
    hosts = {urlsplit(url).hostname for url in asked if not url.startswith(("blob:", "data:"))}
    assert hosts <= {"127.0.0.1", "localhost"}, hosts
    assert not base or all(url.startswith((base, "blob:")) for url in asked), asked


def axe(scratch: Path) -> str:
    """Return the source of axe-core, fetched by npm."""
    command = ["npm", "pack", AXE, f"--pack-destination={scratch}"]
    subprocess.run(command, check=True, capture_output=True, timeout=100.0)
    (archive,) = scratch.glob("axe-core-*.tgz")
    with tarfile.open(archive) as opened:
        member = opened.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


_AUDIT: Final = """async () => {
    const found = await axe.run(document, {
        resultTypes: ["violations"],
        runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    });
    return found.violations.map((one) => ({
        id: one.id, impact: one.impact,
        nodes: one.nodes.map((node) => node.html.slice(0, 160) + " " + node.failureSummary),
    }));
}"""


def faults(page: Page) -> list[str]:
    """Return the serious faults that axe-core finds on a page that has loaded it."""
    found = page.evaluate(_AUDIT)
    return [
        f"{one['id']}: {one['nodes'][:3]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
