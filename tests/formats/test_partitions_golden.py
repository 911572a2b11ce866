"""Golden bytes of a shard's operations, and of both parts of its snapshot."""

import re

import pyarrow as pa
import pytest
from tests.formats.test_golden import PAGES, golden
from tests.partition.builders import BITS, ONE, OTHER, SIZES, TWO, Log, a_log, a_machine, done

from headrace.journal.entry import SEAL
from headrace.journal.machine_seam import MachineState
from headrace.model import batch
from headrace.model.ids import Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.results import Receipt
from headrace.partition.files import placement
from headrace.partition.files.placement import Carried, Local, PlacedHere, UnplacedHere
from headrace.partition.machine import image, operations
from headrace.partition.machine.operations import (
    APPEND,
    STAGE,
    STAGE_HEADER_SIZE,
    ClosePartition,
    DeleteCursor,
    Discard,
    OpenPartition,
    Publish,
    Purge,
    Schema,
    Seal,
    SetSchema,
    StageHeader,
    StoreCursor,
    Trim,
    decode_stage,
    encode_stage,
)
from headrace.partition.machine.partitions_machine import CURSOR_COUNT_MAX
from headrace.partition.machine.results import RETRYABLE, RefusalCode
from headrace.partition.machine.state import Piece
from headrace.partition.machine.transactions import PUBLISHER_COUNT_MAX, STAGE_COUNT_MAX
from headrace.partition.machine.writer_rule import WINDOW, WRITER_COUNT_MAX

DIGEST = bytes(range(16))
COMMANDS = {
    "open-partition": OpenPartition(
        Revision(5), Revision(4), (Schema(1, b"schema"), Schema(2, b"schema 2"))
    ),
    "set-schema": SetSchema(3, b"schema 3"),
    "close-partition": ClosePartition(Revision(6)),
    "publish": Publish((Receipt(ONE, 2, 300, DIGEST),)),
    "discard": Discard((ONE, TWO)),
    "store-cursor": StoreCursor("spark", Offset(300), 2, hold=True),
    "delete-cursor": DeleteCursor("spark", 2),
    "trim": Trim(Offset(70_000), past_hold=False),
    "purge": Purge(),
}
SCHEMA = pa.schema([("id", pa.int64())])
ROWS = pa.record_batch({"id": [7]}, schema=SCHEMA)
LOCAL = Local(
    placement.FORMAT,
    (Carried(Op(5), DIGEST, 512),),
    (PlacedHere(Namespace(0), Revision(1), Offset(0), Offset(3), DIGEST, DIGEST, 900),),
    (
        UnplacedHere(
            Namespace(1),
            Revision(1),
            Offset(3),
            Offset(5),
            (Piece(Offset(3), 2, Op(4), 1_700_000_000_000_000, 10),),
            "no room",
        ),
    ),
)


def the_log() -> Log:
    """One open partition with some of everything, and one that was closed."""
    log = a_log()
    done(log.open(OTHER, 2, revision=2, topic_created=2))
    done(log.close(OTHER, 2, revision=3))
    done(log.append(1, 3, body=bytes(SIZES.size_min)))
    log.seal()
    done(log.append(2, 2))
    done(log.set_schema(2))
    staged = log.stage(ONE, 0, schema=2)
    done(log.publish(staged.receipt))
    done(log.stage(TWO, 0, version=2))
    done(log.store("spark", 2, 7, hold=True))
    done(log.trim(1))
    log.seal()
    return log


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name):
    command = COMMANDS[name]
    data = golden(f"operation-{name}")
    assert operations.encode(command) == data
    assert operations.decode(command.operation, data) == command


def test_seal():
    assert operations.encode(Seal(expire=True)) == golden("operation-seal")
    assert operations.decode_seal(golden("operation-seal")) == Seal(expire=True)


def test_seal_of_segments_in_format_2():
    seal = Seal(expire=True, format=2)
    assert operations.encode(seal) == golden("operation-seal-2")
    assert operations.decode_seal(golden("operation-seal-2")) == seal


def test_append_is_one_arrow_message():
    body = golden("operation-append")
    assert bytes(batch.encode(ROWS)) == body
    assert batch.admit(body, SCHEMA, 1) == ROWS


def test_stage_is_its_place_and_one_arrow_message():
    data = golden("operation-stage")
    assert encode_stage(ONE, 2) + golden("operation-append") == data
    assert decode_stage(data) == StageHeader(ONE, 2)
    assert data[STAGE_HEADER_SIZE:] == golden("operation-append")


def test_image():
    machine = the_log().machine
    assert machine.snapshot().replicated == golden("partitions-image")
    restored = a_machine()
    restored.restore(MachineState(golden("partitions-image")))
    assert restored.digest() == machine.digest()
    assert image.encode(image.decode(golden("partitions-image"), BITS)) == golden(
        "partitions-image"
    )


def test_image_with_a_writer_of_one_transaction():
    log, writer = a_log(), b"once" + b"." * 12
    staged = log.stage(ONE, 0, rows=3, writer=writer)
    done(log.publish(staged.receipt, writer=writer))
    done(log.stage(TWO, 0))
    data = golden("partitions-image-once")
    assert log.machine.snapshot().replicated == data
    assert image.encode(image.decode(data, BITS)) == data


def test_local():
    assert placement.encode(LOCAL) == golden("partitions-local")
    assert placement.decode(golden("partitions-local")) == LOCAL


PAGE = (PAGES / "operations.md").read_text()


def test_the_page_lists_every_operation():
    found = {int(number) for number in re.findall(r"^\| (\d+) \| [A-Z]", PAGE, re.MULTILINE)}
    known = {command.operation for command in COMMANDS.values()}
    assert found == known | {SEAL, APPEND, STAGE}


def test_the_page_lists_every_code_and_which_may_be_sent_again():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE, re.MULTILINE)
    assert {code for code, _ in rows} == set(RefusalCode)
    assert {code for code, row in rows if "send it again" in row} == RETRYABLE


def test_the_page_names_the_limits():
    for number in (WINDOW, WRITER_COUNT_MAX, PUBLISHER_COUNT_MAX, STAGE_COUNT_MAX):
        assert f"{number:,}" in PAGE
    assert f"{CURSOR_COUNT_MAX:,}" in PAGE
