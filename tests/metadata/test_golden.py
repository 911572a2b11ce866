"""Golden bytes of commands and the image; their page is checked with all others."""

import re

import pytest
from tests.formats.test_golden import PAGES, golden
from tests.metadata.builders import (
    NOW,
    ONE_OF_EACH,
    WIDE,
    a_machine,
    a_topic,
    run,
    the_topic,
)

from headrace.metadata import commands, image, rules
from headrace.metadata.commands import CreateStream
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.results import MetadataCode
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace

COMMANDS = dict(
    zip(
        (
            "create-stream",
            "delete-stream",
            "create-topic",
            "alter-topic",
            "add-partitions",
            "add-schema",
            "delete-topic",
            "level",
            "forget-life",
            "adopt",
        ),
        ONE_OF_EACH,
        strict=True,
    )
)


def the_machine(level: int = 1) -> MetadataMachine:
    """A stream, and a topic with two partitions, one more of them, and a second schema.

    From level 2 on also a topic that was deleted, and a life that was given up.
    """
    machine = a_machine(level=level)
    run(machine, CreateStream("shop"), NOW)
    topic = commands.CreateTopic(
        "shop", "orders", b"schema", 2, 1, ONE_OF_EACH[2].retention, (("codec", "zstd"),)
    )
    run(machine, topic, NOW + 1)
    created = the_topic(machine, stream="shop").created
    run(machine, commands.AddPartitions("shop", "orders", created, 2, 1), NOW + 2)
    run(machine, commands.AddSchema("shop", "orders", created, 2, b"schema 2"), NOW + 3)
    if level > 1:
        gone = a_topic(machine, "gone", stream="shop", partitions=2)
        run(machine, commands.DeleteTopic("shop", "gone", gone.created), NOW + 5)
        run(machine, commands.ForgetLife(Namespace(2**48 + 5), Revision(2)), NOW + 6)
    return machine


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name):
    command = COMMANDS[name]
    assert commands.encode(command) == golden(f"metadata-{name}")
    assert commands.decode(command.operation, golden(f"metadata-{name}")) == command


def test_image():
    assert the_machine().snapshot() == golden("metadata-image")
    assert image.decode(golden("metadata-image"), WIDE) == the_machine().state


def test_image_of_level_2():
    assert the_machine(level=2).snapshot() == golden("metadata-image-2")
    assert image.decode(golden("metadata-image-2"), WIDE) == the_machine(level=2).state


def test_the_image_of_level_3_has_the_fields_of_level_2():
    data = bytearray(golden("metadata-image-2"))
    data[1] = 3  # the format, after the size of the array
    assert the_machine(level=3).snapshot() == data
    assert image.decode(bytes(data), WIDE) == the_machine(level=3).state


def test_digest():
    assert the_machine().digest().hex() == "84a6ed2c2aab6c72e4789a588a7910cf"


def test_the_page_names_every_operation_code_and_limit():
    page = (PAGES / "metadata.md").read_text()
    for command in ONE_OF_EACH:
        fields = ", ".join(command.__struct_fields__)
        row = f"| {command.operation} | {type(command).__name__} | "
        (line,) = [each for each in page.splitlines() if each.startswith(row)]
        shown = line.removeprefix(row).removesuffix(" |").replace(" or nil", "")
        assert re.sub(r":\w+", "", shown) == fields
    for code in MetadataCode:
        assert f"\n| `{code}` | " in page
    for limit in (
        rules.STREAMS_MAX,
        rules.TOPICS_PER_STREAM_MAX,
        rules.PARTITIONS_PER_TOPIC_MAX,
        rules.PARTITIONS_MAX,
        rules.SCHEMAS_PER_TOPIC_MAX,
        rules.OPTIONS_PER_TOPIC_MAX,
    ):
        assert f" | {limit:,}" in page
