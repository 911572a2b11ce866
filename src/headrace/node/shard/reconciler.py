"""Plans how to make a shard match the metadata: compares both. It performs nothing itself.

    target        committed metadata
    actual        the shard's machine, its routing rows, its files, its parked requests
    tombstone     a life that metadata no longer wants, until its last file is deleted

It is level-triggered: a pass compares complete states, not events, so a lost wake, a failure
or a crash costs only time. Over successive passes:

    wanted, missing          InsertOwned                          then InsertRouted
    present, not wanted      Fence, Close                         then Collect, ConfirmRemove
    another life present     Fence, Close                         then InsertOwned
    a newer schema           AdvanceSchema, version by version

A life is unwanted if metadata has a record of its deletion. One that is merely absent from the
metadata is an orphan: it gets no row, is neither fenced nor closed, and nothing is opened in
its place. While metadata is in doubt, nothing at all is fenced or closed.

Lagging metadata must not make live data look unwanted. So nothing is opened or closed from a
revision below the newest seen here or in the shard's log, and nothing is fenced or closed
unless group 0 is normal here. A life that metadata places in a different shard gets no row
here, and is neither fenced nor closed: data wanted anywhere is not deleted.
"""

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from headrace.metadata.state import MetadataTarget
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import is_within, newest
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
from headrace.node.shard.retry_table import ReconcileWork, RetryTable
from headrace.node.shard.views import ActualView, Comparison, TargetView, schemas_of
from headrace.partition.reader import Key

TICK_MS: Final = 1_000
TICK_MAX_MS: Final = 30_000  # the longest that a lost wake goes unnoticed
FLIGHT_COUNT_MAX: Final = 256  # deeds per kind of work: a stuck kind leaves room for others
BEFORE_ALL: Final = Revision(0)
FILES_STAY: Final = "files stay"  # the cause when a collection left something


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    pass_count: int = 0
    skip_count: int = 0
    build_count: int = 0
    schema_count: int = 0
    removal_count: int = 0
    failures: Counter[str] = field(default_factory=Counter)  # by cause


@dataclass(frozen=True, slots=True)
class _Mark:
    """The inputs of a pass that found nothing to do."""

    revision: Revision
    is_normal: bool
    seen_by_machine: Revision
    files: frozenset[Key]
    is_primary: bool


@dataclass(slots=True)
class Reconciler:
    """One per shard. The caller supplies the time: `now_ms` never decreases."""

    shard: GroupId
    tick_ms: int = TICK_MS
    counters: Counters = field(default_factory=Counters)
    backoff: RetryTable = field(default_factory=RetryTable)
    tombstones: set[Key] = field(default_factory=set)
    seen: Revision = BEFORE_ALL  # the newest metadata seen by a pass
    flights: dict[tuple[ReconcileWork, Key], Deed] = field(default_factory=dict)
    _is_woken: bool = True  # the first pass is due at once
    _tick_at_ms: int = 0
    _settled: _Mark | None = None  # set by a pass that left nothing to do

    def __post_init__(self) -> None:
        assert 0 < self.tick_ms <= TICK_MAX_MS

    def wake(self) -> None:
        """Request a full pass. Several wakes are merged; the tick makes up for a lost one.

        Called after a commit that raised `revision`, after an apply that opened or closed a
        partition, and after a checkpoint, which may have written or collected files.
        """
        self._is_woken = True
        self._settled = None

    def due_at_ms(self) -> int:
        """Return when the next pass is due; 0 if one is due at once."""
        return 0 if self._is_woken else self._tick_at_ms

    def is_due(self, now_ms: int) -> bool:
        return now_ms >= self.due_at_ms()

    def is_fenced(self, key: Key) -> bool:
        """Return whether this life no longer accepts appends and reads."""
        return key in self.tombstones

    def plan(self, now_ms: int, target: TargetView, actual: ActualView) -> list[Action]:
        """Compare once; return the actions to perform, in order. Only this sets tombstones."""
        self._is_woken = False
        self._tick_at_ms = now_ms + self.tick_ms
        mark = _mark(target, actual)
        if self._is_settled(mark, actual):
            self.counters.skip_count += 1
            return []
        self.counters.pass_count += 1
        self.seen = newest(self.seen, target.revision)
        this = _Pass(self, now_ms, Comparison(self.shard, target, actual))
        actions = this.run()
        self._settled = mark if not (actions or this.is_deferred or self._is_busy()) else None
        return actions

    def done(self, action: Action) -> None:
        """Called when a deed has succeeded: committed and applied, or collected."""
        if not isinstance(action, Deed) or not self._land(action):
            return
        match action:
            case InsertOwned():
                self.counters.build_count += 1
            case AdvanceSchema():
                self.counters.schema_count += 1
            case Collect():
                self.wake()
                return  # the next pass checks whether it helped
            case ConfirmRemove():
                self.tombstones.discard(action.key)
                self.counters.removal_count += 1
            case Close():
                pass
        self.backoff.clear(action.work, action.key)
        self.wake()

    def failed(self, action: Action, cause: str, now_ms: int) -> None:
        """Called when a deed has failed or was dropped. It is retried after a delay."""
        if not isinstance(action, Deed) or not self._land(action):
            return
        self.counters.failures[cause] += 1
        self.backoff.fail(action.work, action.key, cause, now_ms)
        self._settled = None

    def _land(self, deed: Deed) -> bool:
        """Remove a deed from flight. One given up earlier may still succeed: that is fine."""
        return self.flights.pop((deed.work, deed.key), None) is not None

    def _is_settled(self, mark: _Mark, actual: ActualView) -> bool:
        return mark == self._settled and not actual.parked and not self._is_busy()

    def _is_busy(self) -> bool:
        return bool(self.flights or self.tombstones or len(self.backoff))


@dataclass(slots=True)
class _Pass:
    """One comparison."""

    reconciler: Reconciler
    now_ms: int
    both: Comparison
    actions: list[Action] = field(default_factory=list)
    is_deferred: bool = False  # something is left for a later pass
    is_current: bool = False  # metadata here is as new as any that was followed
    may_remove: bool = False
    counts: Counter[ReconcileWork] = field(default_factory=Counter)  # deeds in flight
    opening: dict[int, Revision] = field(default_factory=dict)  # topics: `created`, by number
    unlike: list[Namespace] = field(init=False)  # where there may be something to do

    def __post_init__(self) -> None:
        fenced = {key.namespace for key in self.reconciler.tombstones}
        self.unlike = sorted(fenced.union(self.both.unlike()))
        for deed in self.reconciler.flights.values():
            self._count(deed)
        revision = self.both.target.revision
        followed = (self.both.actual.state.revision, self.reconciler.seen)
        target = self.both.target
        is_astray = target.doubt is not None and target.doubt.is_astray(self.both.shard)
        self.is_current = not is_astray and all(is_within(one, revision) for one in followed)
        self.may_remove = self.is_current and target.is_normal and target.doubt is None
        self.is_deferred = not self.may_remove

    def run(self) -> list[Action]:
        self._adopt()
        self._fence()
        self._remove_routes()
        self._insert_routes()
        self._tear_down()
        self._advance_schemas()
        self._build()
        self._settle_parked()
        if self.is_current:
            self.reconciler.backoff.prune(self._is_recorded_for_reason)
        return self.actions

    def _adopt(self) -> None:
        """Restore tombstones lost in a crash: closed in the log, with files left."""
        for key in self.both.actual.files:
            if not self.both.is_there(key) and self.both.is_closed(key):
                self.reconciler.tombstones.add(key)

    def _fence(self) -> None:
        if not self.may_remove:
            return
        for key in self.both.lives(self.unlike):
            if self.both.is_unwanted(key) and key not in self.reconciler.tombstones:
                self.reconciler.tombstones.add(key)
                self.actions.append(Fence(key))

    def _remove_routes(self) -> None:
        fenced = {action.key for action in self.actions}
        routes = self.both.actual.routes
        for namespace in self.unlike:
            if namespace not in routes:
                continue
            key = Key(namespace, routes[namespace])
            if self.reconciler.is_fenced(key):
                if key not in fenced:
                    self.actions.append(Fence(key))
            elif not self._is_own(key):
                self.actions.append(RemoveRouted(key))

    def _insert_routes(self) -> None:
        for key, _ in self.both.wanted_here(self.unlike):
            is_own = self._is_served(key) and not self.both.is_orphan(key)
            if is_own and not self.both.has_row(key):
                self.actions.append(InsertRouted(key, self.reconciler.shard))

    def _tear_down(self) -> None:
        """Advance each removal by one step; it is not over while a file exists."""
        for key in _in_order(self.reconciler.tombstones):
            if self.both.is_there(key):
                if self.may_remove:
                    self._propose(Close(key, self.both.target.revision))
            elif key in self.both.actual.files:
                if self._propose(Collect(key)):
                    self.reconciler.backoff.fail(
                        ReconcileWork.REMOVAL, key, FILES_STAY, self.now_ms
                    )
            else:
                self.reconciler.backoff.clear(
                    ReconcileWork.REMOVAL, key
                )  # nothing is left to fail
                self._start(ConfirmRemove(key))

    def _advance_schemas(self) -> None:
        """Advance each topic by one schema version."""
        for number, topic in sorted(self.both.actual.state.topics.items()):
            ahead = self.both.schemas_ahead(number)
            if ahead:
                self.is_deferred = True
            first = self.both.topic_namespace(number)
            if ahead and self.is_current and not self.both.is_blocked(first):
                key = Key(first, topic.created)
                self._propose(AdvanceSchema(key, ahead[0].version, ahead[0].schema))

    def _build(self) -> None:
        for key, target in self.both.wanted_here(self.unlike):
            if self.both.is_there(key):
                continue
            self.is_deferred = True
            if self._can_open(key, target):
                self._propose(
                    InsertOwned(
                        key, target.topic_created, schemas_of(target), self.both.target.revision
                    )
                )

    def _settle_parked(self) -> None:
        for key in _in_order(self.both.actual.parked):
            if self._is_routed(key):
                self.actions.append(ServeParked(key))
            elif self._is_over(key):
                self.actions.append(RefuseParked(key, self.both.successor(key)))

    def _propose(self, deed: Deed) -> bool:
        """Plan a deed that enters the shard's log: only its primary writes there."""
        if not self.both.actual.is_primary:
            self.is_deferred = True
            return False
        return self._start(deed)

    def _start(self, deed: Deed) -> bool:
        """Plan a deed, unless it is in flight, backing off, or over the limit."""
        flights = self.reconciler.flights
        flight = (deed.work, deed.key)
        is_held = self.reconciler.backoff.is_held(*flight, self.now_ms)
        if flight in flights or is_held or self.counts[deed.work] >= FLIGHT_COUNT_MAX:
            self.is_deferred = True
            return False
        flights[flight] = deed
        self._count(deed)
        self.actions.append(deed)
        return True

    def _count(self, deed: Deed) -> None:
        self.counts[deed.work] += 1
        if isinstance(deed, InsertOwned):
            number = self.both.actual.state.topic_number(deed.key.namespace)
            self.opening[number] = deed.topic_created

    def _can_open(self, key: Key, target: MetadataTarget) -> bool:
        """Return whether the machine would accept it: no other life is present or in flight."""
        state = self.both.actual.state
        number = state.topic_number(key.namespace)
        is_free = key.namespace not in state.partitions and not self.both.is_closed(key)
        if not is_free or self.reconciler.is_fenced(key) or not self.is_current:
            return False
        if self.both.is_blocked(key.namespace):
            return False
        topic = state.topics.get(number)
        others = (self.opening.get(number), None if topic is None else topic.created)
        return all(created in (None, target.topic_created) for created in others)

    def _is_served(self, key: Key) -> bool:
        return self.both.is_there(key) and not self.reconciler.is_fenced(key)

    def _is_own(self, key: Key) -> bool:
        """Return whether the machine has this life, and metadata does not contradict it."""
        is_other = self.both.is_misplaced(key) or self.both.is_orphan(key)
        return self.both.is_there(key) and not is_other

    def _is_routed(self, key: Key) -> bool:
        """Return whether a row leads here after the steps planned so far."""
        is_here = self._is_own(key) and not self.reconciler.is_fenced(key)
        return is_here and (self.both.has_row(key) or self.both.is_wanted(key))

    def _is_over(self, key: Key) -> bool:
        """Return whether a life will never be served here."""
        if self.reconciler.is_fenced(key) or self.both.is_closed(key):
            return True
        is_unwanted = self.both.is_unwanted(key) or self.both.is_misplaced(key)
        return self.is_current and is_unwanted

    def _is_recorded_for_reason(self, work: ReconcileWork, key: Key) -> bool:
        """Return whether a recorded failure is still relevant."""
        match work:
            case ReconcileWork.BUILD:
                return not self.both.is_there(key) and self.both.is_wanted(key)
            case ReconcileWork.SCHEMA:
                number = self.both.actual.state.topic_number(key.namespace)
                return bool(self.both.schemas_ahead(number))
            case ReconcileWork.REMOVAL:
                return self.reconciler.is_fenced(key)


def _mark(target: TargetView, actual: ActualView) -> _Mark:
    return _Mark(
        target.revision,
        target.is_normal,
        actual.state.revision,
        frozenset(actual.files),
        actual.is_primary,
    )


def _in_order(keys: AbstractSet[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: (key.namespace, key.created))
