"""A client's connection to a broker, opened with the client's own CONNECT."""

import asyncio
from typing import Protocol, cast

import structlog

from bridge.broker.connection import BrokerError, reach
from bridge.gateway.keep_alive import ASK_AFTER, TICKS_PER_INTERVAL
from bridge.limits import ConnectionLimits
from bridge.net.sliced_reads import SlicedReads
from bridge.net.trust import TrustedServers
from bridge.protocol import commands
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import Frame, FrameDecoder, encode_frame

log = structlog.get_logger(__name__)

SILENT_LOOKS = 3 * TICKS_PER_INTERVAL
"""A broker that says nothing for so many is not there any more."""
_PING = encode_frame(commands.ping())


class UpstreamOwner(Protocol):
    """What a session does with what its upstream connections tell."""

    @property
    def relayed_from_broker(self) -> frozenset[int]:
        """Types of frames that may come as runs."""

    def on_server_frames(self, upstream: "Upstream", frames: list[Frame]) -> None:
        """Frames of one network read, in order. May raise ProtocolError."""

    def fail(self, error: Exception) -> None:
        """Something went wrong that nobody thought of."""

    def on_server_writable(self, writable: bool) -> None:
        """The upstream's write buffer crossed its limits."""

    def on_server_lost(self, upstream: "Upstream", reason: str) -> None:
        """The connection is gone. Told once."""


class Upstream(SlicedReads):
    """Created by `open_upstream`."""

    def __init__(self, url: str, owner: UpstreamOwner, limits: ConnectionLimits) -> None:
        """`url`: an address that the configuration or a broker named."""
        super().__init__(limits.upstream_read_bytes)
        self._limits = limits
        self.url = url
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.decoder = FrameDecoder()
        self._silent = 0  # looks since something was heard
        self._asked = self._answered = 0  # PINGs, PONGs
        self._awaited = 0  # PONGs until it has caught up
        self._owner = owner
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the limits of the write buffer."""
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        high, low = self._limits.server_write_high_water, self._limits.server_write_low_water
        self._transport.set_write_buffer_limits(high, low)

    def data_received(self, data: bytes) -> None:
        """Hand the frames to the session; a broken one ends the connection."""
        self._silent = 0
        try:
            frames = self.decoder.feed(data, self._owner.relayed_from_broker)
            if frames:
                self._owner.on_server_frames(self, frames)
        except ProtocolError as error:
            log.error("broker broke the protocol", broker=self.url, reason=str(error))
            self.close()
        except Exception as error:
            self._owner.fail(error)

    def pause_writing(self) -> None:
        """From asyncio."""
        self._owner.on_server_writable(False)

    def resume_writing(self) -> None:
        """From asyncio."""
        self._owner.on_server_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """From asyncio."""
        self._transport = None
        reason = f"connection to {self.url} closed" + (f": {exc}" if exc else "")
        if not self.connected.done():
            self.connected.set_exception(BrokerError(reason))
            self.connected.exception()  # seen, also when nobody waits any more
        self._owner.on_server_lost(self, reason)

    def hold_reads(self, held: bool) -> None:
        """Let the broker wait while the client does not keep up: that is no silence of the broker."""
        super().hold_reads(held)
        self._silent = 0

    def look(self) -> bool:
        """Ask a silent broker for a sign of life; whether it may still be there. Called twice in an interval."""
        if not self._held:
            self._silent += 1
        if self._silent == ASK_AFTER:
            self.ping()
        return self._silent <= SILENT_LOOKS

    def ping(self) -> None:
        """Ask for a sign of life: the bridge, or the client."""
        self._asked += 1
        self.write(_PING)

    def pong(self) -> bool:
        """One came. Returns whether `catch_up` waits for no further one; one too many keeps nobody waiting."""
        self._answered += 1
        return self._answered >= self._awaited

    def catch_up(self) -> None:
        """What the broker has said up to now is read when all it was asked is answered: the client may ask, too."""
        self.ping()
        self._awaited = self._asked

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes; dropped when the connection is gone, the session ends with it anyway."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


async def open_upstream(url: str, owner: UpstreamOwner, limits: ConnectionLimits, trusted: TrustedServers) -> Upstream:
    """Connect; nothing is said yet. Raises BrokerError."""
    return await reach(url, lambda: Upstream(url, owner, limits), limits.handshake_timeout_s, trusted)
