"""Starts a node from a directory and a config, in a fixed order of steps.

    config     validated by the caller
    lock       one process at a time
    identity   which cluster this is; an empty directory gets a new one
    heads      the last known op of each group: a recovery must not cut below it
    metadata   group 0 and its copy are judged; group 0 is recovered unless the copy has more
    shards     every shard is recovered, with the partitions of its log; then node.toml is
               written: its presence shows that all groups were created
    healing    group 0 is rebuilt from its copy, if that has more and fits the shards
    doubt      metadata and shards are compared; disagreements are reported
    level      all groups record which releases may open them, before new rules apply
    cursors    those beyond the end of their partition are reported
    ready      partitions are routed, pumps run

Each step is one event and one field of the ready state, and has one typed failure. A damaged
group 0 is held: its whole part is read, and nothing is written. If another group does not
start, the node runs without it and reports that; with `strict`, the start fails instead.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, TypeVar

from headrace.errors import DiskFull, HeadraceError, StorageFailed
from headrace.journal.group import Group
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.state import LEVEL
from headrace.model.ids import GroupId, Identity, ReplicaId
from headrace.model.namespace import NamespaceLayout
from headrace.node.assembly import a_catalog, a_running_shard
from headrace.node.config.config import effective
from headrace.node.config.settings import Config
from headrace.node.doubt.doubt import Doubt, judge
from headrace.node.doubt.heads_writer import HeadsWriter
from headrace.node.doubt.held import HeldMetadata, OpenedMetadata
from headrace.node.doubt.metadata_start import MetadataStart, followed, hold
from headrace.node.events import event
from headrace.node.group.driver import now_us
from headrace.node.identity import (
    METADATA,
    ClusterIdentity,
    group_directory,
    has_files,
    read_or_make,
    refuse_if_gone,
)
from headrace.node.node import Node
from headrace.node.node_status import diverged
from headrace.node.ready_state import GroupState, ready_state
from headrace.node.shard.router import Router
from headrace.node.shard.scrub_schedule import ScrubSchedule
from headrace.node.shard.scrubber import Scrubber
from headrace.partition.segments.sealer import Children
from headrace.partition.shard_store import Store, StoreOptions, open_store
from headrace.storage.atomic import atomic_replace
from headrace.storage.file import FileDirectory
from headrace.storage.lock import DirectoryLock
from headrace.storage.seam import is_full
from headrace.wire.address import SOCKET_NAME

CONFIG_NAME: Final = "node.toml"
METADATA_FILE_SIZE: Final = 4 * 1024 * 1024  # metadata entries are few and small
_THREADS: Final = 4  # for reading rows; each holds the GIL only briefly
_JUDGES: Final = 2  # for large batches: no reader waits for them; each holds one inflated

_T = TypeVar("_T")


@dataclass(slots=True)
class Boot:
    """A starting node, and everything to release at the end."""

    path: str
    config: Config
    loop: asyncio.AbstractEventLoop
    strict: bool
    release: str = ""  # of the program that runs it
    began: float = field(default_factory=time.time)
    steps: dict[str, str] = field(default_factory=dict)  # in order, with the outcome of each
    groups: dict[GroupId, GroupState] = field(default_factory=dict)
    root: FileDirectory | None = None
    was_made: bool = False  # an earlier start created all groups
    lock: DirectoryLock | None = None
    heads: HeadsWriter | None = None
    scrubber: Scrubber | None = None
    metadata_group: Group | None = None
    metadata: MetadataStart | None = None  # group 0 and its copy, as found
    may_level: bool = False  # no older release can open this log
    doubt: Doubt | None = None
    held: HeldMetadata | None = None  # group 0, if the start held it
    stores: dict[GroupId, Store] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_THREADS, thread_name_prefix="rows")
    )
    judges: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_JUDGES, thread_name_prefix="judge")
    )
    node: Node | None = None

    async def run(self) -> Node:
        """Take all steps. On failure, nothing is left open."""
        try:
            return await self._run()
        except BaseException:
            await self._abandon()
            raise

    async def claim(self) -> None:
        """Take the lock if its file exists, before ports are bound. Creates nothing.

        Fails here if another process holds the log; without a lock file, `run` creates it.
        """
        try:
            await self.loop.run_in_executor(None, self._claim)
        except BaseException as error:
            if isinstance(error, HeadraceError):
                self._failed("lock", error)
            self._let_go()
            raise

    def unclaim(self) -> None:
        """Release the lock of a node that does not run. Idempotent."""
        self._let_go()

    async def started(self) -> "StartedNode":
        """Take all steps, and return the running node."""
        return StartedNode(await self.run(), self)

    async def stop(self, seconds: float | None = None) -> None:
        """Stop cleanly: finish requests in flight, mark heads, release the lock.

        After `seconds`, or `stop.timeout`, everything is released as it is.
        """
        assert self.node is not None
        limit = self.config.stop.timeout.seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(limit):
                await self.node.stop()
        except TimeoutError:
            event("node.stop.late", seconds=limit)
            await self._abandon()
            return
        except BaseException:
            await self._abandon()
            raise
        await self.loop.run_in_executor(None, self._stop_groups)
        event("node.stopped", path=self.path)

    def describe(self) -> dict[str, object]:
        """Return the ready state."""
        return ready_state(self)

    @property
    def is_ready(self) -> bool:
        node = self.node
        return (
            node is not None
            and not node.is_stopping
            and node.catalog is not None
            and not any(driver.pump.halted for driver in node.drivers)
            and not any(state.refused for state in self.groups.values())
            and "ready" in self.steps
        )

    async def _run(self) -> Node:
        await self._step("lock", self._take_lock)
        cluster = await self._step("identity", self._identify)
        await self._step("heads", partial(self._read_heads, cluster))
        machine = MetadataMachine(NamespaceLayout(*cluster.identity.namespace_bits))
        await self._step("metadata", partial(self._recover_metadata, cluster, machine))
        await self._step("shards", partial(self._recover_shards, cluster))
        if self.groups[METADATA].is_undecided:
            await self._step("healing", partial(self._settle_metadata, cluster, machine))
        await self._step("doubt", partial(self._judge, machine))
        await self._step("level", partial(self._require_reader, machine))
        await self._step("cursors", self._check_cursors)
        self.node = self._assemble(cluster, machine)
        self.steps["ready"] = f"{len(self.node.router)} partitions"
        event("node.ready", path=self.path, partitions=len(self.node.router))
        return self.node

    async def _step(self, name: str, work: Callable[[], _T]) -> _T:
        """Run one step off the loop, and report its outcome."""
        started = time.monotonic()
        try:
            done = await self.loop.run_in_executor(None, work)
        except StorageFailed as error:
            failure = _refused(error.path, error.stage, error.cause, error)
            self._failed(name, failure)
            raise failure from error.cause
        except HeadraceError as error:
            self._failed(name, error)
            raise
        except OSError as error:
            failure = _refused(str(error.filename or self.path), name, error)
            self._failed(name, failure)
            raise failure from error
        seconds = time.monotonic() - started
        self.steps.setdefault(name, "done")
        event(f"node.{name}.done", said=self.steps[name], seconds=f"{seconds:.3f}")
        return done

    def _failed(self, name: str, error: HeadraceError) -> None:
        self.steps[name] = f"failed: {error}"
        event(f"node.{name}.failed", path=self.path, error=str(error))

    def _claim(self) -> None:
        self.lock = DirectoryLock.acquire_existing(self.path, self._socket)

    @property
    def _socket(self) -> str:
        return SOCKET_NAME if self.config.listen.socket else ""

    def _take_lock(self) -> None:
        try:
            # The directory itself may be named by a link; within it, links are not followed.
            self.root = FileDirectory.open_root(os.path.realpath(self.path), create=True)
        except OSError as error:
            hint = "Use a directory that this user can write to, or a path that does not exist"
            raise StorageFailed(self.path, "open", error, hint=hint) from error
        if self.lock is None:
            self.lock = DirectoryLock.acquire(self.path, self._socket)
        self.was_made = CONFIG_NAME in self.root.names()

    def _identify(self) -> ClusterIdentity:
        assert self.root is not None
        wanted = self.config.cluster
        bits = (wanted.stream_bits, wanted.topic_bits, wanted.partition_bits)
        identity = Identity(
            secrets.token_bytes(16), METADATA, ReplicaId(0), wanted.replicas, bits
        )
        fresh = ClusterIdentity(identity, wanted.shards)
        cluster = read_or_make(self.root, fresh, tell=lambda said: self._note("identity", said))
        self._note("identity", f"cluster {cluster.identity.cluster.hex()}")
        return cluster

    def _read_heads(self, cluster: ClusterIdentity) -> None:
        """Read the evidence for the ends of all logs, before any of them is recovered."""
        assert self.root is not None
        self.heads = HeadsWriter.of(self.root, cluster.identity.cluster, self.loop)
        self._note("heads", self.heads.lines(self.was_made))

    def _note(self, step: str, said: str) -> None:
        before = self.steps.get(step)
        self.steps[step] = said if before is None else f"{before}; {said}"

    def _recover_metadata(self, cluster: ClusterIdentity, machine: MetadataMachine) -> None:
        assert self.root is not None
        root, journal = self.root, self.config.journal
        file_size = min(journal.file_size, METADATA_FILE_SIZE)
        options = self._options(METADATA, journal.metadata_slots, file_size, LEVEL)
        is_in_use = self.was_made or any(
            has_files(self.path, number) for number in cluster.shards
        )

        def bring_back() -> RecoveryReport | None:
            start = self.metadata = MetadataStart.look(
                root, cluster.identity, machine, options, is_in_use=is_in_use
            )
            if not start.is_decided:
                return None
            self.metadata_group, report = start.recover()
            return report

        self._bring_back(METADATA, bring_back, partial(self._hold, cluster, machine))
        self._note("metadata", self.groups[METADATA].said)

    def _hold(
        self, cluster: ClusterIdentity, machine: MetadataMachine, error: HeadraceError
    ) -> bool:
        """Read the whole part of group 0; write nothing. False: it cannot be held."""
        assert self.root is not None
        op = hold(self.root, cluster.identity, machine, error)
        if op is None:
            return False
        self.groups[METADATA].held = error
        self._note("metadata", f"held as of op {op}")
        event("node.group.held", level=logging.ERROR, op=op, error=str(error))
        return True

    def _settle_metadata(self, cluster: ClusterIdentity, machine: MetadataMachine) -> None:
        """Heal group 0 from its copy, now that the revisions of the shards are known."""
        assert self.metadata is not None
        start = self.metadata

        def bring_back() -> RecoveryReport:
            self.metadata_group, report = start.settle(followed(cluster.shards, self.stores))
            return report

        self._bring_back(METADATA, bring_back, partial(self._hold, cluster, machine))
        self._note("healing", self.groups[METADATA].said)
        refused = [one.refused for one in self.groups.values() if one.refused is not None]
        if self.strict and refused:  # of a shard: deferred until group 0 was settled
            raise refused[0]

    def _recover_shards(self, cluster: ClusterIdentity) -> None:
        assert self.root is not None
        root, journal = self.root, self.config.journal
        for number in cluster.shards:

            def bring_back(number: GroupId = number) -> RecoveryReport:
                options = StoreOptions(
                    group=self._options(number, journal.slots, journal.file_size, LEVEL),
                    sealer=lambda: Children(self.config.seal.children),
                )
                group = self.metadata_group
                # Without group 0 it is unknown whether the log was in use.
                if self.was_made or group is None or group.journal.durable:
                    is_told = group is not None or self.groups[METADATA].is_undecided
                    refuse_if_gone(self.path, number, is_told=is_told)
                store = open_store(group_directory(root, number), cluster.of(number), options)
                self.stores[number] = store
                return store.report

            self._bring_back(number, bring_back)
        count = sum(len(store.machine.state.partitions) for store in self.stores.values())
        said = "; ".join(f"{number}: {self.groups[number].said}" for number in cluster.shards)
        self._note("shards", f"{count} partitions; {said}")
        if self.was_made or not any(state.refused for state in self.groups.values()):
            self._write_config()

    def _write_config(self) -> None:
        """Write the config of this start. Its presence shows that all groups were created."""
        assert self.root is not None
        try:
            atomic_replace(self.root, CONFIG_NAME, [effective(self.config).encode()])
        except StorageFailed as failed:
            # Its content is for people; a later start relies only on its presence.
            if failed.stage == "sync-dir" or CONFIG_NAME not in self.root.names():
                raise
            self._note("config", f"{CONFIG_NAME} is from an earlier start: {failed}")
            event("node.config.kept", level=logging.WARNING, error=str(failed))

    def _bring_back(
        self,
        number: GroupId,
        work: Callable[[], RecoveryReport | None],
        hold: Callable[[HeadraceError], bool] = lambda _: False,
    ) -> None:
        """Recover one group, hold it, or note why it fails. No report: not decided yet."""
        state = self.groups.setdefault(number, GroupState())
        try:
            state.report = work()
        except HeadraceError as error:
            if hold(error):
                return
            state.refused = error
            event("node.group.refused", group=number, error=str(error))
            if self.strict and not self.groups[METADATA].is_undecided:
                raise
        if number == METADATA and self.metadata is not None:
            state.lines = self.metadata.lines()
        for line in [] if state.report is None else [*state.lines, *state.report.lines()]:
            event("node.group.recovered", group=number, said=line)

    def _judge(self, machine: MetadataMachine) -> None:
        """Check that metadata is what it once acknowledged, before anything acts on it."""
        if self.groups[METADATA].refused is not None:
            self._note("doubt", "group 0 did not start, so nothing is served")
            return
        held = self.groups[METADATA].held
        states = {number: store.machine.state for number, store in self.stores.items()}
        self.doubt = judge(
            machine.state, states, "" if held is None else f"group 0 is held: {held}"
        )
        if self.metadata is not None and self.metadata_group is not None:
            self.metadata.begin_copy(self.metadata_group, is_in_doubt=self.doubt is not None)
        if self.doubt is None:
            self._note("doubt", "none")
            return
        for reason in self.doubt.reasons:
            event("node.doubt.found", level=logging.ERROR, said=reason)
        self._note("doubt", f"{len(self.doubt.reasons)} reasons: {self.doubt.reasons[0]}")

    def _require_reader(self, machine: MetadataMachine) -> None:
        """Keep older releases out of a log before the rules of this one apply to it.

        After a crash following this step, the next start proposes the level again.
        """
        group = self.metadata_group
        self._note("level", f"level {machine.state.level}")
        if group is None:
            return
        try:
            for each in (group, *(store.group for store in self.stores.values())):
                each.require_reader(LEVEL)
        except DiskFull as error:
            self._note("level", f"level {LEVEL} is postponed: {error}")
        else:
            self.may_level = True

    def _check_cursors(self) -> None:
        """Report cursors beyond the end of their partition. They are never reset."""
        self.diverged += (said for store in self.stores.values() for said in diverged(store))
        for said in self.diverged:
            event("node.cursor.diverged", said=said)
        self._note("cursors", f"{len(self.diverged)} beyond the end")

    def _assemble(self, cluster: ClusterIdentity, machine: MetadataMachine) -> Node:
        node = Node(
            self.path,
            cluster.identity.cluster,
            self.config,
            self.loop,
            Router(),
            self.threads,
            self.describe,
        )
        node.doubt = self.doubt
        if self.metadata_group is not None:
            node.catalog = a_catalog(node, machine, self.metadata_group, cluster.shard_count)
            node.catalog.may_level = self.may_level
            if self.doubt is None and not any(one.refused for one in self.groups.values()):
                node.catalog.begin_level()  # only after all groups of a new log were created
        elif self.groups[METADATA].held is not None:
            node.catalog = a_catalog(node, machine, None, cluster.shard_count)
            assert self.metadata is not None
            opened = partial(self._on_opened, node, cluster.shard_count)
            node.held = self.held = HeldMetadata(self.metadata, self.loop, opened)
        for number, store in self.stores.items():
            node.shards[number] = a_running_shard(number, store, node, self.judges)
        node.heads_writer = self.heads
        settings = self.config.scrub
        schedule = ScrubSchedule(settings.every.seconds, settings.rate, self.loop.time())
        node.scrubber = self.scrubber = Scrubber(self.stores, schedule, Random())
        if node.catalog is not None:
            target = node.target()
            for running in node.shards.values():
                effects = running.shard.reconcile(target, now_us(), self.loop.time())
                running.driver.perform(effects)
        node.tick()
        return node

    def _on_opened(
        self, node: Node, shard_count: int, opened: OpenedMetadata, served: Callable[[], None]
    ) -> None:
        """Serve a group 0 that was held, after the operator's decision."""
        assert self.metadata is not None
        assert self.heads is not None
        state = self.groups[METADATA]
        state.held, state.report, state.lines = None, opened.report, self.metadata.lines()
        for line in [*state.lines, *opened.report.lines()]:
            event("node.group.recovered", group=METADATA, said=line)
        self.metadata_group, self.may_level = opened.group, True
        catalog = a_catalog(node, opened.machine, opened.group, shard_count)
        catalog.may_level = True
        node.on_opened(catalog)
        self.heads.write_now(node.heads, served)

    def _options(
        self, number: GroupId, slots: int, file_size: int, reader_min: int
    ) -> RecoveryOptions:
        assert self.heads is not None
        state = self.groups.setdefault(number, GroupState())
        state.head = self.heads.file.heads.get(number)
        return RecoveryOptions(
            slots=slots,
            file_size=file_size,
            spare_count_max=self.config.journal.spare_count,
            reader_min=reader_min,
            head=state.head,
        )

    def _stop_groups(self) -> None:
        """Mark the heads, and release everything."""
        if self.scrubber is not None:
            self.scrubber.stop()
        stops: list[Callable[[], None]] = [store.stop for store in self.stores.values()]
        if self.metadata_group is not None:
            stops.append(self.metadata_group.stop)
        try:
            for stop in stops:
                try:
                    stop()
                except HeadraceError as error:  # the others still get their clean heads
                    event("node.group.unclean", level=logging.WARNING, error=str(error))
            if self.heads is not None and self.node is not None:
                self.heads.stop(self.node.heads)
        finally:
            self._let_go()

    async def _abandon(self) -> None:
        """Release everything as it is: the next start finds what a crash would leave."""
        if self.held is not None:
            await self.held.settled()
        if self.node is not None:
            for driver in self.node.drivers:
                await self.loop.run_in_executor(None, driver.abandon)
        if self.scrubber is not None:
            await self.loop.run_in_executor(None, self.scrubber.stop)
        if self.heads is not None:
            await self.loop.run_in_executor(None, self.heads.abandon)
        for store in self.stores.values():
            with suppress(HeadraceError):
                store.close()
        if self.metadata_group is not None:
            self.metadata_group.close()
        self._let_go()

    def _let_go(self) -> None:
        self.threads.shutdown(wait=False)
        self.judges.shutdown(wait=False)
        if self.lock is not None:
            self.lock.release()
        if self.root is not None:
            self.root.close()


async def start(path: str, config: Config, *, strict: bool = True) -> "StartedNode":
    """Start the node in `path`, creating it if necessary. The caller stops it."""
    return await begin(path, config, strict=strict).started()


def begin(path: str, config: Config, *, strict: bool = True) -> Boot:
    """Prepare a start without taking a step, so that its state can be observed meanwhile."""
    return Boot(path, config, asyncio.get_running_loop(), strict)


def _refused(
    path: str, stage: str, cause: OSError, known: StorageFailed | None = None
) -> HeadraceError:
    """Return why a step failed: a full disk, or `known`."""
    if is_full(cause):
        return DiskFull(path, stage, hint="Free some space, then start again")
    return known or StorageFailed(path, stage, cause)


@dataclass(frozen=True, slots=True, repr=False)
class StartedNode:
    """A running node. `stop` ends it."""

    node: Node
    boot: Boot

    def __repr__(self) -> str:
        """Keep it short: asyncio prints a task's result when it sets a signal handler."""
        return f"StartedNode({len(self.node.shards)} shards)"

    async def stop(self) -> None:
        await self.boot.stop()
