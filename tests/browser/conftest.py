"""A headless Chromium that looks at the pages of a real bridge, and notes what it complains about."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.bridge_process import BridgeProcess
from tests.browser.looking import Looking, Published, publish_all
from tests.clients import Clients
from tests.cluster import PulsarCluster

REQUIRED_VARIABLE = "DELAY_BRIDGE_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program; without one these tests are skipped, unless they are required."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"there is no {', '.join(NAMES)} here"
        if os.environ.get(REQUIRED_VARIABLE) == "required":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Not for all files at once: as long as it is there no test of this process can run an event loop of its own."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def bridge(chromium: str, pulsar: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge for all tests here."""
    process = BridgeProcess(pulsar, tmp_path_factory.mktemp("bridge")).start()
    yield process
    process.stop()


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For people to look at."""
    return tmp_path_factory.mktemp("screenshots")


@pytest.fixture
def open_window(browser: Browser, screenshots: Path) -> Iterator[Callable[..., Looking]]:
    """Opens windows on a bridge; what their pages complain about is in `complaints`."""
    contexts: list[BrowserContext] = []

    def make(bridge: BridgeProcess, width: int = 1280, height: int = 900, **options: Any) -> Looking:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        return Looking(context.new_page(), bridge.web_url, screenshots)

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def looking(bridge: BridgeProcess, open_window: Callable[..., Looking]) -> Iterator[Looking]:
    """A window whose pages may not complain, nor ask anybody but the bridge."""
    window = open_window(bridge)
    yield window
    assert not window.complaints


@pytest.fixture
def published(bridge: BridgeProcess, clients: Clients) -> Published:
    """A topic of the test's own with pending entries."""
    return publish_all(bridge, clients)
