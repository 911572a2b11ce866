"""Small machines and commands for the tests of the metadata room."""

from headrace.metadata import commands
from headrace.metadata.commands import (
    AddPartitions,
    AddSchema,
    Adopt,
    AdoptedEnd,
    AdoptedMore,
    AdoptedPartition,
    AdoptedStream,
    AdoptedTopic,
    AlterTopic,
    Command,
    CreateStream,
    CreateTopic,
    DeleteStream,
    DeleteTopic,
    ForgetLife,
    Level,
)
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.results import MetadataCode, MetadataRefusal, Result
from headrace.metadata.state import FOREVER, RetentionLimits, TopicMetadata
from headrace.model.ids import GroupId, Op, Revision
from headrace.model.namespace import (
    Namespace,
    NamespaceLayout,
    PartitionId,
    StreamId,
    TopicId,
)

WIDE = NamespaceLayout(16, 24, 24)
NARROW = NamespaceLayout(2, 2, 3)  # 4 streams, 4 topics in each, 8 partitions in each
NOW = 1_700_000_000_000_000
SCHEMA = b"schema one"


def a_machine(layout: NamespaceLayout = WIDE, *, level: int = 1) -> MetadataMachine:
    """Make a machine as a new log has it, or as an older one did."""
    machine = MetadataMachine(layout)
    if level > 1:
        done(machine, Level(level))
    return machine


def run(
    machine: MetadataMachine,
    command: Command,
    timestamp: int = NOW,
    checksum: bytes = bytes(16),
) -> Result:
    """Apply a command as it comes from the log, at the op behind the last that changed it."""
    op = Op(machine.state.lineage[-1].op + 1 if machine.state.lineage else 1)
    return machine.apply(command.operation, timestamp, commands.encode(command), op, checksum)


def done(
    machine: MetadataMachine,
    command: Command,
    timestamp: int = NOW,
    checksum: bytes = bytes(16),
) -> Result:
    """Apply a command that must not be refused."""
    result = run(machine, command, timestamp, checksum)
    assert not isinstance(result, MetadataRefusal), result.message
    return result


def refusal(machine: MetadataMachine, command: Command) -> MetadataCode:
    """Apply a command that must be refused, in words, with nothing changed."""
    before = machine.digest()
    result = run(machine, command)
    assert isinstance(result, MetadataRefusal)
    assert result.message
    assert machine.digest() == before
    return result.code


def create_topic(
    name: str = "orders",
    *,
    stream: str = "default",
    schema: bytes = SCHEMA,
    partitions: int = 1,
    shard: int = 1,
    retention: RetentionLimits = FOREVER,
    options: tuple[tuple[str, str], ...] = (),
) -> CreateTopic:
    return CreateTopic(stream, name, schema, partitions, GroupId(shard), retention, options)


def alter_topic(
    topic: TopicMetadata,
    *,
    stream: str = "default",
    retention: RetentionLimits | None = None,
    options: tuple[tuple[str, str | None], ...] = (),
) -> AlterTopic:
    return AlterTopic(stream, topic.name, topic.created, retention, options)


def add_partitions(
    topic: TopicMetadata, count: int, *, first: int | None = None, stream: str = "default"
) -> AddPartitions:
    first = len(topic.partitions) if first is None else first
    return AddPartitions(stream, topic.name, topic.created, first, count)


def add_schema(
    topic: TopicMetadata, data: bytes, *, version: int | None = None, stream: str = "default"
) -> AddSchema:
    version = len(topic.schemas) + 1 if version is None else version
    return AddSchema(stream, topic.name, topic.created, version, data)


def delete_topic(topic: TopicMetadata, *, stream: str = "default") -> DeleteTopic:
    return DeleteTopic(stream, topic.name, topic.created)


def a_topic(machine: MetadataMachine, name: str = "orders", **wanted) -> TopicMetadata:
    """Create a topic and return it."""
    done(machine, create_topic(name, **wanted))
    return the_topic(machine, name, wanted.get("stream", "default"))


def the_topic(
    machine: MetadataMachine, name: str = "orders", stream: str = "default"
) -> TopicMetadata:
    topic = machine.state.topic(stream, name)
    assert topic is not None
    return topic


ONE_OF_EACH: tuple[Command, ...] = (
    CreateStream("shop"),
    DeleteStream("shop", True),
    CreateTopic(
        "shop",
        "orders",
        b"schema",
        300,
        GroupId(2),
        RetentionLimits(86_400_000, None),
        (("batch.size", "64"), ("codec", "zstd")),
    ),
    AlterTopic(
        "shop",
        "orders",
        Revision(4),
        RetentionLimits(None, 2**40),
        (("batch.size", None), ("codec", "lz4")),
    ),
    AddPartitions("shop", "orders", Revision(4), 300, 2),
    AddSchema("shop", "orders", Revision(4), 2, b"schema 2"),
    DeleteTopic("shop", "orders", Revision(4)),
    Level(2),
    ForgetLife(Namespace(2**48 + 1), Revision(4)),
    Adopt(
        Revision(7 << 20),
        (AdoptedEnd(StreamId(0), TopicId(0), Revision(1)),),
        (AdoptedStream(StreamId(1), "recovered-1"),),
        (
            AdoptedTopic(
                StreamId(1),
                TopicId(0),
                "recovered-0-4",
                Revision(4),
                GroupId(2),
                (b"schema",),
                (AdoptedPartition(PartitionId(0), Revision(4)),),
            ),
        ),
        (AdoptedMore(StreamId(0), TopicId(3), Revision(2), (b"schema 2",), ()),),
    ),
)
