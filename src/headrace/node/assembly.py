"""Assembles the driver and the request handlers of each recovered group."""

import asyncio
from concurrent.futures import Executor
from functools import partial

from headrace.journal.group import Group
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.state import SEGMENT_LEVEL
from headrace.model.ids import GroupId, Op
from headrace.model.schema import SEGMENT_FORMAT, SEGMENT_FORMAT_FIRST
from headrace.node.config.settings import Config
from headrace.node.group.driver import Driver
from headrace.node.group.pump import Pump, PumpLimits
from headrace.node.group.seal_pace import SealPace
from headrace.node.node import Node, Running
from headrace.node.requests.admission import Admission
from headrace.node.requests.catalog import Catalog
from headrace.node.shard.reconciler import Reconciler
from headrace.node.shard.shard import Shard
from headrace.partition.shard_store import Store


def a_catalog(
    node: Node, machine: MetadataMachine, group: Group | None, shard_count: int
) -> Catalog:
    """Create the catalog of group 0; without a group, of its readable part."""
    driver = None
    if group is not None:
        driver = _driver("0", group, node.config, node.config.journal.metadata_slots, node.loop)
    made = Catalog(driver, machine, shard_count, node.threads, node.on_metadata, node.in_doubt)
    if driver is not None:
        driver.pump.may_seal = node.doubt is None  # before a Seal that is due
        driver.start()
    return made


def a_running_shard(number: GroupId, store: Store, node: Node, judges: Executor) -> Running:
    """Put a shard into service."""
    driver = _driver(
        str(number), store.group, node.config, node.config.journal.slots, node.loop
    )
    reconciler = Reconciler(number, node.config.reconcile.tick.ms)
    shard = Shard(number, store, driver.pump, node.router, reconciler)
    driver.on_checkpoint = shard.on_paired
    driver.on_failed_checkpoint = shard.on_unpaired
    driver.after = lambda: node.wake() if reconciler.due_at_ms() == 0 else None
    shard.set_doubt(is_in_doubt=node.doubt is not None)  # before a Seal that is due
    driver.pump.segment_format = partial(_segment_format, node, store.group)
    driver.start()
    return Running(shard, driver, Admission(node.loop, judges))


def _segment_format(node: Node, group: Group) -> int:
    """Return the newest format of segments that every release which may open the log reads.

    A shard that could not lock older releases out stays at the first.
    """
    level = 0 if node.catalog is None else node.catalog.state.level
    can_read = min(level, group.superblock.current.reader_min)
    return SEGMENT_FORMAT if can_read >= SEGMENT_LEVEL else SEGMENT_FORMAT_FIRST


def _driver(
    name: str, group: Group, config: Config, slots: int, loop: asyncio.AbstractEventLoop
) -> Driver:
    commit = config.commit
    limits = PumpLimits(commit.pipeline, commit.pipeline_size, config.limits.queue_size)
    pace = SealPace(slots, config.seal.size, config.seal.age.us)
    _count_unsealed(pace, group)
    return Driver(name, Pump(group, pace, limits), loop, commit.group_size)


def _count_unsealed(pace: SealPace, group: Group) -> None:
    """Count the entries that recovery found since the last Seal, as if appended now."""
    sealed = group.superblock.current.checkpoint.op
    for header in group.journal.headers(Op(sealed + 1), group.journal.durable):
        pace.count(header.body_size, header.timestamp)
