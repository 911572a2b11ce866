"""One long fixed history; run as a program, it prints what the machine becomes."""

import sys
from random import Random

from tests.metadata.builders import (
    NARROW,
    a_machine,
    add_partitions,
    add_schema,
    alter_topic,
    create_topic,
    delete_topic,
    run,
)

from headrace.metadata.commands import Command, CreateStream, DeleteStream
from headrace.metadata.machine import MetadataMachine

STREAMS = ("default", "north", "south", "east", "west")
TOPICS = ("orders", "clicks", "carts", "users", "prices")
STEPS = 2_000


def lines() -> list[str]:
    """Give each step's result, and the digest now and then."""
    chance = Random(7)
    machine = a_machine(NARROW)
    told = []
    for step in range(STEPS):
        command = _some_command(machine, chance)
        told.append(repr(run(machine, command, timestamp=step)))
        if step % 100 == 0:
            told.append(machine.digest().hex())
    return [*told, machine.digest().hex()]


def _some_command(machine: MetadataMachine, chance: Random) -> Command:
    stream, name = chance.choice(STREAMS), chance.choice(TOPICS)
    options = tuple((key, str(chance.randrange(3))) for key in chance.sample("abcdef", 3))
    topic = machine.state.topic(stream, name)
    if topic is None or chance.random() < 0.2:
        return chance.choice(
            [
                CreateStream(stream),
                DeleteStream(stream, with_topics=chance.random() < 0.3),
                create_topic(name, stream=stream, options=options),
                create_topic(name, stream=stream, partitions=chance.randrange(10)),
            ]
        )
    return chance.choice(
        [
            alter_topic(topic, stream=stream, options=options),
            add_partitions(topic, chance.randrange(3), stream=stream),
            add_schema(topic, b"%d" % chance.randrange(9), stream=stream),
            delete_topic(topic, stream=stream),
        ]
    )


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()))
