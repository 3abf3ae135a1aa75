"""One browser per module, and a place for screenshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import browser as support

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Shoot = Callable[["Page", str], None]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, headless."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="NO BROWSER TESTS: playwright is not installed"
    )
    if not support.CHROMIUM:
        pytest.skip("NO BROWSER TESTS: neither LAUNCHHELM_TEST_CHROMIUM nor chromium is there")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=support.CHROMIUM, args=list(support.FLAGS), timeout=support.DEADLINE_MS
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def shoot(tmp_path_factory: pytest.TempPathFactory) -> Shoot:
    """Keep a screenshot under a name."""
    folder = Path(support.SCREENSHOTS or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)

    def keep(page: Page, name: str) -> None:
        page.screenshot(path=str(folder / f"{name}.png"), full_page=True)

    return keep
