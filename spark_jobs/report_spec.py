"""What a report is asked for, as a command line says it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.notation.numbers import whole_number
from bridge.notation.quantities import parse_duration_ms
from bridge.notation.times import parse_time_ms
from bridge.protocol.names import TopicName
from spark_jobs.plan import TOKEN_VARIABLE

HOUR_MS = 3_600_000
CHARACTERS_MAX = 999_999
Value = TypeVar("Value")


@dataclass(frozen=True)
class ReportSpec:
    """What to count and where the result goes.

    `source`: the options of the data source that say where to read and who asks. `prefix_length` (characters) and
    `delimiter` exclude each other; without both, keys are not told apart. Due in [from_ms, to_ms), epoch ms.
    """

    topics: tuple[str, ...]
    source: Mapping[str, str] = field(repr=False)
    output: str
    step_ms: int = HOUR_MS
    prefix_length: int | None = None
    delimiter: str | None = None
    subscription: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    overwrite: bool = False


def spec_from(given: argparse.Namespace) -> ReportSpec:
    """Return what the arguments of `parser` ask for; a token comes from the environment."""
    source = {
        "serviceUrl": given.service_url,
        "webUrl": given.web_url,
        "authToken": "" if given.token_file else os.environ.get(TOKEN_VARIABLE, ""),
        "authTokenFile": given.token_file or "",
        "tlsTrustCerts": given.tls_trust_certs or "",
        "tlsVerifyHostname": str(given.tls_verify_hostname).lower(),
        "readFrom": given.read_from,
    }
    return ReportSpec(
        topics=tuple(dict.fromkeys(given.topics)),  # named twice, counted once
        source={name: value for name, value in source.items() if value},
        output=given.output,
        step_ms=given.step,
        prefix_length=given.key_prefix_length,
        delimiter=given.key_delimiter,
        subscription=given.subscription,
        from_ms=given.from_ms,
        to_ms=given.to_ms,
        overwrite=given.overwrite,
    )


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog="python -m spark_jobs.report",
        description="What is due when, by topic, key prefix and size, as Parquet.",
        epilog=f"The token comes from {TOKEN_VARIABLE} or from --token-file.",
    )
    add = made.add_argument
    add(
        "topics",
        nargs="+",
        type=_topic,
        metavar="TOPIC",
        help="short names are completed; or one partition of many",
    )
    add("--service-url", required=True, metavar="URL", help="pulsar://… or pulsar+ssl://…")
    add("--web-url", required=True, metavar="URL", help="http://… or https://…")
    add("--output", required=True, metavar="FOLDER", help="a path or URI of Spark's file systems")
    add("--overwrite", action="store_true", help="replace a report that is there")
    add("--step", type=_step_ms, default=HOUR_MS, metavar="DURATION", help="width of a row; default: 1h")
    keys = made.add_mutually_exclusive_group()
    keys.add_argument("--key-prefix-length", type=_characters, metavar="N", help="by the first N characters of keys")
    keys.add_argument("--key-delimiter", type=_delimiter, metavar="C", help="by what comes before the first C in keys")
    add("--subscription", metavar="NAME", help="leave out what it has acked")
    add("--from", dest="from_ms", type=_argument(parse_time_ms), metavar="TIME", help="due then or later")
    add("--to", dest="to_ms", type=_argument(parse_time_ms), metavar="TIME", help="due before then")
    add("--token-file", metavar="FILE", help="read by each task anew")
    add("--tls-trust-certs", metavar="FILE", help="certificates to trust; default: the system's")
    add("--tls-verify-hostname", action=argparse.BooleanOptionalAction, default=True, help="default: yes")
    add("--read-from", choices=list(ReadFrom), default=ReadFrom.auto, help="where entries are read; default: auto")
    add("--master", default="local[*]", help="Spark master; default: local[*]")
    add("--conf", type=_setting, action="append", default=[], metavar="KEY=VALUE", help="Spark setting")
    return made


def _argument(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return a type of argument whose errors say what `parse` says; argparse has words of its own for a ValueError."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


@_argument
def _topic(text: str) -> str:
    name = TopicName.parse(text)
    if not name.persistent:
        raise ValueError(f"not a topic that is stored: {text!r}")
    return str(name)


@_argument
def _step_ms(text: str) -> int:
    return parse_duration_ms(text, least_ms=1)


@_argument
def _characters(text: str) -> int:
    return whole_number(text, 1, CHARACTERS_MAX)


@_argument
def _delimiter(text: str) -> str:
    if not text:
        raise ValueError("an empty one delimits nothing")
    return text


@_argument
def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"not a setting: {text!r} (expected key=value)")
    return name, value
