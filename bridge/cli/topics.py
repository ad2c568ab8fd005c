"""`delay-bridge topics`: what a running bridge tracks."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from bridge.cli.common import (
    DEFAULT_ADMIN_URL,
    AdminUrl,
    CommandFailed,
    Output,
    OutputOption,
    plain_table,
    print_json,
    print_table,
)

_TIMEOUT_S = 30.0
_ROOT = "/admin/v2/delayed"


def topics(admin_url: AdminUrl = DEFAULT_ADMIN_URL, output: OutputOption = Output.table) -> None:
    """List the topic partitions that a running bridge tracks."""
    found = get(admin_url, "/topics")
    if output is Output.json:
        print_json(found)
        return
    table = plain_table(("topic", "role", "owner", "entries", "bytes", "harvested to"), numbers=("entries", "bytes"))
    for topic in sorted(found, key=lambda each: each["topic"]):
        table.add_row(
            topic["topic"],
            topic["role"],
            topic["owner"] or "-",
            f"{topic['entries']:,}",
            f"{topic['storageSize']:,}",
            topic["harvestedPosition"] or "-",
        )
    print_table(table)


def get(admin_url: str, path: str) -> Any:
    """The JSON that the bridge answers. Raises CommandFailed naming the URL."""
    if not _is_web_url(admin_url):
        raise CommandFailed(f"not a web URL: {admin_url!r} (expected http://host:port)")
    url = f"{admin_url.rstrip('/')}{_ROOT}{path}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise CommandFailed(f"GET {url}: {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise CommandFailed(f"cannot reach the bridge at {admin_url}: {_reason(error)}") from None
    except ValueError:
        raise CommandFailed(f"GET {url}: the answer is not JSON") from None
    except (OSError, HTTPException) as error:
        raise CommandFailed(f"GET {url}: {error}") from None


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _reason(error: urllib.error.URLError) -> str:
    return getattr(error.reason, "strerror", None) or str(error.reason)
