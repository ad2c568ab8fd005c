"""The body of a caller's request on its way to the broker: kept where it is small, else passed on as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import ClientPayloadError, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from bridge.limits import WebLimits

_ENCODED = "Content-Encoding"


class BadBody(Exception):
    """The caller did not send what it had announced; `status` is the answer for that."""

    def __init__(self, message: str, status: int) -> None:
        """`message` says what was wrong."""
        super().__init__(message)
        self.status = status


class Body:
    """`read` makes one. What is kept can be sent to one broker after the other."""

    def __init__(self, kept: bytes, rest: StreamReader | None, length: int | None, stall_s: float) -> None:
        """`length`: of the whole, None where nobody knows yet."""
        self.length = length
        self.failure: BadBody | None = None
        """What went wrong with it on the way, after it had begun."""
        self._kept = kept
        self._rest = rest
        self._stall_s = stall_s

    @classmethod
    async def read(cls, request: web.Request, limits: WebLimits) -> Body | None:
        """Read so much of it as is kept; None without a body. Raises BadBody."""
        if not request.body_exists:
            return None
        content, kept = request.content, bytearray()
        while len(kept) <= limits.relay_kept_bytes:
            chunk = await _chunk(content, limits.relay_stall_s)
            if not chunk:
                return cls(bytes(kept), None, len(kept), limits.relay_stall_s)
            kept += chunk
        # What came compressed is decoded by now: its length is not the one that was announced.
        length = None if _ENCODED in request.headers else request.content_length
        return cls(bytes(kept), content, length, limits.relay_stall_s)

    @property
    def can_be_sent_again(self) -> bool:
        """Whether the whole of it is kept."""
        return self._rest is None

    def data(self) -> bytes | AsyncIterator[bytes]:
        """What an HTTP client sends."""
        return self._kept if self._rest is None else self._all(self._rest)

    async def _all(self, rest: StreamReader) -> AsyncIterator[bytes]:
        yield self._kept
        try:
            while chunk := await _chunk(rest, self._stall_s):
                yield chunk
        except BadBody as failure:
            self.failure = failure
            raise


async def _chunk(content: StreamReader, stall_s: float) -> bytes:
    try:
        async with asyncio.timeout(stall_s):
            return await content.readany()
    except TimeoutError:
        raise BadBody(f"the body did not come: nothing within {stall_s:g} s", 408) from None
    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError) as error:
        raise BadBody(f"the body cannot be read: {type(error).__name__}", 400) from None
