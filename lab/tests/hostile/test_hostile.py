"""Hostile input at the port of a real server: refused by name, and nobody else notices."""

import struct
from random import Random
from typing import get_args

import pytest

from headrace.model.arrow_message import INFLATED_SIZE_MAX
from headrace.model.results import Receipt
from headrace.wire.frames import encode_frame
from headrace.wire.greeting import Ping
from headrace.wire.messages import Message, Reply, Request
from headrace.wire.topic_messages import PartitionInfo, SchemaInfo, TopicInfo
from headrace_lab.hostile.attack import AttackPlan, besiege, catch, figures_of
from headrace_lab.hostile.bodies import (
    BOMB_LIMIT,
    BOMBS,
    FLAT,
    NESTED,
    ROW_COUNT,
    Source,
    bomb,
    numbers_of,
)
from headrace_lab.hostile.frames import frame_of, hostile, letter, mended, whole
from headrace_lab.hostile.plants import STAGE_OF
from headrace_lab.hostile.prey import ANSWERS, Prey
from headrace_lab.hostile.rows import Accepted, Wrong, check_order
from headrace_lab.hostile.stages import opened

WHERE = PartitionInfo(1 << 48, 7)
# Those that show at once: by an answer, by the log, by the end of the process, by rows that
# Arrow does not read. `--mutants` plants the others, too, which have to be waited for.
PLANTS = (
    "body CRC not checked",
    "exception out of a callback",
    "a kind that ends the process",
    "checksum not compared",
    "values not validated",
)
SAMPLE = AttackPlan(
    strings=800,
    frames=400,
    bodies=300,
    bombs=False,
    crowd=60,
    windows=1,
    window_seconds=0.5,
    settle_seconds=0.2,
    share_min=0.0,  # one window on a busy machine says nothing
)


def a_prey():
    schemas, partitions = (SchemaInfo(1, b"schema"),), (WHERE, WHERE)
    info = TopicInfo("prey/x", 7, 1, 1, 9, None, None, (), schemas, partitions)
    receipt = Receipt(bytes(16), 1, 6, bytes(16))
    return Prey(info, b"body", receipt, bytes(range(16)))


def taken(body, start=0):
    return Accepted(WHERE, FLAT, start, ROW_COUNT, body)


def test_a_server_under_attack_refuses_by_name_and_loses_nothing(tmp_path):
    tally = besiege(tmp_path, SAMPLE, seed=1)
    assert tally.problems == []
    figures = figures_of(tally)
    assert figures["cases"] >= SAMPLE.strings + SAMPLE.frames + SAMPLE.bodies
    assert figures["rows acknowledged, and there after a new start"] > 0
    assert tally.answers["frames: BadFrame"] > SAMPLE.frames // 4
    assert tally.answers["bodies: BadBatch"] > SAMPLE.bodies // 2
    assert tally.accepted["bodies: valid"] > 0
    assert tally.sent["crowd: within a body of 64 MiB"] > 0


@pytest.mark.campaign(2)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_of_a_server_is_caught(plant):
    assert plant in STAGE_OF
    assert catch(plant, seed=2)


def test_letters_of_every_message_are_sent():
    prey, chance = a_prey(), Random(1)
    seen = {type(prey.letter(chance).message) for _ in range(5_000)}
    assert seen == set(get_args(Message))


def test_every_request_has_an_answer_that_it_may_get():
    assert set(ANSWERS) == set(get_args(Request))
    assert set(ANSWERS.values()) <= set(get_args(Reply))


def test_a_letter_is_the_frame_that_a_client_sends():
    (data,) = encode_frame(Ping(), 1, deadline_ms=1_000)
    assert whole(letter(Ping())) == data
    assert opened(data) == (Ping(), b"")
    broken = data[:-1] + bytes((data[-1] ^ 1,))
    assert mended(broken) != broken
    assert mended(data) == data


def test_the_same_seed_makes_the_same_frames():
    def some(seed):
        chance, prey = Random(seed), a_prey()
        return [hostile(letter(prey.info), chance).data for _ in range(50)]

    assert some(1) == some(1)
    assert some(1) != some(2)


def test_what_is_not_whole_is_no_request():
    for data in (b"", b"HRW1", frame_of(6, b"\x90", body_size=5), frame_of(6, b"\x90")[:-1]):
        with pytest.raises(ValueError, match=r"frame|whole"):
            opened(data)


@pytest.mark.parametrize("schema", [FLAT, NESTED])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_the_numbers_of_a_message_are_found_by_hand(schema, codec):
    data = Source(schema, ROW_COUNT).encoded(codec)
    numbers = numbers_of(data)
    (row_count,) = struct.unpack_from("<q", data, numbers.row_count)
    (body_size,) = struct.unpack_from("<q", data, numbers.body_size)
    assert row_count == ROW_COUNT
    assert body_size == len(data) - numbers.buffers_at
    lengths = [struct.unpack_from("<q", data, place)[0] for place in numbers.nodes]
    assert lengths[0] == ROW_COUNT


def test_a_bomb_is_small_and_its_limit_is_the_server_s():
    assert BOMB_LIMIT == INFLATED_SIZE_MAX
    small = min((one for one in BOMBS if one.codec == "zstd"), key=lambda one: one.size)
    body = bomb(small)
    assert len(body.data) < small.size // 20
    assert not body.must_fail


def test_rows_that_were_accepted_and_are_no_batch_are_wrong():
    good = Source(FLAT, ROW_COUNT).encoded()
    assert taken(good).rows().num_rows == ROW_COUNT
    snowman = "\N{SNOWMAN}".encode()
    with pytest.raises(Wrong, match="does not read"):
        taken(good.replace(snowman, b"\xff\xff\xff")).rows()
    with pytest.raises(Wrong, match="were taken for"):
        Accepted(WHERE, FLAT, 0, ROW_COUNT + 1, good).rows()


def test_offsets_that_are_given_twice_are_seen():
    good = Source(FLAT, ROW_COUNT).encoded()
    assert check_order([taken(good, 0), taken(good, ROW_COUNT)]) == []
    assert check_order([taken(good, 0), taken(good, ROW_COUNT - 1)])
