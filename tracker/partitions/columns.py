"""Columns of numbers in records: little-endian whatever the machine."""

from __future__ import annotations

import sys
from array import array
from typing import Any

_SWAP = sys.byteorder == "big"


def pack_column(column: array[Any]) -> bytes:
    """Return the stored form of a column."""
    if _SWAP:
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def unpack_column(code: str, record: bytes) -> array[Any]:
    """Read the stored form of a column of a type code."""
    column: array[Any] = array(code)
    column.frombytes(record)
    if _SWAP:
        column.byteswap()
    return column
