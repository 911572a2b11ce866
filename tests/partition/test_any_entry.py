"""No entry raises, whatever it says; what is none is refused; offsets are given once."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.partition.builders import (
    ANN,
    BITS,
    IDENTITY,
    ONE,
    OTHER,
    P0,
    P1,
    P2,
    SIZES,
    Chance,
    Log,
    a_log,
    a_machine,
    done,
    refused,
    replayed,
)

from headrace.journal.entry import SEAL, root, seal
from headrace.model.ids import Op, View
from headrace.model.proposal import EntryProposal
from headrace.model.results import AppendResult
from headrace.partition.machine import operations
from headrace.partition.machine.operations import APPEND, STAGE, encode_stage
from headrace.partition.machine.results import Refusal, RefusalCode, Result

U64 = 2**64 - 1

COMMANDS = (*range(32, 40), 42)


@pytest.mark.parametrize("operation", [0, 2, 15, 16, 31, 43, 2**16 - 1])
def test_an_operation_that_is_none_is_refused(operation):
    result = a_log().send(operation, b"body", namespace=P0, created=1)
    assert refused(result, RefusalCode.OPERATION_UNKNOWN, operation=operation)


def test_append_is_the_only_operation_whose_body_is_never_read():
    assert a_machine().bodiless == {APPEND}
    log = a_log()
    done(log.append(1, 3, body=b"gone"))
    (_, entry) = log.entries
    bodiless = type(entry)(entry.header, entry.sealed, b"")
    assert replayed([log.entries[0], bodiless]).digest() == log.machine.digest()


ONE_OF_EACH = {
    operations.OpenPartition: [2, 1, [[1, b"schema"]]],
    operations.SetSchema: [2, b"schema"],
    operations.ClosePartition: [2],
    operations.Publish: [[[ONE, 1, 1, bytes(16)]]],
    operations.Discard: [[ONE]],
    operations.StoreCursor: ["spark", 1, 1, False],
    operations.DeleteCursor: ["spark", 1],
    operations.Trim: [1, False],
    operations.Purge: [],
}


def other_shapes(fields: list) -> list[bytes]:
    """What is not this command: more, fewer or other fields, or no array at all."""
    encode = msgspec.msgpack.encode
    others = [[*fields, 1], {"first": 1}, None, 1, "text", [fields]]
    others += [fields[:number] for number in range(len(fields))]
    for number in range(len(fields)):
        for value in (None, 1.5, {}, {"a": 1}, [[[]]], [[1, 2, 3, 4]], [None]):
            others.append([*fields[:number], value, *fields[number + 1 :]])
    right = encode(fields)
    return [encode(one) for one in others] + [right + b"\0", right[:-1], b"", b"\xc1", b"\xd9"]


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_body_that_is_not_this_command_is_malformed(kind):
    log = a_log()
    done(log.append(1, 3))
    done(log.store("spark", 0))
    header = {"namespace": P0, "created": 1, "writer": ANN, "version": 1}
    for body in other_shapes(ONE_OF_EACH[kind]):
        result = log.send(kind.operation, body, **header)
        assert refused(result, RefusalCode.MALFORMED, operation=kind.operation), body


def test_each_command_has_its_number_and_is_tried():
    assert sorted(kind.operation for kind in ONE_OF_EACH) == sorted(COMMANDS)
    for kind, fields in ONE_OF_EACH.items():
        body = msgspec.msgpack.encode(fields)
        command = operations.decode(kind.operation, body)
        assert isinstance(command, kind)
        assert operations.encode(command) == body


def test_a_body_may_claim_any_size_of_what_follows():
    log = a_log()
    claims = (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")
    for operation in COMMANDS:
        for opening in (b"", b"\x91", b"\x92\x01", b"\x93\x01\x01", b"\x94"):
            for claim in claims:
                body = opening + claim + b"\xff\xff\xff\xff"
                result = log.send(operation, body, namespace=P0, created=1)
                assert refused(result, RefusalCode.MALFORMED)


def test_a_body_may_be_nested_as_deep_as_it_likes():
    log = a_log()
    for operation in (*COMMANDS, STAGE):
        result = log.send(operation, b"\x91" * 100_000, namespace=P0, created=1)
        assert isinstance(result, Refusal)
    log.send(SEAL, b"\x91" * 100_000)


def test_text_that_is_not_utf_8_is_malformed():
    log = a_log()
    for operation in (37, 38):
        body = b"\x94\xa1\xff\x01\x01\xc2" if operation == 37 else b"\x92\xa1\xff\x01"
        assert refused(
            log.send(operation, body, namespace=P0, created=1), RefusalCode.MALFORMED
        )


def test_a_seal_expires_only_by_its_one_body():
    for body in (
        b"",
        b"\x91\xc2",
        b"\x90",
        b"\x91\x01",
        b"\xc3",
        b"\x92\xc3\xc3",
        b"\x91\xa1\xff",
    ):
        assert not operations.decode_seal(body).expire
    assert operations.decode_seal(b"\x91\xc3").expire


EDGES = st.sampled_from([0, 1, 2, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
SMALL_EDGES = st.sampled_from([0, 1, 2, 2**31, 2**32 - 1])
NUMBERS = st.one_of(EDGES, st.integers(-2, 12), st.integers(-(2**63), U64))
NAMESPACES = st.sampled_from([P0, P1, P2, OTHER, 2**63, U64, U64 - 1, 1 << 60])
WRITERS = st.sampled_from([ANN, bytes(16), b"\xff" * 16])
STAGE_IDS = st.one_of(st.sampled_from([ONE, bytes(16)]), st.binary(max_size=20))
SCHEMAS = st.lists(st.tuples(NUMBERS, st.binary(max_size=3)), max_size=3)
RECEIPTS = st.lists(st.tuples(STAGE_IDS, NUMBERS, NUMBERS, st.binary(max_size=17)), max_size=3)
BODIES = {
    32: st.tuples(NUMBERS, NUMBERS, st.one_of(st.just([(1, b""), (2, b"")]), SCHEMAS)),
    33: st.tuples(NUMBERS, st.binary(max_size=9)),
    34: st.tuples(NUMBERS),
    35: st.tuples(RECEIPTS),
    36: st.tuples(st.lists(STAGE_IDS, max_size=3)),
    37: st.tuples(st.text(max_size=9), NUMBERS, NUMBERS, st.booleans()),
    38: st.tuples(st.text(max_size=9), NUMBERS),
    39: st.tuples(NUMBERS, st.booleans()),
    42: st.tuples(),
}


@st.composite
def bodies(draw, operation):
    """A body that fits, or any bytes."""
    if operation == STAGE and draw(st.booleans()):
        number = draw(st.sampled_from([0, 0, 1, 2**32 - 1]))
        opening = encode_stage(draw(st.sampled_from([ONE, bytes(16)])), number)
        return opening + draw(st.binary(max_size=9))
    if operation in BODIES and draw(st.integers(0, 9)):
        return msgspec.msgpack.encode(draw(BODIES[operation]))
    return draw(st.binary(max_size=90))


@st.composite
def entries(draw):
    """Any well-formed entry. Its place in the log is anything too."""
    known = (APPEND, STAGE, SEAL, *BODIES)
    operation = draw(st.one_of(st.sampled_from(known), st.integers(0, 2**16 - 1)))
    return seal(
        IDENTITY,
        EntryProposal(
            operation,
            draw(bodies(operation)),
            writer=draw(WRITERS),
            version=draw(EDGES),
            namespace=draw(NAMESPACES),
            created=draw(EDGES),
            schema_id=draw(SMALL_EDGES),
            row_count=draw(SMALL_EDGES),
        ),
        op=Op(draw(st.one_of(st.integers(1, 50), st.just(U64)))),
        parent=root(IDENTITY),
        view=View(draw(EDGES)),
        timestamp=draw(EDGES),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(entries(), max_size=12))
def test_no_well_formed_entry_raises_and_every_state_is_kept(made):
    log = Log()
    log.open(versions=2)
    log.open(P1)
    for entry in made:
        assert isinstance(log.apply(entry), Result)
    log.restart()
    for entry in made:
        log.apply(entry)


@settings(deadline=None)
@given(st.sampled_from([*BODIES, STAGE, SEAL]), st.binary(max_size=200))
def test_any_bytes_are_a_body_with_a_result(operation, body):
    log = a_log()
    header = {"namespace": P0, "created": 1, "schema_id": 1, "row_count": 1}
    assert isinstance(log.send(operation, body, **header), Result)


@pytest.mark.parametrize("seed", range(8))
def test_every_flip_in_a_body_gives_a_result(seed):
    random = Random(seed)
    for kind, fields in ONE_OF_EACH.items():
        right = msgspec.msgpack.encode(fields)
        for place in range(len(right)):
            wrong = bytearray(right)
            wrong[place] ^= random.randrange(1, 256)
            log = a_log()
            header = {"namespace": P0, "created": 1}
            assert isinstance(log.send(kind.operation, bytes(wrong), **header), Result)


def test_a_namespace_outside_the_layout_is_a_partition_like_any_other():
    log = Log()
    for at in (U64, 2**63, 1 << BITS):
        done(log.open(at, U64))
        assert log.append(1, 2**32 - 1, at=at, created=U64).end == 2**32 - 1
    log.seal()
    log.restart()
    assert log.machine.state.partition_id(U64) == 2**BITS - 1


def test_results_of_a_log_are_the_same_wherever_it_is_applied():
    chance = Chance(Random(1))
    results = [chance.step() for _ in range(500)]
    other = a_machine(SIZES)
    assert [other.apply(entry) for entry in chance.log.entries] == results


@pytest.mark.parametrize("seed", range(6))
def test_offsets_are_dense_and_no_row_is_given_two(seed):
    chance = Chance(Random(seed))
    ends: dict[tuple[int, int], int] = {}
    accepted = 0
    for _ in range(600):
        result = chance.step()
        for at, created, start, end in given_by(chance.log, result):
            assert start == ends.get((at, created), 0)
            ends[at, created] = end
            accepted += 1
    assert accepted > 50
    for at, partition in chance.log.machine.state.partitions.items():
        assert ends.get((at, partition.created), 0) == partition.end


def given_by(log: Log, result: Result) -> list[tuple[int, int, int, int]]:
    """The offsets that the newest entry gave, with the partition's life."""
    header = log.entries[-1].header
    if getattr(result, "repeated", True):
        return []
    if isinstance(result, AppendResult):
        return [(header.namespace, header.created, result.start, result.end)]
    ranges = getattr(result, "ranges", ())
    lives = {at: one.created for at, one in log.machine.state.partitions.items()}
    return [(one.namespace, lives[one.namespace], one.start, one.end) for one in ranges]


def test_random_histories_meet_every_kind_of_answer():
    kinds, codes = set(), set()
    for seed in range(6):
        chance = Chance(Random(seed))
        for _ in range(600):
            result = chance.step()
            kinds.add(type(result).__name__)
            if isinstance(result, Refusal):
                codes.add(result.code)
    assert len(kinds) == 12
    full = {RefusalCode.STAGES_FULL, RefusalCode.WRITERS_FULL, RefusalCode.CURSORS_FULL}
    rare = {
        RefusalCode.STAGE_REPEATED,
        RefusalCode.BAD_NAME,
        RefusalCode.STAGE_MISSING,
        RefusalCode.SCHEMA_UNKNOWN,
    }
    assert codes >= set(RefusalCode) - full - rare - {
        RefusalCode.PARTITION_UNKNOWN,
        RefusalCode.TOPIC_UNKNOWN,
    }
