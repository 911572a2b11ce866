"""One shard of a node as a synchronous machine: pump, partitions, reconciler.

Routed requests, committed metadata and ticks come in; effects go out, and the driver performs
them. Nothing here blocks, and nothing else writes to the shard's log.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.errors import HeadraceError, NotReady, TimedOut
from headrace.journal.entry import SEAL, Entry
from headrace.journal.superblock import Checkpoint
from headrace.metadata.state import MetadataState, RetentionLimits
from headrace.model.ids import GroupId, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.model.results import AppendResult, PublishResult, TrimResult
from headrace.model.revisions import is_past
from headrace.node.group.pump import Effect, Pump, not_ready
from headrace.node.shard.actions import (
    Action,
    AdvanceSchema,
    Close,
    Collect,
    ConfirmRemove,
    Deed,
    Fence,
    InsertOwned,
    InsertRouted,
    RefuseParked,
    RemoveRouted,
    ServeParked,
)
from headrace.node.shard.parking import Parking
from headrace.node.shard.reconciler import Reconciler
from headrace.node.shard.retention import MAX_HOLD_MS, due_trim
from headrace.node.shard.router import Router
from headrace.node.shard.views import ActualView, TargetView
from headrace.partition.machine import operations, results
from headrace.partition.machine.operations import Command
from headrace.partition.machine.state import PartitionsState
from headrace.partition.reader import Key
from headrace.partition.shard_store import Store
from headrace.vsr.peer_messages import SoloReply

_MS_PER_S = 1_000
_NO_LIFE = Key(Namespace(0), Revision(0))  # closing it changes only the revision


class Parked(NamedTuple):
    """A request waiting for its partition. Its ticket gets Here, or an error."""

    key: Key
    ticket: Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Here:
    """The partition is open now: submit the request again."""


class _Waiter(NamedTuple):
    notify: Callable[[], None]
    deadline: float


@dataclass(slots=True)
class Shard:
    """All calls come from one thread, sequentially."""

    number: GroupId
    store: Store
    pump: Pump
    router: Router
    reconciler: Reconciler
    parking: Parking[Parked] = field(default_factory=Parking)
    waiters: dict[Key, list[_Waiter]] = field(default_factory=dict)  # for new rows
    collecting: list[tuple[Collect, Op]] = field(default_factory=list)  # since this op
    is_recovered: bool = False  # a pass has seen all files found at the start
    is_following: bool = False  # the metadata revision is being written to the log
    clock: float = 0.0  # as of the last event that brought it

    def __post_init__(self) -> None:
        self.pump.observe = self._observe

    @property
    def state(self) -> PartitionsState:
        return self.store.machine.state

    def park(self, parked: Parked, size: int, deadline: float) -> list[Effect]:
        """Park a request of `size` bytes until its partition is open."""
        if self.pump.halted is not None:
            return [SoloReply(parked.ticket, not_ready(self.pump.halted))]
        try:
            self.parking.park(parked.key, parked, size, int(deadline * _MS_PER_S))
        except HeadraceError as error:
            return [SoloReply(parked.ticket, error)]
        self.reconciler.wake()
        return []

    def wait(self, key: Key, notify: Callable[[], None], deadline: float) -> None:
        """Call `notify` once: when the partition changes, or at the deadline."""
        self.waiters.setdefault(key, []).append(_Waiter(notify, deadline))

    def reconcile(self, target: TargetView, now: int, clock: float) -> list[Effect]:
        """Compare with committed metadata, if due, and perform the plan."""
        self.clock = clock
        now_ms = int(clock * _MS_PER_S)
        if not self.reconciler.is_due(now_ms) or self.pump.halted is not None:
            return []
        actual = ActualView(
            self.state,
            dict(self.router.rows_of(self.number)),
            self._lives_with_files(),
            frozenset(self.parking.keys),
        )
        effects: list[Effect] = []
        for action in self.reconciler.plan(now_ms, target, actual):
            effects += self._perform(action, now)
        return [*effects, *self._follow(target, now)]

    def is_behind(self, target: TargetView) -> bool:
        """Return whether the log has yet to follow metadata that is certain."""
        is_sure = target.is_normal and target.doubt is None
        return is_sure and is_past(target.revision, self.state.revision)

    def _follow(self, target: TargetView, now: int) -> list[Effect]:
        """Record the metadata revision in the log, if no deed does.

        It shows a later start that older metadata must not be trusted. A failure needs no
        handling: each pass checks again.
        """
        if not self.is_behind(target) or self.is_following or self.reconciler.flights:
            return []

        def ended(_: object) -> None:
            self.is_following = False

        self.is_following = True
        command = operations.ClosePartition(target.revision)
        return self._propose(_NO_LIFE, command, now, ended)

    def retain(
        self, metadata: MetadataState, now: int, max_hold_ms: int = MAX_HOLD_MS
    ) -> list[Effect]:
        """Propose Trims for rows past their retention."""
        effects: list[Effect] = []
        for namespace, partition in list(self.state.partitions.items()):
            retention = _retention_of(metadata, namespace, partition.topic_created)
            if retention is None:
                continue
            trim = due_trim(partition, retention, now, max_hold_ms)
            if trim is not None:
                key = Key(namespace, partition.created)
                effects += self._propose(key, trim, now, lambda _: None)
        return effects

    def on_tick(self, target: TargetView, now: int, clock: float) -> list[Effect]:
        """Advance the time."""
        self.clock = clock
        self.store.keeper.files.groups.expire(clock)
        effects = self.pump.on_tick(now, clock)
        for late in self.parking.expire(int(clock * _MS_PER_S)):
            effects.append(SoloReply(late.ticket, _not_here(late.key)))
        self._notify_late(clock)
        return [*effects, *self.reconcile(target, now, clock)]

    def set_doubt(self, *, is_in_doubt: bool) -> None:
        """Suspend removal and expiry while metadata is in doubt."""
        self.pump.expires = not is_in_doubt
        self.store.keeper.files.segments_stay = is_in_doubt
        self.reconciler.wake()

    def on_stop(self) -> list[Effect]:
        """Release all waiting requests."""
        for key in list(self.waiters):
            self._notify(key)
        stopping = NotReady("the node is stopping", hint="Reconnect in a moment")
        parked = [each for key in list(self.parking.keys) for each in self.parking.drop(key)]
        return [SoloReply(each.ticket, stopping) for each in parked]

    def on_paired(self, checkpoint: Checkpoint) -> None:
        """Called when a checkpoint is complete: its files are collected where possible."""
        done = [collect for collect, since in self.collecting if checkpoint.op > since]
        self.collecting = [one for one in self.collecting if checkpoint.op <= one[1]]
        for collect in done:
            key = collect.key
            cause = self.store.keeper.files.stuck_code(key.namespace, key.created)
            if cause is None:
                self.reconciler.done(collect)
            else:
                self.reconciler.failed(collect, cause, int(self.clock * _MS_PER_S))
        if self.reconciler.tombstones:
            self.reconciler.wake()

    def on_unpaired(self, error: HeadraceError) -> None:
        """Called when a checkpoint failed and will be retried: removals wait for it."""
        if self.collecting:
            cause = type(error).__name__
            self.reconciler.counters.failures[cause] += len(self.collecting)

    def _lives_with_files(self) -> frozenset[Key]:
        """Return the lives that have files, where that matters.

        A checkpoint in progress may still write files of a life that has ended.
        """
        tombstones = self.reconciler.tombstones
        if self.is_recovered and not tombstones:
            return frozenset()
        self.is_recovered = True
        if self.pump.is_persisting or self.pump.group.checkpoints.pending:
            pending = frozenset(tombstones)
        else:
            pending = frozenset()
        lives = self.store.keeper.files.lives()
        return pending | {Key(Namespace(each[0]), Revision(each[1])) for each in lives}

    def _perform(self, action: Action, now: int) -> list[Effect]:
        match action:
            case Fence(key) | RemoveRouted(key):
                self.router.remove(key)
                self._notify(key)
                return []
            case InsertRouted(key, shard):
                self.router.insert(key, shard)
                return []
            case ServeParked(key):
                return [SoloReply(parked.ticket, Here()) for parked in self.parking.take(key)]
            case RefuseParked(key):
                dropped = self.parking.drop(key)
                return [SoloReply(parked.ticket, action.error) for parked in dropped]
            case _:
                return self._begin(action, now)

    def _begin(self, deed: Deed, now: int) -> list[Effect]:
        def ended(result: object) -> None:
            now_ms = int(self.clock * _MS_PER_S)
            if isinstance(result, HeadraceError):
                self.reconciler.failed(deed, type(result).__name__, now_ms)
            elif isinstance(result, results.Refusal):
                self.reconciler.failed(deed, result.code.value, now_ms)
            else:
                self.reconciler.done(deed)

        match deed:
            case InsertOwned(key, topic_created, schemas, revision):
                command: Command = operations.OpenPartition(revision, topic_created, schemas)
                return self._propose(key, command, now, ended)
            case AdvanceSchema(key, version, schema):
                return self._propose(key, operations.SetSchema(version, schema), now, ended)
            case Close(key, revision):
                return self._propose(key, operations.ClosePartition(revision), now, ended)
            case Collect():
                # Any Seal after this op was captured without the ended life.
                self.collecting.append((deed, self.pump.replica.durable))
                return self.pump.request_seal(now)
            case ConfirmRemove(key):
                self._notify(key)
                self.reconciler.done(deed)
                return []

    def _propose(
        self, key: Key, command: Command, now: int, ticket: Callable[[object], None]
    ) -> list[Effect]:
        request = EntryProposal(
            command.operation,
            operations.encode(command),
            namespace=key.namespace,
            created=key.created,
        )
        return self.pump.submit(request, now, ticket=ticket, deadline=float("inf"))

    def _observe(self, entry: Entry, result: object) -> None:
        """Wake the waiters for what this op changed."""
        header = entry.header
        match result:
            case AppendResult() | TrimResult():
                self._wake_readers(header.namespace, header.created)
            case PublishResult(ranges):
                for one in ranges:
                    partition = self.state.partitions.get(one.namespace)
                    if partition is not None:
                        self._wake_readers(one.namespace, partition.created)
            case results.Closed():
                self._wake_readers(header.namespace, header.created)
                self.reconciler.wake()
            case results.Opened():
                self.reconciler.wake()
            case _ if header.operation == SEAL and self.reconciler.tombstones:
                self.reconciler.wake()

    def _wake_readers(self, namespace: int, created: int) -> None:
        if self.waiters:
            self._notify(Key(Namespace(namespace), Revision(created)))

    def _notify(self, key: Key) -> None:
        for one in self.waiters.pop(key, ()):
            one.notify()

    def _notify_late(self, clock: float) -> None:
        for key, waiting in list(self.waiters.items()):
            late = [one for one in waiting if clock >= one.deadline]
            if late:
                self.waiters[key] = [one for one in waiting if clock < one.deadline]
                if not self.waiters[key]:
                    del self.waiters[key]
                for one in late:
                    one.notify()


def _retention_of(
    metadata: MetadataState, namespace: Namespace, created: Revision
) -> RetentionLimits | None:
    """Return the retention of a topic, in this very life; None: rows are kept."""
    stream_id, topic_id, _ = metadata.layout.unpack(namespace)
    topic = metadata.topic_by_id(stream_id, topic_id)
    if topic is None or topic.created != created:
        return None
    if topic.retention.age_ms is None and topic.retention.size is None:
        return None
    return topic.retention


def _not_here(key: Key) -> HeadraceError:
    return TimedOut(
        f"partition {key} was not created in time; nothing happened",
        hint="Retry; if the problem persists, check the node's status",
    )
