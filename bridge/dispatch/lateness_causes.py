"""Why first deliveries are late: told from what was so when they came due. Pure."""

from bridge.dispatch.subscription_stats import Cause


class LatenessCauses:
    """What one subscription knows of the time since which nothing but the bridge holds its deliveries up."""

    def __init__(self) -> None:
        """Not the owner yet."""
        self.owner_since_ms = 0
        self._permits_since_ms = 0
        self._has_permits = False
        self._rate_since_ms = 0
        self._within_rate = True

    def note_permits(self, now_ms: int, any_left: bool) -> None:
        """To be told whenever it may have changed whether a consumer could take something."""
        if any_left and not self._has_permits:
            self._permits_since_ms = now_ms
        self._has_permits = any_left

    def note_rate(self, now_ms: int, within: bool) -> None:
        """To be told whenever it may have changed whether dispatch rates let something go out."""
        if within and not self._within_rate:
            self._rate_since_ms = now_ms
        self._within_rate = within

    def cause(self, due_ms: int, *, covered: bool, stored_late: bool) -> Cause:
        """Return why an entry is late that goes out now.

        `covered`: no part of the index is missing; `stored_late`: it was stored when others of its time were out.
        """
        if due_ms < self.owner_since_ms:
            return Cause.bridge
        if due_ms < self._permits_since_ms:
            return Cause.permits
        if due_ms < self._rate_since_ms:
            return Cause.rate
        if not covered:
            return Cause.rebuild
        return Cause.harvest if stored_late else Cause.bridge
