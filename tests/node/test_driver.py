"""What a driver performs reaches the journal in the order of its ops, whoever asks when."""

import asyncio

from tests.node.nodes import a_config, a_node, a_topic, ask

from headrace.model.units import MILLISECOND
from headrace.node.config.settings import SealSettings
from headrace.wire import topic_messages


def test_who_asks_again_from_within_an_answer_does_not_overtake_what_was_prepared(tmp_path):
    """A topic in a new stream is asked for when the stream is there; a Seal may come then."""
    often = SealSettings(size=64 * 1024 * 1024, age=100 * MILLISECOND, children=1)

    async def make_and_delete(started, name):
        for number in range(60):
            await a_topic(started, f"{name}-{number}/topic")
            await ask(
                started,
                topic_messages.DeleteStreamRequest(f"{name}-{number}", with_topics=True),
            )

    async def scene():
        async with a_node(tmp_path, a_config(seal=often)) as started:
            await asyncio.gather(*(make_and_delete(started, f"s{n}") for n in range(6)))
            assert started.node.catalog.driver.pump.halted is None

    asyncio.run(scene())
