"""What logs look like. In processes of their own: logging is set up once for a whole process."""

import json
import subprocess
import sys

SCRIPT = """
import logging, structlog
from bridge.logs import configure_logs
early = structlog.get_logger("early")
configure_logs("info", {format!r})
early.info("hello", broker_token="very-secret", count=3)
early.debug("not shown")
logging.getLogger("library").warning("from a %s", "library")
password = "very-secret"
try:
    raise ValueError("wrong")
except ValueError:
    early.exception("failed")
"""


def logged(log_format: str) -> str:
    script = SCRIPT.format(format=log_format)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "very-secret" not in done.stderr
    assert "not shown" not in done.stderr
    return done.stderr


def test_json_is_one_object_a_line() -> None:
    hello, library, failed = map(json.loads, logged("json").splitlines())
    assert (hello["event"], hello["level"], hello["logger"], hello["count"]) == ("hello", "info", "early", 3)
    assert hello["broker_token"] == "***"
    assert (library["event"], library["level"]) == ("from a library", "warning")
    assert "ValueError: wrong" in failed["exception"]
    assert all("timestamp" in line for line in (hello, library, failed))


def test_console_has_no_colours_without_a_terminal() -> None:
    text = logged("console")
    assert "\x1b" not in text
    assert "hello" in text
    assert "count=3" in text
    assert "from a library" in text
    assert "ValueError: wrong" in text
