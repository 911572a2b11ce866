"""Sealing at once what a log in this process holds: a small run would wait for many Seals."""

import asyncio

from headrace.client.connect.embedded_nodes import home_of
from headrace.node.group.driver import now_us
from headrace.partition.machine.segment_cut import SEGMENT_SIZES


def seal_all(path):
    """Have so many checkpoints that every row is in a segment."""
    for _ in range(SEGMENT_SIZES.waited_max + 1):
        checkpoint(path)


def checkpoint(path, count=1):
    """Have checkpoints, and wait until the files of each are collected."""
    home = home_of(str(path))
    node = home.channel._serving.boot.node
    for _ in range(count):
        home.runner.run(_checkpoint(node))


async def _checkpoint(node):
    for running in list(node.shards.values()):
        group, pump = running.shard.store.group, running.driver.pump
        before = _op(group)
        running.driver.perform(pump.request_seal(now_us()))
        async with asyncio.timeout(60):
            while _op(group) <= before or pump.is_persisting:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def _op(group):
    return group.superblock.current.checkpoint.op
