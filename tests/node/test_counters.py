"""What a node counts: each request once, by how it ended."""

import asyncio
from dataclasses import replace

import pytest
from tests.node.nodes import Writer, a_node, a_topic, ask, fetch_of

from headrace.errors import PartitionUnknown
from headrace.node.counters import Distribution
from headrace.wire.greeting import Ping


def test_a_request_is_counted_once_by_how_it_ended(tmp_path):
    async def scenario():
        async with a_node(tmp_path / "data") as started:
            info = await a_topic(started)
            writer = Writer(info)
            request, body = writer.request(10)
            for _ in range(2):  # a repeat is answered, and appends nothing
                await ask(started, request, body)
            await ask(started, fetch_of(writer.where))
            await ask(started, Ping())
            with pytest.raises(PartitionUnknown):
                await ask(started, fetch_of(replace(writer.where, namespace=2**40)))
            return started.node.calls, len(body)

    calls, size = asyncio.run(scenario())
    counters = calls.counters
    assert calls.open_count == 0
    assert (counters.appends, counters.appended_rows, counters.appended_bytes) == (1, 10, size)
    assert (counters.fetches, counters.failures) == (1, {"PartitionUnknown": 1})
    assert counters.fetched_bytes > 0
    assert sum(counters.append_seconds.counts) == 2
    assert sum(counters.fetch_seconds.counts) == 1
    assert 0 < counters.append_seconds.total < 60


def test_a_number_counts_at_the_first_bound_that_is_not_below_it():
    found = Distribution((1.0, 2.0, 4.0))
    for number in (0.5, 1.0, 1.5, 4.0, 4.5):
        found.add(number)
    assert (found.counts, found.total) == ([2, 1, 1, 1], 11.5)
