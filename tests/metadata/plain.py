"""The metadata machine once more, as plain dicts: slow, obvious, with none of its code."""

from dataclasses import dataclass, field
from itertools import count

from headrace.metadata.commands import (
    AddPartitions,
    AddSchema,
    AlterTopic,
    Command,
    CreateStream,
    CreateTopic,
    DeleteStream,
    DeleteTopic,
)

# Of the layout that the stateful test uses.
STREAMS = 4
TOPICS = 4
PARTITIONS = 8


@dataclass
class Plain:
    """Answers "done" or the code of a refusal. Names and values are always good ones."""

    revision: int = 0
    is_retention_followed: bool = False  # a change of it raises the revision
    streams: dict[str, dict] = field(
        default_factory=lambda: {"default": {"id": 0, "topics": {}}}
    )

    def run(self, command: Command) -> str:
        match command:
            case CreateStream(name):
                return self.create_stream(name)
            case DeleteStream(name, with_topics):
                return self.delete_stream(name, with_topics)
            case CreateTopic():
                return self.create_topic(command)
            case _:
                return self.change(command)

    def create_stream(self, name: str) -> str:
        if name in self.streams:
            return "stream_exists"
        if len(self.streams) == STREAMS:
            return "limit_reached"
        self.streams[name] = {"id": lowest_free(self.streams), "topics": {}}
        return "done"

    def delete_stream(self, name: str, with_topics: bool) -> str:
        if name not in self.streams:
            return "stream_unknown"
        if name == "default":
            return "stream_permanent"
        if self.streams[name]["topics"]:
            if not with_topics:
                return "stream_not_empty"
            self.revision += 1
        del self.streams[name]
        return "done"

    def create_topic(self, command: CreateTopic) -> str:
        if command.stream not in self.streams:
            return "stream_unknown"
        topics = self.streams[command.stream]["topics"]
        if command.name in topics:
            return "topic_exists"
        if command.partition_count > PARTITIONS or len(topics) == TOPICS:
            return "limit_reached"
        self.revision += 1
        topics[command.name] = {
            "id": lowest_free(topics),
            "created": self.revision,
            "shard": command.shard,
            "retention": (command.retention.age_ms, command.retention.size),
            "options": dict(command.options),
            "schemas": [command.schema],
            "partitions": [self.revision] * command.partition_count,
        }
        return "done"

    def change(self, command: AlterTopic | AddPartitions | AddSchema | DeleteTopic) -> str:
        if command.stream not in self.streams:
            return "stream_unknown"
        topic = self.streams[command.stream]["topics"].get(command.topic)
        if topic is None:
            return "topic_unknown"
        if topic["created"] != command.created:
            return "recreated"
        if isinstance(command, AddPartitions):
            return self.add_partitions(topic, command)
        if isinstance(command, AddSchema):
            return self.add_schema(topic, command)
        is_altering = isinstance(command, AlterTopic)
        return self.alter(topic, command) if is_altering else self.delete(command)

    def alter(self, topic: dict, command: AlterTopic) -> str:
        if command.retention is not None:
            wanted = (command.retention.age_ms, command.retention.size)
            self.revision += self.is_retention_followed and wanted != topic["retention"]
            topic["retention"] = wanted
        for key, value in command.options:
            topic["options"].pop(key, None)
            if value is not None:
                topic["options"][key] = value
        return "done"

    def delete(self, command: DeleteTopic) -> str:
        del self.streams[command.stream]["topics"][command.topic]
        self.revision += 1
        return "done"

    def add_partitions(self, topic: dict, command: AddPartitions) -> str:
        if command.first != len(topic["partitions"]):
            return "partitions_not_next"
        if command.first + command.count > PARTITIONS:
            return "limit_reached"
        self.revision += 1
        topic["partitions"] += [self.revision] * command.count
        return "done"

    def add_schema(self, topic: dict, command: AddSchema) -> str:
        known = topic["schemas"]
        if command.version != len(known) + 1:
            same = known[command.version - 1 : command.version] == [command.schema]
            return "schema_repeated" if same else "schema_not_next"
        self.revision += 1
        known.append(command.schema)
        return "done"


def lowest_free(named: dict[str, dict]) -> int:
    used = [each["id"] for each in named.values()]
    return next(number for number in count() if number not in used)
