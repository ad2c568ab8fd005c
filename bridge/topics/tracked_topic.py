"""One topic partition: who dispatches it, and its subscriptions. What there is only while this bridge does: Tenure."""

import asyncio
import contextlib
from collections.abc import Collection

import structlog

from bridge.answers.values import Role, Severity
from bridge.broker.admin import AdminError
from bridge.broker.candidates import Candidates, Elected
from bridge.dispatch.acks.pending_acks import Transaction
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.ledgers.internal_stats import LedgerState
from bridge.net.failures import Part
from bridge.net.tasks import beside
from bridge.net.waiting import is_set_within
from bridge.operate.outlook import Outlook
from bridge.operate.warnings import OperatorWarning
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import ServerError
from bridge.protocol.service_url import ServiceUrls
from bridge.refill.rebuild_status import RebuildStatus
from bridge.refill.snapshots.writing import SnapshotStatus
from bridge.topics.checkpoints import CheckpointBook
from bridge.topics.context import BridgeContext
from bridge.topics.kept_index import KeptIndex
from bridge.topics.known_policies import KnownPolicies
from bridge.topics.pass_through import PassThrough, is_refusal, try_to_read
from bridge.topics.standing.line import PlaceInLine
from bridge.topics.standing.ownership import Ownership
from bridge.topics.standing.presence import Presence
from bridge.topics.standing.standby import Standby
from bridge.topics.subscriptions import Subscriptions
from bridge.topics.tenure import EXPECTED, Failed, Tenure
from tracker import Position, StoreError, TopicIndex

log = structlog.get_logger(__name__)

SNAPSHOTS_MISSED = 3
"""Intervals without a snapshot that are worth a warning."""


class TrackedTopic:
    """Runs as one task (`run`) until closed; loses and regains ownership as the broker decides."""

    def __init__(self, topic: str, context: BridgeContext) -> None:
        """Nothing starts before `run`."""
        self.topic = topic
        self.role: Role = "opening"
        self.owner: str | None = None
        self.unneeded = False
        """The topic is gone, or nothing on it is tracked any more: what is stored here may go too."""
        self.dismissed = False
        """Others see to it: what is stored here may go."""
        self.invited = False
        """To stand for it, and be ready to take it over, though no client asks for it here."""
        self.kept = KeptIndex(topic, context)
        self.tenure: Tenure | None = None
        """While this bridge is the owner, and as it becomes it."""
        self.owner_web_url: str | None = None
        """REST of the owner, while that is another bridge."""
        self.owner_tls_url: str | None = None
        """Where that one serves clients with TLS, if it says so and can be believed."""
        self.reason: str | None = None
        """Why the topic partition is not served; None while it is, here or elsewhere."""
        self.admission_trouble: str | None = None
        """Why consumers that came wait to be let in; None while they do not."""
        self.subscriptions = Subscriptions(
            topic, self._wake, lambda: self.outlook.delays, context.limits.dispatch, context.randbits
        )
        self.outlook = Outlook(topic, self.subscriptions, context.limits.operators)
        self.presence = Presence(topic, context.admin, context.limits.topics)
        self.passing = PassThrough(topic, self.subscriptions, context, self._give_up)
        self._policies = KnownPolicies(context.admin, topic)
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._ownership: Ownership | None = None
        self._standby: Standby | None = None
        self._line = PlaceInLine()
        self._closing = asyncio.Event()

    # -- life cycle

    async def run(self) -> None:
        """Serve the topic partition whenever the broker lets this bridge own it."""
        backoff = self._context.backoff()
        while not self._closing.is_set():
            started = self._loop.time()
            try:
                await self._serve_or_pass()
            except Failed as failed:
                self.reason = f"failed: {failed}"
            except AdminError as error:
                log.debug("cannot see who owns the topic", topic=self.topic, reason=str(error))
            except Exception as error:  # whatever it is: begin again rather than leave the topic alone
                self._note_failed(error)
            if self._loop.time() - started > self._context.limits.retry_backoff_s[-1]:
                backoff.reset()
            await is_set_within(self._closing, backoff.next_s())

    async def _serve_or_pass(self) -> None:
        await self.presence.rest(lambda: [] if self.index is None else self.index.views())
        if self._closing.is_set():
            return
        if (doubt := self._context.admin.clocks.doubt) is not None:
            await self._leave_to_others(doubt)
            return
        try:
            await self._serve()
        except EXPECTED as error:
            if not self._closing.is_set() and not self.presence.resting and not self._line.takes_over:
                self._note_failure(str(error))
            if getattr(error, "code", None) == ServerError.TopicNotFound and not self.has_consumers:
                self.unneeded = True
                self.close()
            await self._pass_through(error)
            if isinstance(error, StoreError):
                await self._until_stored()

    async def _leave_to_others(self, doubt: str) -> None:
        """What is due is for a bridge to say that knows what time it is."""
        self._note_failure(doubt)
        await self._send_consumers_to_owner()

    async def _send_consumers_to_owner(self) -> None:
        """Whoever that is by the broker's word, if it is another bridge. Raises AdminError."""
        context = self._context
        known = await context.admin.candidates(self.topic, HIDDEN_SUBSCRIPTION)
        elected = context.peers.judge(self.topic, context.advertised_url, known, settled=False)
        if elected.url not in (None, context.advertised_url):
            self._note_owner(elected)
            self.send_consumers_away()

    async def _until_stored(self) -> None:
        """To stand again before the disk takes anything would only take the topic from a bridge that can serve it.

        To ask for a sync is what has a store that failed opened anew, once there is room.
        """
        closing = self._loop.create_task(self._closing.wait())
        try:
            stored = False
            while not stored and not closing.done():
                syncing = asyncio.ensure_future(self._context.synced())
                try:
                    await asyncio.wait({syncing, closing}, return_when=asyncio.FIRST_COMPLETED)
                    stored = syncing.done() and syncing.result()
                finally:
                    syncing.cancel()
        finally:
            closing.cancel()

    def fail(self, error: Exception) -> None:
        """What was done here for somebody else failed in a way that nobody thought of: begin again."""
        if self.tenure is not None:
            self.tenure.fail(error)
        else:
            self._note_failed(error)
            self._forget_consumers()

    def _note_failed(self, error: Exception) -> None:
        self._context.failures.note(Part.topic, "the topic failed", error, topic=self.topic)
        self.reason = f"failed: {error!r}"

    def _forget_consumers(self) -> None:
        """Their clients subscribe anew, and what they had in hand comes again."""
        consumers = self.subscriptions.consumers()
        self.subscriptions.clear()  # first: what failed must not be asked again to let them go
        for consumer in consumers:
            consumer.close()

    def _note_failure(self, reason: str | None) -> None:
        """Say once why the topic is not served; with None it is, here or elsewhere."""
        if reason not in (None, self.reason, self.passing.reason):  # the last was said when it began
            log.error("topic is not served", topic=self.topic, reason=reason)
        self.reason = reason

    async def _pass_through(self, refused: Exception) -> None:
        """Where the broker refuses the bridge its place, let it dispatch; unless another bridge has its place."""
        if self._closing.is_set() or not is_refusal(refused):
            return
        if not self.has_consumers and self.index is None:
            self.unneeded = True
            self.close()
        elif (elsewhere := await self.passing.begin_unless_owned(str(refused))) is not None:
            self.role = "standby"
            self._note_owner(elsewhere)
            self.send_consumers_away()
        elif self.passing.reason is not None:
            self.role = "passed-through"

    @property
    def index(self) -> TopicIndex | None:
        """As this bridge has it, of one time as owner or another; None before the first."""
        return self.kept.index

    @property
    def has_consumers(self) -> bool:
        """Whether any client is attached."""
        return self.subscriptions.have_consumers

    @property
    def is_served(self) -> bool:
        """Whether it is dispatched: here, by a bridge that this one knows of, by the broker; or nobody is there."""
        return self.role in ("owner", "idle", "passed-through") or self.owner not in (
            None,
            self._context.advertised_url,
        )

    @property
    def is_known(self) -> bool:
        """Whether what is known here is how it stands: this bridge owns it, or did when everybody had left."""
        return self.role in ("owner", "idle")

    @property
    def standby_position(self) -> Position | None:
        """What was published up to there this bridge, as a standby, has in its index; None where it is not ready."""
        return None if self._standby is None else self._standby.position

    @property
    def load(self) -> float:
        """How much work it is: 1, as much again for a thousand messages a second, and for a million entries."""
        rate = sum(each.stats.sent.rates(self._context.now_ms()).messages for each in self.subscriptions.values())
        entries = 0 if self.index is None else self.index.entries
        return 1 + rate / 1_000 + entries / 1_000_000

    def warnings(self) -> list[OperatorWarning]:
        """What an operator should know; of a topic that another bridge owns, that one tells."""
        if not self.is_known:
            passed, reason = self.passing.warnings(), self.reason
            if passed or reason is None:
                return passed
            return [OperatorWarning(Severity.critical, "not-served", f"not served: {reason}")]
        waits = []
        if self.tenure is not None and self.tenure.pump.held:
            seconds = self.tenure.ownership.connection.unconfirmed_s
            text = (
                f"nothing is delivered: the broker does not answer for {seconds:.0f} s, another bridge may be elected"
            )
            waits.append(OperatorWarning(Severity.critical, "not-dispatched", text))
        if self.admission_trouble is not None:
            text = f"consumers wait, the broker's list of them cannot be read: {self.admission_trouble}"
            waits.append(OperatorWarning(Severity.critical, "not-admitted", text))
        for name, subscription in self.subscriptions.items():
            if subscription.trouble is not None:
                text = f"nothing is delivered, the cursor cannot be read: {subscription.trouble}"
                waits.append(OperatorWarning(Severity.critical, "not-dispatched", text, name))
        waits += self._snapshot_warnings()
        return waits + self.outlook.warnings(self.index, self._context.now_ms(), self.last_rebuild)

    def _snapshot_warnings(self) -> list[OperatorWarning]:
        status, share, now_ms = self.snapshot, self._context.snapshots, self._context.now_ms()
        if status is None or share is None or status.age_ms(now_ms) <= SNAPSHOTS_MISSED * share.interval_ms:
            return []
        what = "there is no snapshot of the index" if status.made_at_ms is None else "the newest snapshot is old"
        text = f"{what}, for {status.age_ms(now_ms) // 1000} s: {status.error or 'none was written since'}"
        return [OperatorWarning(Severity.warning, "snapshot-old", text)]

    @property
    def snapshot(self) -> SnapshotStatus | None:
        """The newest of the index; None where this bridge takes none."""
        if self.tenure is None or self.tenure.snapshots is None:
            return None
        return self.tenure.snapshots.status

    @property
    def last_rebuild(self) -> RebuildStatus | None:
        """The newest since this bridge took over; it may be under way."""
        return None if self.tenure is None else self.tenure.last_rebuild

    def close(self) -> None:
        """Stop dispatching now and let `run` end."""
        self._closing.set()
        self.presence.want()
        if self.tenure is not None:
            self.tenure.stop_subscriptions()
        if self.role == "standby" and self._ownership is not None:
            self._ownership.give_up("the bridge stops")

    async def _serve(self) -> None:
        """Stand for the topic partition, and own it for as long as that lasts. Raises what `EXPECTED` lists."""
        context = self._context
        try:
            self.passing.hold()
            connection = await context.pool.for_topic(self.topic)
            stated = context.peers.metadata(
                self.topic, context.advertised_url, context.web_url(), context.now_ms(), context.tls_url
            )
            ownership = self._ownership = Ownership(
                connection, self.topic, context.advertised_url, stated, context.limits.topics
            )
            await self._be_elected(ownership)
            self.passing.end()
            state = await context.admin.internal_stats(self.topic)
            tenure = self.tenure = await self._take_over(ownership, state)
            await tenure.start()
            self._note_owned(tenure)
            await tenure.run(self._closing)
        except (*EXPECTED, Failed):
            raise
        except Exception as error:
            if self.tenure is None:
                raise
            self.tenure.fail(error)
            raise Failed(repr(error)) from error
        finally:
            await self._step_down()

    async def _be_elected(self, ownership: Ownership) -> None:
        if self.passing.reason is not None:
            await try_to_read(ownership.connection, self.topic)
        before = await self._line.stand(ownership, self._context.admin)
        self.role = "standby"
        resting = self.presence.let_go_when(lambda: not self.has_consumers, self._give_up)
        self._standby = Standby(self.topic, ownership.connection, self._context, self.kept, self._policies)
        elected = beside(ownership.elected(self._context.admin, self._stand_by, before), resting)
        try:
            # It has ended before anything is asked of the topic as its owner: what it harvests is newer than an answer.
            await beside(elected, self._standby.run())
        finally:
            self._standby = None
        self._note_owner(Elected(self._context.advertised_url))  # whoever asks meanwhile is to come here

    def take_over(self) -> bool:
        """Become the owner in the place of another bridge; False if this one is not ready to."""
        if self.role != "standby" or self.standby_position is None or self.presence.resting:
            return False
        log.info("taking the topic over", topic=self.topic, owner=self.owner)
        self._line.takes_over = True
        self._give_up("to take the topic over")
        return True

    def invite(self) -> None:
        """Be ready to take the topic over, until `uninvite`."""
        self.invited = True
        if self._standby is not None and self.owner not in (None, self._context.advertised_url):
            self._standby.want(True)

    def uninvite(self) -> None:
        """Others are ready to take it over: without clients of its own this bridge has nothing to do with it."""
        self.invited = False
        if self.role == "standby" and not self.has_consumers and not self._closing.is_set():
            self.dismissed = True
            self.close()

    async def look_at_owner(self) -> None:
        """Have `owner` be what the broker says now, where another bridge was seen to be it."""
        if self._ownership is not None and self.role == "standby":
            await self._ownership.looked_at()

    def _note_owned(self, tenure: Tenure) -> None:
        self.role, self.owner = "owner", self._context.advertised_url
        self.owner_web_url = self.owner_tls_url = self.reason = None
        self.presence.served.set()
        tenure.pump.wake()
        position = tenure.harvester.position
        log.info("owner of topic", topic=self.topic, harvested_position=str(position))
        for name, view in tenure.index.views().items():
            if not view.covered:  # what was being filled in, by whoever had the index, is to be brought to its end
                self.subscriptions.opened(name)
        for subscription in self.subscriptions.values():
            tenure.load(subscription)

    def _stand_by(self, known: Candidates, settled: bool) -> None:
        """Clients that came here go to the owner meanwhile: they look up anew when their consumer is closed."""
        context = self._context
        context.peers.note_own_role(context.advertised_url, known)
        elected = context.peers.judge(self.topic, context.advertised_url, known, settled)
        self._note_owner(elected)
        if settled or self.owner is not None:
            self._note_failure(elected.doubt)
        if self.owner not in (None, context.advertised_url):
            self.presence.served.set()
            self.send_consumers_away()
            if self._standby is not None:
                ready = context.peers.standbys(self.topic, known, context.standby_count)
                self._standby.want(self.invited or context.advertised_url in ready)

    def _note_owner(self, elected: Elected) -> None:
        self.owner, self.owner_web_url, self.owner_tls_url = elected.url, elected.web_url, elected.tls_url

    async def _take_over(self, ownership: Ownership, state: LedgerState) -> Tenure:
        hidden = state.cursors.get(HIDDEN_SUBSCRIPTION)
        if hidden is None:  # this bridge stands on it: an index is not dropped, or a view, for want of an answer
            reason = state.unreadable.get(HIDDEN_SUBSCRIPTION, "the broker does not list it")
            raise AdminError(f"cannot read the cursor of {HIDDEN_SUBSCRIPTION}: {reason}")
        book = CheckpointBook(hidden.properties, state.subscriptions, self._context.randbits)
        await self.kept.look_for_snapshot(book.told_identity, state)
        index = self.kept.usable(book.told_identity, state)
        tenure = Tenure(
            ownership,
            self._context,
            index,
            book,
            self.subscriptions,
            self.outlook,
            self.presence,
            self.passing,
            self._policies,
            self.unsubscribed,
            self.kept.restore,
        )
        gone = [name for name in index.views() if name not in state.subscriptions]
        for name in gone:
            tenure.durability.remove_view(name)
        if gone and not index.views() and book.is_empty and not self.has_consumers:
            self.unneeded = True  # deleted while nobody looked
            self.close()
        return tenure

    async def _step_down(self) -> None:
        if self.presence.resting:
            self.role = "standby" if self.role == "standby" else "idle"
        else:
            self.role = "opening" if self.passing.reason is None else "passed-through"
        self._note_owner(Elected())
        self.outlook.forget()
        tenure, self.tenure = self.tenure, None
        ownership, self._ownership = self._ownership, None
        try:
            if tenure is not None:
                await self._end(tenure)
        finally:
            if ownership is not None:
                await ownership.resign(unsubscribe=self.unneeded)
            followed = self._closing.is_set() or (ownership is not None and ownership.deposed)
            if tenure is not None and followed and self.has_consumers:
                # Who is elected now waits for nobody, and does not hear of what is acked here.
                with contextlib.suppress(AdminError, TimeoutError):
                    async with asyncio.timeout(self._context.limits.topics.next_owner_s):
                        await self._send_consumers_to_owner()
                if self.owner is not None:
                    self.role = "standby"

    async def _end(self, tenure: Tenure) -> None:
        try:
            await tenure.end()
        except Exception as error:
            tenure.fail(error)
        if tenure.failed:  # as after a restart: nothing that was known in memory is believed
            self._forget_consumers()
            self.kept.forget()

    def send_consumers_away(self) -> None:
        """Close every consumer; the clients go to the owner where there is another one, else they look up anew."""
        owner, own = self.owner, self._context.advertised_url
        self.subscriptions.send_consumers_away(
            None if owner is None or owner == own else ServiceUrls.of(owner, self.owner_tls_url)
        )

    # -- subscriptions

    def attach(self, consumer: TrackedConsumer) -> None:
        """A client's consumer is there."""
        self.presence.want()
        if self._ownership is not None:
            self._ownership.look_soon()  # it may be to go elsewhere
        subscription = self.subscriptions.opened(consumer.subscription)
        subscription.dispatch_as(consumer.sharing)
        if subscription.in_doubt or not subscription.has_consumers:
            # While nobody was here the cursor may have been moved past the bridge.
            subscription.distrust()
        subscription.add_consumer(consumer)
        self.passing.attached(subscription)
        if not subscription.dispatching:
            self._load(subscription)

    def left_early(self, name: str) -> None:
        """A client's consumer was there so shortly that it took no part; what its subscription has pending counts."""
        if name not in self.subscriptions:
            self.presence.want()
            self._load(self.subscriptions.opened(name))

    def detach(self, consumer: TrackedConsumer) -> None:
        """A client's consumer is gone."""
        self.presence.want()
        subscription = self.subscriptions.get(consumer.subscription)
        if subscription is not None:
            subscription.remove_consumer(consumer)
            if consumer.cut_off and self.role == "owner" and self.tenure is not None:
                self.tenure.repair_soon(subscription)

    @property
    def has_pending_acks(self) -> bool:
        """Whether anything is acked in a transaction that has not ended, or may be."""
        return any(subscription.pending_acks for subscription in self.subscriptions.values())

    def transaction_ended(self, transaction: Transaction, committed: bool) -> None:
        """A client was told so."""
        for subscription in self.subscriptions.values():
            subscription.transaction_ended(transaction, committed)
        if self.tenure is not None:
            self.tenure.transactions.look()

    def left(self, name: str) -> None:
        """A consumer is gone, attached or not, and none waits to be attached."""
        subscription = self.subscriptions.get(name)
        if subscription is not None and not subscription.has_consumers:
            subscription.forget_counts()

    def sought(self, name: str, closed: Collection[TrackedConsumer]) -> None:
        """A seek was answered: the cursor stands anew. `closed`: the consumers that it has closed."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.sought(closed)
            self._load(subscription)

    def unsubscribed(self, name: str) -> None:
        """The broker deleted the subscription, and may have made it anew since."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.stop()
        if self.tenure is not None:
            self.tenure.forget(name)
        elif self.index is not None:
            with contextlib.suppress(StoreError):  # found when it is owned again
                self.index.remove_view(name)
        if subscription is not None and subscription.has_consumers:
            self._load(subscription)
            return
        self.subscriptions.pop(name, None)
        if self.index is not None and not self.index.views() and not self.has_consumers:
            self.unneeded = True
            self.close()

    def _load(self, subscription: TrackedSubscription) -> None:
        """Have the subscription's cursor read; all are, once the topic partition is taken over."""
        if self.role == "owner" and self.tenure is not None:
            self.tenure.load(subscription)

    def _give_up(self, reason: str) -> None:
        if self._ownership is not None:
            self._ownership.give_up(reason)

    def _wake(self) -> None:
        if self.tenure is not None:
            self.tenure.pump.wake()

    def on_recovered(self) -> None:
        """The store was opened anew."""
        if self.tenure is not None:
            self.tenure.on_recovered()
        elif self._standby is not None:
            self._standby.on_recovered()
