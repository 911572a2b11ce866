"""A node without a disk or a network: real machines, reconcilers and router, and every fault.

The world knows the truth, which is the newest metadata. A reconciler or a request may see older
metadata. Every step ends with a check of the invariants; Broken names the one that is violated.
"""

from collections import Counter
from dataclasses import dataclass, field

from xxhash import xxh3_128_digest

from headrace.errors import Busy, PartitionUnknown, Recreated
from headrace.metadata import commands, image
from headrace.metadata.commands import (
    AddPartitions,
    AddSchema,
    Command,
    CreateTopic,
    DeleteTopic,
    Level,
)
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.results import MetadataRefusal, Result
from headrace.metadata.state import FOREVER, LEVEL, MetadataState, TopicMetadata
from headrace.model.ids import GroupId, Op
from headrace.model.namespace import DEFAULT_STREAM, NamespaceLayout
from headrace.model.revisions import Order, compare, counter_of, is_past, is_within
from headrace.node.doubt.adopt import plan
from headrace.node.doubt.doubt import Doubt, judge
from headrace.node.shard.actions import (
    Action,
    AdvanceSchema,
    Close,
    ConfirmRemove,
    Deed,
    Fence,
    InsertOwned,
    InsertRouted,
    RefuseParked,
    RemoveRouted,
    ServeParked,
)
from headrace.node.shard.reconciler import Reconciler
from headrace.node.shard.retry_table import DELAY_MS, ReconcileWork
from headrace.node.shard.router import Route, Router
from headrace.node.shard.views import ActualView, TargetView
from headrace.partition.machine.state import PartitionsState
from headrace.partition.reader import Key
from headrace_lab.harness.history import Broken
from headrace_lab.reconcile.shard import BITS, Request, SimShard

SHARDS = (GroupId(1), GroupId(2))
TICK_MS = 1_000


@dataclass(slots=True)
class ReconcileWorld:
    """One node over all its lives."""

    now_ms: int = 0
    metadata: MetadataMachine = field(init=False)
    past: list[MetadataState] = field(init=False)  # what metadata was, by its revision's count
    shown: int | None = None  # the revision's count that reconcilers are shown; None: the truth
    is_normal: bool = True
    doubt: Doubt | None = None
    entries: int = 0  # commands that were ever applied
    newest: MetadataState | None = None  # what metadata was before it went back
    lost: set[tuple[GroupId, Key]] = field(default_factory=set)  # lives that it lost then
    router: Router = field(default_factory=Router)
    shards: dict[GroupId, SimShard] = field(init=False)
    requests: list[Request] = field(default_factory=list)  # those without an answer
    landed: Counter[str] = field(default_factory=Counter)
    # As they were after the last step.
    _tombstones: dict[GroupId, set[Key]] = field(default_factory=dict)
    _rows: dict[GroupId, set[Key]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metadata = MetadataMachine(NamespaceLayout(*BITS))
        self._command(Level(LEVEL), wake=False)
        self.past = [self._copy()]
        self.shards = {number: SimShard(number) for number in SHARDS}

    @property
    def truth(self) -> MetadataState:
        return self.metadata.state

    @property
    def count(self) -> int:
        """How many changes there were."""
        return counter_of(self.truth.revision)

    def topic(self, name: str) -> TopicMetadata | None:
        return self.truth.topic(DEFAULT_STREAM, name)

    def create(self, name: str, shard: GroupId, count: int, *, wake: bool = True) -> None:
        self._command(
            CreateTopic(DEFAULT_STREAM, name, b"schema 1", count, shard, FOREVER, ()), wake
        )

    def delete(self, topic: TopicMetadata, *, wake: bool = True) -> None:
        self._command(DeleteTopic(DEFAULT_STREAM, topic.name, topic.created), wake)

    def grow(self, topic: TopicMetadata, *, wake: bool = True) -> None:
        first = len(topic.partitions)
        self._command(AddPartitions(DEFAULT_STREAM, topic.name, topic.created, first, 1), wake)

    def evolve(self, topic: TopicMetadata, *, wake: bool = True) -> None:
        version = len(topic.schemas) + 1
        schema = b"schema %d" % version
        self._command(
            AddSchema(DEFAULT_STREAM, topic.name, topic.created, version, schema), wake
        )

    def run(self, shard: SimShard) -> None:
        """Let one reconciler look, if it is due, and perform what it plans."""
        reconciler = shard.reconciler
        if not reconciler.is_due(self.now_ms):
            return
        state = self.view()
        target = TargetView(
            state.revision,
            self.is_normal,
            state.target(),
            state.deleted,
            self.doubt,
        )
        actual = shard.actual(self.router)
        skip_count = reconciler.counters.skip_count
        actions = reconciler.plan(self.now_ms, target, actual)
        if reconciler.counters.skip_count > skip_count:
            self.landed["pass skipped"] += 1
            _check_skip(reconciler, self.now_ms, target, actual)
        for action in actions:
            self._perform(shard, action, target)
        self._check_pass(shard, target)
        self.check()

    def land(self, shard: SimShard, fate: str = "done") -> None:
        """Let the oldest deed in flight come to its end: done, dropped, or late."""
        if not shard.pending:
            return
        deed = shard.pending.popleft()
        cause = "dropped"
        if fate != cause and shard.is_primary:
            cause = self._commit(shard, deed)
        if fate == "late":  # the shard gave it up, and then it was committed after all
            cause = fate
        if cause:
            self.landed[f"deed failed: {cause}"] += 1
            shard.failed_ms[_trace(deed)] = self.now_ms
            shard.reconciler.failed(deed, cause, self.now_ms)
        else:
            shard.reconciler.done(deed)
        self.check()

    def crash(self, kept: int) -> None:
        """Kill the node. Of what is in flight, the first `kept` of each shard are committed."""
        for shard in self.shards.values():
            for deed in list(shard.pending)[:kept]:
                self._commit(shard, deed)
            shard.start()
        self.router = Router()
        self.requests.clear()  # their connections died with the process
        self._tombstones.clear()
        self._rows.clear()
        self.landed["crash"] += 1
        self.check()

    def go_back(self, count: int) -> None:
        """Kill the node, and let metadata be what it was at an earlier moment.

        If nothing tells, since no shard has followed any of what is lost, the log goes on from
        there. Otherwise it is in doubt until the newest metadata is put back.
        """
        if self.doubt is not None:
            return
        newest = self._copy()
        self.metadata.restore(image.encode(self.past[count]))
        self.crash(0)
        self.shown, self.is_normal = None, True
        self.doubt = judge(self.truth, self._states())
        if self.doubt is None:
            del self.past[self.count + 1 :]
            return
        self.newest = newest
        self.lost = {
            (shard.number, key)
            for shard in self.shards.values()
            for key in shard.lives
            if not self.is_wanted(key) and not self.truth.is_deleted(key.namespace, key.created)
        }
        self.landed["metadata in doubt"] += 1
        self.landed["lives lost"] += len(self.lost)
        self.check()

    def put_back(self) -> None:
        """Kill the node, and put the newest metadata back, if it is in doubt."""
        if self.newest is not None:
            self.metadata.restore(image.encode(self.newest))
            self.newest, self.doubt = None, None
            self.lost.clear()
            self.crash(0)

    def adopt(self) -> None:
        """Let the operator take back all that shards have, and give up what has no place."""
        if self.doubt is None:
            return
        states, count = self._states(), self.count
        made = plan(self.truth, states, self.doubt, {})
        if made.left:
            return  # the rest is for other ways out
        command = made.command(self.doubt.floor)
        self._must(command)
        self.landed["topics adopted"] += len(command.topics) + len(command.more)
        self.landed["deletions adopted"] += len(command.ended)
        for _, key in self.lost:
            if not self.is_wanted(key):
                raise Broken(f"{key} was not adopted")
        self.newest, self.doubt = None, judge(self.truth, states)
        if self.doubt is not None:
            raise Broken(f"still in doubt: {self.doubt.reasons[0]}")
        self.lost.clear()
        del self.past[count + 1 :]
        self.past += [self._copy()] * (self.count - count)  # none of the counts between was
        for shard in self.shards.values():
            shard.reconciler.wake()
        self.check()

    def _must(self, command: Command) -> None:
        result = self._apply(command)
        if isinstance(result, MetadataRefusal):
            raise Broken(f"{command} is refused: {result.message}")

    def _states(self) -> dict[GroupId, PartitionsState]:
        return {number: shard.machine.state for number, shard in self.shards.items()}

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for shard in self.shards.values():
            for request in shard.parking.expire(self.now_ms):
                self._answer(request, "expired")
        late = [one for one in self.requests if one.deadline_ms <= self.now_ms]
        if late:
            raise Broken(f"{late[0].key}: no answer by its deadline")

    def request(self, key: Key, deadline_ms: int, state: MetadataState, size: int = 100) -> str:
        """Ask for one life as a client does; return what came of it at once."""
        try:
            found = self.router.route(key.namespace, key.created, state)
        except PartitionUnknown:
            return "unknown"
        except Recreated as error:
            if compare(error.found, key.created) in (Order.BEFORE, Order.SAME):
                raise Broken(f"{key} has no later life, yet it was recreated") from error
            return "recreated"
        if found.created != key.created or found.shard not in self.shards:
            raise Broken(f"{key} leads to {found}")
        shard = self.shards[found.shard]
        if isinstance(found, Route):
            if state is self.truth and not self.is_wanted(key):
                raise Broken(f"{key} is deleted, and is routed")
            self._check_served(shard, key)
            return "served"
        request = Request(key, deadline_ms)
        try:
            shard.parking.park(key, request, size, deadline_ms)
        except Busy:
            return "busy"
        self.requests.append(request)
        self.landed["parked"] += 1
        return "parked"

    def is_wanted(self, key: Key) -> bool:
        wanted = self.truth.partition_at(key.namespace)
        return wanted is not None and wanted.created == key.created

    def view(self) -> MetadataState:
        """Return the metadata that reconcilers are shown."""
        return self.truth if self.shown is None else self.past[self.shown]

    def lives_of(self, number: GroupId) -> set[Key]:
        """Return what a shard should have."""
        return {
            Key(namespace, target.created)
            for namespace, target in self.truth.target().items()
            if target.shard == number
        }

    def rows_of(self, number: GroupId) -> set[Key]:
        return {Key(*row) for row in self.router.rows_of(number).items()}

    def check(self) -> None:
        """Look at what must hold after every step."""
        for number, key in self.lost:
            if key not in self.shards[number].lives:
                raise Broken(f"{key} was removed, and metadata has merely lost it")
            if self.shards[number].reconciler.is_fenced(key):
                raise Broken(f"{key} is fenced, and metadata has merely lost it")
        for shard in self.shards.values():
            rows = self.rows_of(shard.number)
            for key in rows:
                self._check_served(shard, key)
            for key in self._rows.get(shard.number, set()) - rows:
                if self.is_wanted(key):
                    raise Broken(f"{key} is wanted, and lost its row")
            self._rows[shard.number] = rows
            tombstones = shard.reconciler.tombstones
            for key in self._tombstones.get(shard.number, set()) - tombstones:
                if key in shard.files or key in shard.lives:
                    raise Broken(f"{key} was forgotten while its data exists")
            self._tombstones[shard.number] = set(tombstones)

    def flaw(self) -> str:
        """Say what is not yet as metadata wants it; nothing if all is."""
        for shard in self.shards.values():
            wanted = self.lives_of(shard.number)
            reconciler = shard.reconciler
            flaws = {
                "partitions": shard.lives != wanted,
                "rows": self.rows_of(shard.number) != wanted,
                "files": not shard.files <= wanted,
                "schemas": not self._are_schemas_equal(shard),
                "tombstones": bool(reconciler.tombstones),
                "flights": bool(reconciler.flights or shard.pending),
                "failures": bool(len(reconciler.backoff)),
                "parked": bool(len(shard.parking)),
            }
            wrong = [what for what, is_wrong in flaws.items() if is_wrong]
            if wrong:
                return f"shard {shard.number}: {', '.join(wrong)}"
        return ""

    def _are_schemas_equal(self, shard: SimShard) -> bool:
        state = shard.machine.state
        for key in self.lives_of(shard.number) & shard.lives:
            target = self.truth.partition_at(key.namespace)
            known = state.topics[state.topic_number(key.namespace)].schemas
            expected = target.schemas if target else ()
            if [each.schema for each in known] != [each.data for each in expected]:
                return False
        return True

    def _command(self, command: Command, wake: bool) -> None:
        if self.doubt is not None:
            return  # refused
        before = self.truth.revision
        self._apply(command)
        if self.truth.revision == before:
            return
        self.past.append(self._copy())
        assert len(self.past) == self.count + 1
        if wake:
            for shard in self.shards.values():
                shard.reconciler.wake()
        else:
            self.landed["wake lost"] += 1

    def _apply(self, command: Command) -> Result:
        body = commands.encode(command)
        self.entries += 1  # those of a history that was lost, too: none comes again
        checksum = xxh3_128_digest(b"%d" % self.entries)
        op = Op(self.entries)
        return self.metadata.apply(command.operation, self.now_ms, body, op, checksum)

    def _commit(self, shard: SimShard, deed: Deed) -> str:
        if isinstance(deed, Close) and self.is_wanted(deed.key):
            raise Broken(f"{deed.key} is wanted, and is closed")
        return shard.commit(deed)

    def _copy(self) -> MetadataState:
        copy = MetadataMachine(self.metadata.layout)
        copy.restore(self.metadata.snapshot())
        return copy.state

    def _perform(self, shard: SimShard, action: Action, target: TargetView) -> None:
        self.landed[type(action).__name__] += 1
        if isinstance(action, Fence | Close):
            self._check_removal(shard, action, target)
        match action:
            case Fence(key) | RemoveRouted(key):
                self.router.remove(key)
            case InsertRouted(key, number):
                self.router.insert(key, number)
            case ServeParked() | RefuseParked():
                self._settle(shard, action)
            case ConfirmRemove(key):
                if key in shard.files or key in shard.lives:
                    raise Broken(f"{key} is confirmed while its data exists")
                shard.failed_ms.pop(_trace(action), None)
                shard.reconciler.done(action)
            case _:
                self._check_deed(shard, action)
                shard.pending.append(action)

    def _settle(self, shard: SimShard, action: ServeParked | RefuseParked) -> None:
        if isinstance(action, ServeParked):
            self._check_served(shard, action.key)
            for request in shard.parking.take(action.key):
                self._answer(request, "served")
            return
        # Metadata that went back may want what its shard has closed since.
        if self.is_wanted(action.key) and self.doubt is None:
            raise Broken(f"{action.key} is wanted, and what waited for it is refused")
        for request in shard.parking.drop(action.key):
            self._answer(request, str(action.error))

    def _check_deed(self, shard: SimShard, deed: Deed) -> None:
        flight = (deed.work, deed.key)
        if flight in [(one.work, one.key) for one in shard.pending]:
            raise Broken(f"{deed} is planned twice")
        if self.now_ms < shard.failed_ms.get(_trace(deed), -DELAY_MS) + DELAY_MS:
            raise Broken(f"{deed} comes again without a delay")
        if isinstance(deed, InsertOwned):
            self._check_place(deed)
            if not is_within(shard.machine.state.revision, deed.revision):
                raise Broken(f"{deed} by metadata that lags")
            if deed.key.namespace in shard.machine.state.partitions:
                raise Broken(f"{deed} beside another life")

    def _check_place(self, deed: InsertOwned) -> None:
        """Look whether what is opened takes the place of what metadata has merely lost."""
        bits = self.truth.layout.partition_bits
        if deed.key.namespace >> bits in {key.namespace >> bits for _, key in self.lost}:
            raise Broken(f"{deed} in the place of what metadata has merely lost")

    def _check_removal(
        self, shard: SimShard, action: Fence | Close, target: TargetView
    ) -> None:
        if self.is_wanted(action.key):
            raise Broken(f"{action} of what is wanted")
        if self.doubt is not None:
            raise Broken(f"{action} while metadata is in doubt")
        if not shard.reconciler.is_fenced(action.key):
            raise Broken(f"{action} without a tombstone")
        is_behind = not is_within(shard.machine.state.revision, target.revision)
        is_removal = isinstance(action, Close) or action.key not in self._tombstones.get(
            shard.number, set()
        )
        if is_removal and (is_behind or not target.is_normal):
            raise Broken(f"{action} by metadata that lags")

    def _check_served(self, shard: SimShard, key: Key) -> None:
        if key not in shard.lives:
            raise Broken(f"{key} is routed to shard {shard.number}, which has no such life")
        if shard.reconciler.is_fenced(key):
            raise Broken(f"{key} is fenced, and is routed")
        if (shard.number, key) in self.lost:
            raise Broken(f"{key} is routed, and metadata does not know it")

    def _check_pass(self, shard: SimShard, target: TargetView) -> None:
        """Look at what must hold after each pass."""
        dead = {key for key in shard.files - shard.lives if key in shard.ever_closed}
        if not dead <= shard.reconciler.tombstones:
            raise Broken(f"{dead - shard.reconciler.tombstones}: files are left, no tombstone")
        if is_past(self.truth.revision, target.revision):
            return
        for key in shard.parking.keys:
            if not self.is_wanted(key):
                raise Broken(f"{key} is gone, and requests still wait for it")

    def _answer(self, request: Request, answer: str) -> None:
        if request.answers:
            raise Broken(f"{request.key} is answered twice: {request.answers[0]}, {answer}")
        request.answers.append(answer)
        self.requests.remove(request)
        self.landed["answered"] += 1


def _trace(deed: Deed) -> tuple[ReconcileWork, Key, int]:
    """Return what a deed has in common with its next try."""
    version = deed.version if isinstance(deed, AdvanceSchema) else 0
    return deed.work, deed.key, version


def _check_skip(
    reconciler: Reconciler, now_ms: int, target: TargetView, actual: ActualView
) -> None:
    """A pass that was skipped would have found nothing, also with fresh eyes."""
    if len(reconciler.backoff) or reconciler.tombstones or reconciler.flights or actual.parked:
        raise Broken("a pass was skipped while something is left to do")
    missed = Reconciler(reconciler.shard).plan(now_ms, target, actual)
    if missed:
        raise Broken(f"a pass was skipped that should have found {missed}")
