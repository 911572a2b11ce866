"""A running node: every request enters here and is answered exactly once.

Everything runs on the thread of one event loop, except for reading rows and validating large
batches, which have their own threads.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, cast, get_args

from headrace.errors import (
    CorruptEntry,
    CorruptSegment,
    HeadraceError,
    NotReady,
    PartitionUnknown,
    Recreated,
)
from headrace.journal.heads import Head
from headrace.metadata.state import MetadataState
from headrace.model.ids import GroupId, Offset, Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.node.call import Answer, Call, Calls
from headrace.node.config.settings import Config
from headrace.node.doubt.adopt import WayOut
from headrace.node.doubt.doubt import Doubt, judge
from headrace.node.doubt.heads_writer import HeadsWriter
from headrace.node.doubt.held import HeldMetadata
from headrace.node.events import event
from headrace.node.group.driver import Driver, now_us
from headrace.node.identity import METADATA
from headrace.node.leases import Lessor
from headrace.node.requests.admission import Admission, Batch, BatchSchema
from headrace.node.requests.catalog import Catalog
from headrace.node.requests.outcomes import defect, late, schema_unknown
from headrace.node.requests.proposals import to_log
from headrace.node.requests.reads import bounds_of, cursors_of, end_for, fetched, file_chunk
from headrace.node.shard.erasure import Erasure
from headrace.node.shard.router import Awaited, Router
from headrace.node.shard.scrubber import Scrubber
from headrace.node.shard.shard import Here, Parked, Shard
from headrace.node.shard.views import TargetView
from headrace.partition.fetch import Wanted, fetch
from headrace.partition.machine.state import Partition
from headrace.partition.reader import Key, Reader
from headrace.partition.segments.entry_rows import Schemas
from headrace.storage.seam import Buffer
from headrace.wire import read_messages, write_messages
from headrace.wire.erase_messages import EraseDeleted
from headrace.wire.file_messages import FetchFile, FileChunk, FileDigests, GetFileDigests
from headrace.wire.greeting import GetStatus, Ping, Pong, StatusReply
from headrace.wire.lease_messages import LeaseFiles, ReleaseLease, RenewLease
from headrace.wire.messages import MetadataRequest, PartitionRequest, Reply, Request, word_of
from headrace.wire.topic_messages import AdoptOrphans, DescribeOrphans, ForgetOrphan

TICK_S = 0.1  # how late a deadline may be noticed
FOLLOW_S = 1.0  # how long a stop waits for shards to follow; a stuck one follows later
FOLLOW_LOOK_S = 0.002
_OF_PARTITIONS: Final = frozenset(get_args(PartitionRequest))


@dataclass(slots=True)
class Running:
    """A shard in service, with its driver and its admission."""

    shard: Shard
    driver: Driver
    admission: Admission


@dataclass(slots=True)
class Node:
    """Implements `server.service.Service`. Created by `bootstrap.start`."""

    path: str
    cluster: bytes
    config: Config
    loop: asyncio.AbstractEventLoop
    router: Router
    threads: ThreadPoolExecutor  # rows are read there
    describe: Callable[[], dict[str, object]]  # the ready state of bootstrap
    catalog: Catalog | None = None  # None: group 0 refused to start
    doubt: Doubt | None = None  # of metadata; found at the start or never
    held: HeldMetadata | None = None  # group 0, until an operator's decision opens it
    heads_writer: HeadsWriter | None = None
    scrubber: Scrubber | None = None
    shards: dict[GroupId, Running] = field(default_factory=dict)
    is_stopping: bool = False
    calls: Calls = field(init=False)
    lessor: Lessor = field(init=False)
    erasure: Erasure = field(init=False)
    _target: TargetView | None = None  # of the revision in it
    _is_woken: bool = False
    _timer: asyncio.TimerHandle | None = None
    _retain_at: float = 0.0

    def __post_init__(self) -> None:
        self.calls = Calls(self.loop.time)
        self.lessor = Lessor(self.shards)
        self.erasure = Erasure(self.shards, self.lessor.leases)

    def submit(self, request: Request, body: Buffer, deadline: float, answer: Answer) -> None:
        """Begin a request. `answer` is called once, on the loop's thread."""
        self._begin(self.calls.begin(request, body, deadline, answer))

    def _begin(self, call: Call) -> None:
        """Begin a request, or resume one that had to wait."""
        try:
            self._submit(call)
        except HeadraceError as error:
            call.finish(error)
        except Exception as error:  # noqa: BLE001 - the root of every request
            call.finish(defect(word_of(call.request), error))

    def status(self) -> dict[str, object]:
        """Return the status that `/health/ready` shows."""
        return self.describe()

    def require_catalog(self) -> Catalog:
        """Return the catalog. Raises NotReady without one: nothing is served then."""
        if self.catalog is None:
            raise NotReady("group 0 is not serving, so no group is", hint="Check its status")
        return self.catalog

    @property
    def drivers(self) -> list[Driver]:
        """The drivers of all groups in service."""
        metadata = None if self.catalog is None else self.catalog.driver
        drivers = [running.driver for running in self.shards.values()]
        return drivers if metadata is None else [*drivers, metadata]

    @property
    def metadata(self) -> MetadataState:
        return self.require_catalog().state

    @property
    def heads(self) -> dict[GroupId, Head]:
        """The head of each group in service.

        Metadata in doubt is left out: its replacement may be shorter.
        """
        pumps = {number: one.driver.pump for number, one in self.shards.items()}
        is_told = self.catalog is not None and self.doubt is None
        if is_told and self.catalog is not None and self.catalog.driver is not None:
            pumps[METADATA] = self.catalog.driver.pump
        found = {number: pump.head for number, pump in pumps.items()}
        return {number: head for number, head in found.items() if head is not None}

    def wake(self) -> None:
        """Schedule a reconcile pass: one for everything that happens in this loop turn."""
        if not self._is_woken:
            self._is_woken = True
            self.loop.call_soon(self._reconcile)

    def on_metadata(self) -> None:
        """Called when metadata has a new revision."""
        for running in self.shards.values():
            running.shard.reconciler.wake()
        self.wake()

    def target(self) -> TargetView:
        """Return the target state of metadata; it changes only with the revision."""
        metadata, known = self.metadata, self._target
        is_known = known is not None and known.revision == metadata.revision
        if known is None or not is_known or known.doubt is not self.doubt:
            deleted = dict(metadata.deleted)
            known = TargetView(
                metadata.revision,
                True,
                metadata.target(),
                deleted,
                self.doubt,
            )
            self._target = known
        if not self.require_catalog().is_normal:
            return replace(known, is_normal=False)
        return known

    def set_doubt(self, doubt: Doubt | None) -> None:
        """Set the metadata doubt, and pass it on to all shards."""
        self.doubt = doubt
        if doubt is None and self.catalog is not None and self.catalog.driver is not None:
            self.catalog.driver.pump.may_seal = True
        for running in self.shards.values():
            running.shard.set_doubt(is_in_doubt=doubt is not None)

    def on_opened(self, catalog: Catalog) -> None:
        """Called when a held group 0 is open: judges it again, with the operator's decision."""
        assert self.doubt is not None
        self.catalog, self.held = catalog, None
        self.set_doubt(replace(self.doubt, is_held=False))
        self._judge_again()
        self.on_metadata()

    def in_doubt(self, what: str) -> HeadraceError | None:
        """Return why `what` is not done, or unknown; None if metadata is not in doubt."""
        return None if self.doubt is None else self.doubt.error(self.path, what)

    def _judge_again(self) -> None:
        """End the doubt, without a restart, once there is no reason left for it."""
        if self.doubt is None or self.doubt.is_held:
            return
        states = {number: one.shard.state for number, one in self.shards.items()}
        found = judge(self.metadata, states)
        if found is None and self._absent():
            return  # the revisions that they followed are unknown
        if found != self.doubt:
            self.set_doubt(found)
        if found is None:
            event("node.doubt.ended", revision=self.metadata.revision)
            self.require_catalog().begin_level()

    def _absent(self) -> list[GroupId]:
        """Return the shards that did not start."""
        numbers = map(GroupId, range(1, self.require_catalog().shard_count + 1))
        return [number for number in numbers if number not in self.shards]

    def _require_all_shards(
        self, request: AdoptOrphans | ForgetOrphan | DescribeOrphans
    ) -> None:
        """Refuse to decide about lives while an absent shard may have unseen ones."""
        absent = self._absent()
        is_dry = isinstance(request, AdoptOrphans) and request.is_dry
        if absent and not (is_dry or isinstance(request, DescribeOrphans)):
            raise NotReady(
                f"shard {absent[0]} is not serving, so its content is unknown: nothing was "
                "changed",
                hint="`headrace status` shows why. Bring it back first, or copy its readable "
                "rows into a new log with `headrace doctor --salvage`",
            )

    def begin_stop(self) -> None:
        """Accept no new requests, and release those that wait for future rows."""
        if not self.is_stopping:
            self.is_stopping = True
            for running in self.shards.values():
                running.driver.perform(running.shard.on_stop())

    async def stop(self) -> None:
        """Answer requests in flight, then end the threads. The caller sets the limit."""
        self.begin_stop()
        await self.calls.drained()
        await self._followed()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(driver.stop() for driver in self.drivers))

    async def _followed(self) -> None:
        """Wait until each shard that can has followed the metadata.

        A shard does not follow while it opens a partition, and the last pass may have come at
        that time: stopping then would leave it behind an acknowledged change.
        """
        ends = self.loop.time() + FOLLOW_S
        while self.loop.time() < ends and any(map(self._is_behind, self.shards.values())):
            self._reconcile()
            await asyncio.sleep(FOLLOW_LOOK_S)

    def _is_behind(self, running: Running) -> bool:
        if self.catalog is None or running.driver.pump.halted is not None:
            return False
        return running.shard.is_behind(self.target())

    def _submit(self, call: Call) -> None:
        request = call.request
        if type(request) in _OF_PARTITIONS and not self.is_stopping:
            self._on_partition(cast(PartitionRequest, request), call)
        elif isinstance(request, Ping):
            call.finish(Pong())
        elif isinstance(request, GetStatus):
            call.finish(StatusReply(json.dumps(self.status())))
        elif self.is_stopping:
            raise NotReady("the node is stopping", hint="Reconnect in a moment")
        elif isinstance(request, MetadataRequest):
            self.require_catalog().handle(request, call.deadline, call.finish)
        elif isinstance(request, AdoptOrphans | ForgetOrphan | DescribeOrphans):
            self._require_all_shards(request)
            states = {number: one.shard.state for number, one in self.shards.items()}
            catalog = self.require_catalog()
            way_out = WayOut(self.path, catalog, self.doubt, states, self.held)
            way_out.handle(request, call.deadline, call.finish)
        elif isinstance(request, read_messages.GetBounds | LeaseFiles):
            self._on_partitions(request, call)
        elif isinstance(request, RenewLease | ReleaseLease | GetFileDigests):
            self._on_lease(request, call)
        elif isinstance(request, EraseDeleted):
            self._on_erase(request, call)
        else:
            self._on_partition(request, call)

    def _on_partitions(self, request: read_messages.GetBounds | LeaseFiles, call: Call) -> None:
        """Answer about several partitions, all at the same moment."""
        found = [self._find(one.namespace, one.created) for one in request.partitions]
        shards: list[tuple[Shard, Key]] = []
        for one, running in zip(request.partitions, found, strict=True):
            if isinstance(running, Awaited):
                self._park(running, call, one.namespace)
                return
            shards.append((running.shard, Key(Namespace(one.namespace), Revision(one.created))))
        if isinstance(request, LeaseFiles):
            leased, due = self.lessor.lease(request, shards, self.loop.time())
            self._collect(due)
            call.finish(leased)
            return
        bounds = [bounds_of(shard.store.reader.partition(key)) for shard, key in shards]
        call.finish(read_messages.BoundsReply(tuple(bounds)))

    def _on_lease(
        self, request: RenewLease | ReleaseLease | GetFileDigests, call: Call
    ) -> None:
        if isinstance(request, RenewLease):
            call.finish(self.lessor.renew(request, self.loop.time()))
        elif isinstance(request, GetFileDigests):
            digests = self.lessor.leases.digests(request.lease_id, self.loop.time())
            call.finish(FileDigests(digests))
        else:
            reply, due = self.lessor.release(request)
            self._collect(due)
            call.finish(reply)

    def _collect(self, shards: Sequence[Shard]) -> None:
        """Request a checkpoint, which collects the files that leases have kept."""
        for shard in shards:
            running = self.shards[shard.number]
            running.driver.perform(shard.pump.request_seal(now_us()))

    def _on_erase(self, request: EraseDeleted, call: Call) -> None:
        """Take the next step, then list the remaining files off the loop."""
        if self.doubt is not None:
            raise self.doubt.error(self.path, "cannot erase deleted rows while")
        count = self.require_catalog().shard_count
        look = self.erasure.begin(request, count, self.target(), self.loop.time())

        def work() -> tuple[Reply, Sequence[Buffer]]:
            reply, due = look()
            self.loop.call_soon_threadsafe(self._collect, due)
            return reply, ()

        self._read(work, call)

    def _find(self, namespace: int, created: int) -> Running | Awaited:
        """Find the shard that serves a partition, or will. There is no default."""
        try:
            route = self.router.route(namespace, created, self.metadata)
        except (PartitionUnknown, Recreated):
            self._refuse_if_blocked(namespace)
            raise
        if isinstance(route, Awaited):
            self._refuse_if_blocked(namespace, route.shard)
        running = self.shards.get(route.shard)
        if running is None:
            what = f"shard {route.shard} is not serving"
            raise NotReady(what, hint="Check the node's status")
        return route if isinstance(route, Awaited) else running

    def _refuse_if_blocked(self, namespace: int, shard: GroupId | None = None) -> None:
        """Raise at once if doubt blocks a namespace: nothing is served or created there."""
        doubt = self.doubt
        if doubt is None:
            return
        is_astray = shard is not None and doubt.is_astray(shard)
        if is_astray or doubt.hides(namespace, self.metadata.revision):
            raise doubt.error(self.path, f"partition {namespace:x} is not served while")

    def _park(self, awaited: Awaited, call: Call, namespace: int) -> None:
        """Park a request until its partition is open, then resume it."""
        running = self.shards[awaited.shard]
        limit = self.loop.time() + self.config.reconcile.park_deadline.seconds
        ended = partial(self._unparked, call)
        parked = Parked(Key(Namespace(namespace), awaited.created), ended)
        deadline = min(call.deadline, limit)
        running.driver.perform(running.shard.park(parked, len(call.body), deadline))
        self.wake()

    def _unparked(self, call: Call, outcome: object) -> None:
        if isinstance(outcome, Here):
            self._begin(call)
        else:
            assert isinstance(outcome, HeadraceError)
            call.finish(outcome)

    def _on_partition(self, request: PartitionRequest, call: Call) -> None:
        running = self._find(request.namespace, request.created)
        if isinstance(running, Awaited):
            self._park(running, call, request.namespace)
            return
        if self.doubt is not None and self.doubt.refuses(request):
            raise self.doubt.refusal(self.path, request)
        key = Key(Namespace(request.namespace), Revision(request.created))
        reader = running.shard.store.reader
        match request:
            case write_messages.AppendRequest() | write_messages.StageRequest():
                self._admit(running, reader.schemas(key), request, call)
            case read_messages.Fetch():
                self._fetch(running, key, request, call)
            case FetchFile():
                self._fetch_file(reader, request, call)
            case read_messages.GetOffset():
                timestamp = request.timestamp
                self._read_rows(
                    reader,
                    lambda: (read_messages.FoundOffset(reader.offset_at(key, timestamp)), ()),
                    call,
                )
            case read_messages.GetCursors():
                call.finish(cursors_of(reader.partition(key)))
            case _:
                self._propose(running, to_log(request), call)

    def _admit(
        self,
        running: Running,
        known: Schemas,
        request: write_messages.AppendRequest | write_messages.StageRequest,
        call: Call,
    ) -> None:
        """Validate a batch; a large one is validated off the loop."""
        schema = known.versions.get(request.schema_id)
        if schema is None:
            raise schema_unknown(request.schema_id, len(known.versions))
        kind = BatchSchema(schema, known.layouts[request.schema_id])
        batch = Batch(request, call.body, kind)
        outcome = running.admission.admit(batch, partial(self._admitted, running, batch, call))
        if isinstance(outcome, EntryProposal):
            self._propose(running, outcome, call)
        elif outcome is not None:
            raise outcome

    def _admitted(
        self,
        running: Running,
        batch: Batch,
        call: Call,
        outcome: EntryProposal | HeadraceError,
    ) -> None:
        """Propose a validated batch, in the order of its writer."""
        try:
            if isinstance(outcome, HeadraceError):
                raise outcome
            # The partition may be closed by now, and an erasure may rely on that.
            self._find(batch.request.namespace, batch.request.created)
            self._propose(running, outcome, call)
        except HeadraceError as error:
            call.finish(error)

    def _propose(self, running: Running, proposal: EntryProposal, call: Call) -> None:
        if self.loop.time() >= call.deadline:
            call.finish(late())
        else:
            running.driver.submit(proposal, call.settle, call.deadline)

    def _fetch(
        self, running: Running, key: Key, request: read_messages.Fetch, call: Call
    ) -> None:
        """Read now, or once there are rows."""
        reader = running.shard.store.reader
        known = reader.schemas(key).versions
        if request.version > max(known):
            raise schema_unknown(request.version, len(known))
        wait = min(call.deadline, self.loop.time() + max(0, request.wait_ms) / 1_000)
        end = reader.partition(key).end
        request = self._with_known_schema(reader.partition(key), request)
        if request.start >= end and request.end is None and self.loop.time() < wait:
            running.shard.wait(key, partial(self._fetch_again, request, call), wait)
            return
        size_max = max(1, min(request.size_max, self.config.limits.fetch_size))
        wanted = Wanted(
            key,
            Offset(request.start),
            None if request.end is None else Offset(request.end),
            size_max,
            request.columns,
            request.version,
        )

        self._read_rows(reader, lambda: fetched(fetch(reader, wanted)), call)

    def _with_known_schema(
        self, partition: Partition, request: read_messages.Fetch
    ) -> read_messages.Fetch:
        """Cut the request before rows whose schema metadata has lost: they cannot be read."""
        end = end_for(partition, request.version)
        target = self.metadata.partition_at(partition.namespace)
        is_lost = target is not None and request.version >= len(target.schemas)
        wants_more = request.end is None or request.end > end
        if self.doubt is None or not is_lost or end == partition.end or not wants_more:
            return request
        if request.start >= end:
            raise self.doubt.error(
                self.path, f"rows from offset {end} on have an unknown schema, and"
            )
        return replace(request, end=end)

    def _fetch_again(self, request: read_messages.Fetch, call: Call) -> None:
        """Read the rows that arrived, or none if the wait timed out."""
        call.request = replace(request, wait_ms=0)
        self._begin(call)

    def _fetch_file(self, reader: Reader, request: FetchFile, call: Call) -> None:
        leases = self.lessor.leases
        held = leases.file(request, self.loop.time())

        def work() -> tuple[FileChunk, Sequence[Buffer]]:
            try:
                return file_chunk(
                    reader.keeper.files, request, held.size, self.config.limits.fetch_size
                )
            except CorruptSegment:
                # If the lease has ended by now, the file is not damaged but deleted.
                leases.file(request, self.loop.time())
                raise

        self._read_rows(reader, work, call)

    def _read_rows(
        self, reader: Reader, work: Callable[[], tuple[Reply, Sequence[Buffer]]], call: Call
    ) -> None:
        """Read a shard's files; the status lists corrupt ones until a restart."""

        def read() -> tuple[Reply, Sequence[Buffer]]:
            try:
                return work()
            except (CorruptEntry, CorruptSegment) as error:
                reader.keeper.files.report_rot(error.path, str(error))
                raise

        self._read(read, call)

    def _read(self, work: Callable[[], tuple[Reply, Sequence[Buffer]]], call: Call) -> None:
        """Read off the loop, answer on it. A request past its deadline is not begun."""

        def run() -> None:
            reply: Reply | HeadraceError
            body: Sequence[Buffer] = ()
            try:
                if self.loop.time() >= call.deadline:
                    reply = late()
                else:
                    reply, body = work()
            except HeadraceError as error:
                reply = error
            except Exception as error:  # noqa: BLE001 - the root of a thread's work
                reply = defect("a read", error)
            self.loop.call_soon_threadsafe(call.finish, reply, body)

        self.threads.submit(run)

    def _reconcile(self) -> None:
        self._is_woken = False
        if self.catalog is None:
            return
        self._judge_again()
        target = self.target()
        for running in self.shards.values():
            effects = running.shard.reconcile(target, now_us(), self.loop.time())
            running.driver.perform(effects)
            is_due = running.shard.reconciler.due_at_ms() == 0
            if is_due and not self.is_stopping and running.driver.pump.halted is None:
                self.wake()

    def tick(self) -> None:
        self._timer = self.loop.call_later(TICK_S, self.tick)
        if self.catalog is None:
            return
        if self.catalog.driver is not None:
            self.catalog.driver.tick()
        target, now, clock = self.target(), now_us(), self.loop.time()
        self._collect(self.lessor.expire(clock))
        retains = clock >= self._retain_at and self.doubt is None
        if retains:
            self._retain_at = clock + self.config.retention.tick.seconds
        for running in self.shards.values():
            effects = running.shard.on_tick(target, now, clock)
            if retains:
                max_hold_ms = self.config.retention.max_hold.ms
                effects += running.shard.retain(self.metadata, now, max_hold_ms)
            running.driver.perform(effects)
        if self.heads_writer is not None:
            self.heads_writer.tick(self.heads, clock)
        if self.scrubber is not None and self.doubt is None:
            self.scrubber.tick(clock)  # in doubt nothing is set aside
