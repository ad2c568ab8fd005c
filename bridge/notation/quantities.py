"""Lengths of time and sizes as users write them: a number and its unit. Pure."""

import re
from typing import Any

from bridge.notation.numbers import shown

DURATION_MAX_MS = 10**15
"""More than 30,000 years."""
SIZE_MAX = 1 << 60
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
COUNT_MAX = 10**15
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_NUMBER = r"([0-9]{1,16}(?:\.[0-9]{1,16})?)"


def parse_duration_ms(value: Any, *, least_ms: int = 0) -> int:
    """`10s`, `5m`, `3h`, `2d`, `250ms`, or an int of ms. Raises ValueError naming the value."""
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    else:
        match = re.fullmatch(_NUMBER + "(ms|s|m|h|d)", str(value).strip())
        if match is None:
            raise ValueError(f"not a duration: {shown(value)} (expected a number and a unit: 250ms 10s 5m 3h 2d)")
        found = round(float(match[1]) * _UNITS_MS[match[2]])
    if not least_ms <= found <= DURATION_MAX_MS:
        bound = f"at least {least_ms}" if found < least_ms else f"at most {DURATION_MAX_MS}"
        raise ValueError(f"not a duration: {shown(value)} (expected {bound} ms)")
    return found


def parse_count(value: Any) -> int:
    """`250`, `10K`, `1.5M`, `2G`, `1T`: thousands, not 1,024. Raises ValueError naming the value."""
    match = re.fullmatch(_NUMBER + "([kmgt]?)", str(value).strip().lower())
    if match is None:
        raise ValueError(f"not a count: {shown(value)} (expected a number, or with a unit: 250 10K 1.5M 2G 1T)")
    found = round(float(match[1]) * _THOUSANDS[match[2]])
    if found > COUNT_MAX:
        raise ValueError(f"not a count: {shown(value)} (expected at most {COUNT_MAX})")
    return found


def parse_size(value: Any) -> int:
    """`64MB`, `1g`, or a number of bytes. Raises ValueError naming the value."""
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    else:
        match = re.fullmatch(_NUMBER + r"\s*([a-z]*)", str(value).strip().lower())
        if match is None or match[2] not in _UNITS_BYTES:
            raise ValueError(f"not a size: {shown(value)} (expected a number of bytes, or with a unit: 512KB 64MB 1GB)")
        found = round(float(match[1]) * _UNITS_BYTES[match[2]])
    if found > SIZE_MAX:
        raise ValueError(f"not a size: {shown(value)} (expected at most {SIZE_MAX} bytes)")
    return found
