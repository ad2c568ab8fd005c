"""Scripts and styles: how they are sent, and that they need nothing from elsewhere."""

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from bridge.web.pages import static_files

Client = TestClient[web.Request, web.Application]
PLOTLY = files("bridge.web") / "static" / "plotly"


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    app = web.Application()
    app.add_routes(static_files.routes)
    async with TestClient(TestServer(app), auto_decompress=False) as made:
        yield made


@pytest.fixture(autouse=True)
def _read_before() -> None:
    static_files.own_files()


async def test_a_file_is_sent_once_and_then_only_asked_for(client: Client) -> None:
    first = await client.get("/static/style.css", headers={"Accept-Encoding": "gzip"})
    content = (files("bridge.web") / "static" / "style.css").read_bytes()
    assert gzip.decompress(await first.read()) == content
    assert first.headers["Content-Type"] == "text/css; charset=utf-8"
    assert first.headers["Cache-Control"] == "no-cache"
    again = await client.get("/static/style.css", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status == 304
    other = await client.get("/static/style.css", headers={"If-None-Match": '"other"'})
    assert other.status == 200


async def test_who_takes_no_gzip_gets_the_file_itself(client: Client) -> None:
    answer = await client.get("/static/theme.js", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in answer.headers
    assert await answer.read() == (files("bridge.web") / "static" / "theme.js").read_bytes()
    assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"


async def test_the_script_of_the_charts_is_kept_for_good(client: Client) -> None:
    answer = await client.get(f"/static/{static_files.PLOTLY_NAME}", headers={"Accept-Encoding": "gzip"})
    assert "immutable" in answer.headers["Cache-Control"]
    assert gzip.decompress(await answer.read()) == (PLOTLY / static_files.PLOTLY_NAME).read_bytes()


def test_the_script_of_the_charts_is_what_its_readme_says() -> None:
    """One file, as published: name, version and sum agree, and its licence is beside it."""
    readme = (PLOTLY / "README.md").read_text()
    (version,) = re.findall(r"^\| version \| ([\d.]+) \|$", readme, re.MULTILINE)
    (checksum,) = re.findall(r"^\| sha256 \| `([0-9a-f]{64})` \|$", readme, re.MULTILINE)
    assert f"plotly-basic-{version}.min.js" == static_files.PLOTLY_NAME
    assert f"`{static_files.PLOTLY_NAME}`" in readme
    script = (PLOTLY / static_files.PLOTLY_NAME).read_bytes()
    assert hashlib.sha256(script).hexdigest() == checksum
    assert f"(basic - minified) v{version}\n".encode() in script[:100]
    assert (PLOTLY / "LICENSE").read_text().startswith("MIT License\n")
    assert {each.name for each in PLOTLY.iterdir()} == {"LICENSE", "README.md", static_files.PLOTLY_NAME}


def test_the_script_of_the_charts_evaluates_no_text() -> None:
    """The pages' Content-Security-Policy would stop it there."""
    script = (PLOTLY / static_files.PLOTLY_NAME).read_bytes()
    assert not re.search(rb"\beval\(|new Function\b|(?<![\w.])Function\(", script)


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2Frendering.py", "%2e%2e/base.html", "plotly", "LICENSE", "plotly%2FREADME.md"]
)
async def test_nothing_else_is_sent(client: Client, name: str) -> None:
    assert (await client.get(f"/static/{name}")).status == 404


def test_own_files_name_no_other_host_and_set_no_markup() -> None:
    for name, file in static_files.own_files().items():
        text = gzip.decompress(file.compressed).decode()
        assert set(re.findall(r"https?://([^/\"']+)", text)) <= {"www.w3.org"}, name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), name


def test_scripts_import_only_what_is_there() -> None:
    own = static_files.own_files()
    for name, file in own.items():
        for imported in re.findall(r'from "\./([^"]+)"', gzip.decompress(file.compressed).decode()):
            assert imported in own, f"{name} imports {imported}"
