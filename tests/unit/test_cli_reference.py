"""The pages say what the program does: commands, settings, limits, files."""

import re
from pathlib import Path

import pytest
from aiohttp import web

from bridge.app import Bridge
from bridge.config import Settings
from bridge.limits import Limits
from bridge.web.server import build_web_app
from tools.generate_reference import REFERENCE, command_names, generate

ROOT = REFERENCE.parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(REFERENCE.parent.rglob("*.md"))]


def test_the_reference_is_as_generated() -> None:
    page = REFERENCE.read_text()
    assert page == generate(page), "run: python -m tools.generate_reference"


def test_every_command_and_setting_is_in_the_reference() -> None:
    page = REFERENCE.read_text()
    for name in command_names():
        assert f"\n### delay-bridge {' '.join(name)}\n" in page
    for setting in Settings.model_fields:
        assert f"| `{setting}` | `DELAY_BRIDGE_{setting.upper()}` |" in page


def test_every_url_is_in_the_reference() -> None:
    settings = Settings(broker_service_url="pulsar://b:1", broker_web_url="http://b:1")
    for route in build_web_app(Bridge(settings, Limits())).router.routes():
        if route.method != "HEAD" and isinstance(route.resource, web.Resource):
            assert f"`{route.method} {route.resource.canonical}`" in REFERENCE.read_text()


def test_the_readme_gives_the_limits_that_hold() -> None:
    limits = Limits()
    readme = (ROOT / "README.md").read_text()
    limit_text = " ".join(readme.split("## Limits")[1].split("##")[0].split())
    for expected in (
        f"{Settings.model_fields['max_client_connections'].default:,} client connections",
        f"at most {limits.connections.max_brokers_per_session} brokers",
        f"{limits.dispatch.max_unacked_per_consumer:,} for each consumer",
        f"{limits.dispatch.max_unacked_per_subscription:,} for each subscription",
        f"{Settings.model_fields['near_term_bytes'].default >> 20} MB of memory",
    ):
        assert expected in limit_text
    assert len(readme.splitlines()) < 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, heading = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.is_file(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert heading in [title.lower().replace(" ", "-") for title in headings], target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page: Path) -> None:
    known = {name[0] for name in command_names()}
    for line in re.findall(r"^\$ .*?delay-bridge (?!\\)([a-z-]+)", page.read_text(), re.MULTILINE):
        assert line in known
