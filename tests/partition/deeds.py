"""Rules that make every kind of entry, right ones and wrong ones, for a shard and its model."""

from dataclasses import dataclass, fields
from random import Random
from typing import ClassVar

import msgspec
import pyarrow as pa
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.partition.node import NAMESPACES, NEVER, VERSIONS, a_key, width_of
from tests.partition.plain import DAY, PARTITION_BITS, Plain

from headrace.journal.entry import SEAL
from headrace.model.proposal import EntryProposal
from headrace.model.results import Receipt
from headrace.partition.machine import operations
from headrace.partition.machine.operations import DeleteCursor, Seal
from headrace.partition.machine.results import Refusal, Sealed
from headrace_lab.shard.shard import (
    appending,
    closing,
    command,
    discarding,
    evolving,
    opening,
    publishing,
    purging,
    staging,
    storing,
    trimming,
)

WRITERS = (b"a" * 16, b"b" * 16, b"c" * 16)
STAGE_IDS = tuple(bytes([number]) * 16 for number in range(1, 5))
GROUPS = ("eager", "slow", "")

# How often each kind of deed is done. Mostly right ones: a history of refusals is short.
WEIGHTS = {
    "append": 30,
    "append_many_in_one_group": 8,
    "append_more_than_a_window": 1,
    "stage": 16,
    "publish": 9,
    "discard": 2,
    "store_a_cursor": 6,
    "delete_a_cursor": 2,
    "trim": 7,
    "purge": 2,
    "set_a_schema": 2,
    "open_a_partition": 4,
    "close_a_partition": 2,
    "let_time_pass": 2,
    "send_noise": 1,
}
SLIPS = (0, 0, 0, 0, 0, 0, -1, 1)
ROW_COUNTS = (1, 2, 3, 5, 8, 13, 30) * 3 + (0,)
WIDTHS = (0, 5, 40, 100)
SCHEMA_SLIPS = (0,) * 8 + (-1, -1, -2, 1)
KINDS_OF_APPEND = ("next",) * 7 + ("repeat", "repeat", "conflict", "gap", "old")
KINDS_OF_STAGE = ("next",) * 8 + ("ahead", "repeat", "conflict", "gap", "lower")
KINDS_OF_PUBLISH = (
    *("all",) * 8,
    *("reversed", "one", "digest", "rows", "ops", "twice", "absent", "none"),
    *("again", "again otherwise", "lower"),
)

# A deed is drawn as a seed: all kinds come in the right proportions, and a failure still
# shrinks to few deeds. Hypothesis draws evenly from up to 24 bits only.
seeds = st.integers(0, 2**24 - 1)


@dataclass(frozen=True)
class Deed:
    """An entry to be, and the same in the words of the model."""

    proposal: EntryProposal
    plain: tuple  # the name of a method of Plain, and what it takes after the time


class Deeds(RuleBasedStateMachine):
    """Whoever runs them says what becomes of a commit group, and what else may happen."""

    more: ClassVar[dict[str, int]]  # kinds of deeds beside those above

    def __init__(self) -> None:
        super().__init__()
        self.plain = Plain()
        self.weights = {}
        self.now = 0
        self.serial = 0
        self.births = 0
        self.ended = []  # keys of lives that ended
        self.sent = {}  # deeds that can be repeated

    def submit(self, *deeds: Deed) -> None:
        raise NotImplementedError

    @initialize(seed=seeds)
    def begin(self, seed):
        """Let each history be rich in some kinds of deeds, and poor in others."""
        rng = Random(seed)
        weights = WEIGHTS | self.more
        self.weights = {kind: each * rng.choice((0, 1, 1, 2)) for kind, each in weights.items()}
        self.weights["append"] += 1
        for namespace in NAMESPACES[: rng.randint(1, 3)]:
            self.open(namespace, versions=rng.randint(1, 3))

    @rule(seeds=st.lists(seeds, min_size=1, max_size=20))
    def act(self, seeds):
        for seed in seeds:
            rng = Random(seed)
            kind = rng.choices(list(self.weights), self.weights.values())[0]
            if not self.plain.lives and rng.random() < 0.5:
                kind = "open_a_partition"
            note(kind)
            getattr(self, kind)(rng)

    def open_a_partition(self, rng):
        missing = [each for each in NAMESPACES if each not in self.plain.lives]
        namespace = rng.choice(missing * 3 + list(NAMESPACES))
        slip, late, topic_slip = (rng.choice(SLIPS) for _ in range(3))
        versions = rng.randint(1, len(VERSIONS))
        self.open(namespace, slip, late, topic_slip, versions=versions)

    def open(self, namespace, slip=0, late=0, topic_slip=0, *, versions):
        self.births += 1
        created = self.births
        life = self.plain.lives.get(namespace)
        if life is not None and slip == 0:
            created = life.key[1]
        elif slip < 0:
            created = self.plain.closed.get(namespace, 0)
        topic = self.plain.topics.get(namespace >> PARTITION_BITS)
        topic_created = max(0, (created if topic is None else topic.created) + topic_slip)
        at = max(0, self.plain.revision + late)
        key = (namespace, created)
        proposal = opening(a_key(key), VERSIONS[:versions], topic_created, at)
        self.submit(Deed(proposal, ("open", key, at, topic_created, versions)))

    def close_a_partition(self, rng):
        self.close(self.some_key(rng), rng.choice(SLIPS))

    def close(self, key, late=0):
        at = max(0, self.plain.revision + late)
        self.ended.append(key)
        self.submit(Deed(closing(a_key(key), at), ("close", key, at)))

    def set_a_schema(self, rng):
        key, topic = self.some_topic(rng)
        version = (topic.newest if topic else 1) + 1 + rng.choice(SLIPS)
        if version <= len(VERSIONS):
            proposal = evolving(a_key(key), version, VERSIONS[version - 1])
            self.submit(Deed(proposal, ("set_schema", key, version)))

    def append(self, rng):
        key, writer, kind = self.some_key(rng), rng.choice(WRITERS), rng.choice(KINDS_OF_APPEND)
        if kind == "repeat":
            place = ("append", key, writer)
            known = [deed for sent, deed in self.sent.items() if sent[:3] == place]
            if known:
                self.submit(rng.choice(known[-3:] + known[:1]))
            return
        version = self.next_version(key, writer)
        version += {"conflict": -1, "gap": 1, "old": -66}.get(kind, 0)
        shape = rng.choice(ROW_COUNTS), rng.choice(WIDTHS), rng.choice(SCHEMA_SLIPS)
        self.submit(self.an_append(key, writer, max(version, 0), shape))

    def append_many_in_one_group(self, rng):
        key, writer = self.some_key(rng), rng.choice(WRITERS)
        first = self.next_version(key, writer)
        deeds = [
            self.an_append(
                key, writer, first + place, (rng.randint(1, 4), rng.choice(WIDTHS), 0)
            )
            for place in range(rng.randint(2, 9))
        ]
        self.submit(*deeds, *rng.choice(([], [a_seal()])))

    def append_more_than_a_window(self, rng):
        key, writer = self.some_key(rng), rng.choice(WRITERS)
        for _ in range(5):
            first = self.next_version(key, writer)
            self.submit(*(self.an_append(key, writer, first + n, (1, 0, 0)) for n in range(14)))

    def stage(self, rng):
        key, kind = self.some_key(rng), rng.choice(KINDS_OF_STAGE)
        stage_id, writer = rng.choice(STAGE_IDS), rng.choice(WRITERS[:2])
        topic = self.plain.topics.get(key[0] >> PARTITION_BITS)
        known = topic.stages.get(stage_id) if topic else None
        number = len(known.entries) if known else 0
        if kind == "repeat":
            sent = self.sent.get(("stage", stage_id, number - 1))
            if sent is not None:
                self.submit(sent)
            return
        version = topic.published.get(writer, (0,))[0] + 1 if topic else 1
        if known and kind != "conflict":
            writer, version = known.writer, known.version
        version = max(0, version + {"ahead": 1, "lower": -1}.get(kind, 0))
        number += {"gap": 1, "conflict": -1 if number else 0}.get(kind, 0)
        schema_id = self.schema_id(key, rng.choice(SCHEMA_SLIPS))
        rows, batch = self.some_rows(rng.choice(ROW_COUNTS), 20, schema_id)
        proposal = staging(a_key(key), batch, writer, version, (stage_id, number), schema_id)
        place = (key, writer, version, stage_id, number)
        deed = Deed(proposal, ("stage", *place, schema_id, rows, bytes(proposal.body)))
        self.sent["stage", stage_id, number] = deed
        self.submit(deed)

    def publish(self, rng):
        key, topic = self.some_topic(rng)
        if topic is None:
            return
        kind = rng.choice(KINDS_OF_PUBLISH)
        stage = rng.choice(list(topic.stages.values()) or [None])
        writer = rng.choice(WRITERS[:2]) if stage is None else stage.writer
        last, asked, _ = topic.published.get(writer, (0, (), ()))
        version = last + 1 if stage is None else stage.version
        receipts = [
            each.receipt
            for each in topic.stages.values()
            if (each.writer, each.version) == (writer, version)
        ]
        if kind in ("again", "again otherwise", "lower") and last:
            version = max(0, last - (kind == "lower"))
            receipts = [*asked, *(receipts if kind == "again otherwise" else [])]
        receipts = tuple(mangled(receipts, kind))
        wanted = [Receipt(*each) for each in receipts]
        proposal = publishing(a_key(key), writer, version, wanted)
        self.submit(Deed(proposal, ("publish", key, writer, version, receipts)))

    def discard(self, rng):
        key, _ = self.some_topic(rng)
        writer, ids = rng.choice(WRITERS[:2]), rng.sample(STAGE_IDS, rng.randint(0, 2))
        proposal = discarding(a_key(key), writer, ids)
        self.submit(Deed(proposal, ("discard", key, writer, ids)))

    def store_a_cursor(self, rng):
        key, group, hold = self.some_key(rng), rng.choice(GROUPS), rng.random() < 0.5
        following, generation = self.some_offset(rng, key), self.generation(rng, key, group)
        proposal = storing(a_key(key), group, following, generation, hold=hold)
        self.submit(Deed(proposal, ("store_cursor", key, group, following, generation, hold)))

    def delete_a_cursor(self, rng):
        key, group = self.some_key(rng), rng.choice(GROUPS)
        generation = self.generation(rng, key, group)
        proposal = command(a_key(key), DeleteCursor(group, generation))
        self.submit(Deed(proposal, ("delete_cursor", key, group, generation)))

    def trim(self, rng):
        key, past_hold = self.some_key(rng), rng.random() < 0.3
        first = self.some_offset(rng, key)
        proposal = trimming(a_key(key), first, past_hold=past_hold)
        self.submit(Deed(proposal, ("trim", key, first, past_hold)))

    def purge(self, rng):
        key = self.some_key(rng)
        self.submit(Deed(purging(a_key(key)), ("purge", key)))

    def let_time_pass(self, rng):
        self.now += rng.choice((1, 1, 8)) * DAY

    def send_noise(self, rng):
        operation = rng.randint(28, 50)
        key = self.some_key(rng)
        if key not in [life.key for life in self.plain.lives.values()]:
            return
        is_rows = operation in (operations.APPEND, operations.STAGE)
        is_ours = operation in range(32, 43)
        code = "empty" if is_rows else "malformed" if is_ours else "operation_unknown"
        # No msgpack value begins so.
        body = b"\xc1" + rng.randbytes(rng.randrange(9))
        proposal = EntryProposal(operation, body, namespace=key[0], created=key[1])
        self.submit(Deed(proposal, ("noise", code)))

    def some_key(self, rng):
        """Return the key of a partition: mostly of one that is open."""
        alive = [self.plain.lives[namespace].key for namespace in sorted(self.plain.lives)]
        if alive and rng.random() < 0.93:
            return rng.choice(alive)
        return rng.choice([*self.ended[-3:], (NEVER, 1)])

    def some_topic(self, rng):
        """Return the key of a topic, mostly the right one, and the topic if it is there."""
        number = rng.choice(sorted(self.plain.topics) or [0])
        topic = self.plain.topics.get(number)
        created = (topic.created if topic else 1) + (rng.random() < 0.05)
        return (number << PARTITION_BITS, created), topic

    def some_offset(self, rng, key):
        life = self.plain.lives.get(key[0])
        first, end = (life.first, life.end) if life is not None else (0, 5)
        return rng.choice((rng.randint(0, end), rng.randint(first, end), end, -1, end + 1))

    def generation(self, rng, key, group):
        life = self.plain.lives.get(key[0])
        known = life.cursors.get(group) if life is not None else None
        return max(0, (known[1] if known else 3) + rng.choice(SLIPS))

    def next_version(self, key, writer):
        life = self.plain.lives.get(key[0])
        known = life.writers.get(writer) if life is not None else None
        return known.written[-1][0] + 1 if known else 1

    def schema_id(self, key, slip):
        topic = self.plain.topics.get(key[0] >> PARTITION_BITS)
        return max(0, (topic.newest if topic else 1) + slip)

    def an_append(self, key, writer, version, shape):
        row_count, width, slip = shape
        schema_id = self.schema_id(key, slip)
        rows, batch = self.some_rows(row_count, width, schema_id)
        proposal = appending(a_key(key), batch, writer, version, schema_id)
        body = bytes(proposal.body)
        deed = Deed(proposal, ("append", key, writer, version, schema_id, rows, body))
        self.sent["append", key, writer, version] = deed
        return deed

    def some_rows(self, row_count, width, schema_id):
        """Return rows that no other batch has, as tuples and as a batch."""
        version = min(max(schema_id, 1), len(VERSIONS))
        rows = []
        for _ in range(row_count):
            self.serial += 1
            rows.append(some_values(self.serial, width)[: width_of(version)])
        schema = VERSIONS[version - 1]
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(schema)
        arrays = [
            pa.array(column, one.type) for column, one in zip(columns, schema, strict=True)
        ]
        return rows, pa.record_batch(arrays, schema=schema)


def some_values(serial, width):
    return (
        serial % 30_000 if serial % 11 else None,
        f"{serial}-".ljust(width, "x") if serial % 7 else None,
        serial % 1_000 / 4 if serial % 5 else None,
        [str(serial), None][: serial % 3] if serial % 4 else None,
        serial % 2 == 0 if serial % 3 else None,
    )


def mangled(receipts, kind):
    """Return the receipts of a Publish: all, in some order, or wrong in one way."""
    if not receipts or kind == "none":
        return []
    stage_id, ops, rows, digest = receipts[0]
    others = receipts[1:]
    return {
        "reversed": receipts[::-1],
        "one": receipts[:1],
        "digest": [(stage_id, ops, rows, bytes(16)), *others],
        "rows": [*others, (stage_id, ops, rows + 1, digest)],
        "ops": [(stage_id, ops + 1, rows, digest), *others],
        "twice": [*receipts, receipts[0]],
        "absent": [*receipts, (b"?" * 16, 1, 1, digest)],
    }.get(kind, receipts)


def a_seal(*, expire: bool = False) -> Deed:
    return Deed(EntryProposal(SEAL, operations.encode(Seal(expire))), ("seal", expire))


def told(result) -> tuple:
    """Say a result in the words of the model."""
    if isinstance(result, Refusal):
        assert result.message
        return "refused", result.code.value
    if isinstance(result, Sealed):
        return "Sealed", result.expired_writers, result.expired_stages
    astuple = msgspec.structs.astuple if isinstance(result, msgspec.Struct) else whole
    return type(result).__name__, *plainly(astuple(result))


def whole(result) -> tuple:
    return tuple(getattr(result, each.name) for each in fields(result))


def plainly(value):
    return tuple(map(plainly, value)) if isinstance(value, tuple) else value
