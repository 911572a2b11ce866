"""An entry on which the machine raises halts its group at every start: salvage gets past it."""

import pyarrow as pa
import pytest
from tests.doctor import logs

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.errors import HeadraceError
from headrace.metadata.commands import CreateTopic
from headrace.metadata.machine import MetadataMachine
from headrace.partition.machine.operations import APPEND, Publish, StoreCursor
from headrace.partition.machine.partitions_machine import PartitionsMachine

SCHEMA = pa.schema([("id", pa.int64())])
ORDERS, CLICKS = "shop/orders", "web/clicks"


def rows(first, count):
    return [{"id": n} for n in range(first, first + count)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "data"
    with headrace.open(path, **logs.SETTINGS) as log:
        orders = log.create_topic(ORDERS, SCHEMA)
        orders.append(rows(0, 10), partition=0)
        orders.store_cursors("readers", {0: 4})
        clicks = log.create_topic(CLICKS, SCHEMA)
        clicks.append(rows(0, 5), partition=0)
        with log.transaction(orders, "loader", 1) as transaction:
            transaction.append(rows(10, 3))
        orders.append(rows(13, 7), partition=0)
        clicks.append(rows(5, 5), partition=0)
    return path


@pytest.fixture
def log(made, tmp_path):
    return logs.copy_of(made, tmp_path / "data")


def plant(monkeypatch, machine, is_bad):
    """Let a machine raise when it has half done what is asked; a start then refuses."""
    original = machine.apply

    def apply(self, *arguments):
        result = original(self, *arguments)
        if is_bad(*arguments):
            raise ZeroDivisionError("planted")
        return result

    monkeypatch.setattr(machine, "apply", apply)


def in_shard(operation, row_count=None):
    def is_bad(entry):
        header = entry.header
        return header.operation == operation and row_count in (None, header.row_count)

    return PartitionsMachine, is_bad


def in_metadata(operation, timestamp, body, op, checksum):
    return operation == CreateTopic.operation and b"clicks" in bytes(body)


BAD = {
    "a cursor": (*in_shard(StoreCursor.operation), {ORDERS: 20, CLICKS: 10}),
    "an append": (*in_shard(APPEND, 7), {ORDERS: 13, CLICKS: 10}),
    "a publish": (*in_shard(Publish.operation), {ORDERS: 17, CLICKS: 10}),
    "a metadata change": (MetadataMachine, in_metadata, {ORDERS: 20, "salvaged/*": 10}),
}


@pytest.mark.parametrize(("machine", "is_bad", "expected"), BAD.values(), ids=BAD)
def test_it_is_found_and_all_other_rows_are_brought_over(
    log, tmp_path, monkeypatch, machine, is_bad, expected
):
    with monkeypatch.context() as patch:
        plant(patch, machine, is_bad)
        with pytest.raises(HeadraceError, match="planted"):
            headrace.open(log, **logs.SETTINGS)
        found = [one for one in examine(str(log)).damage if one.kind == "apply-failed"]
        assert len(found) == 1
        assert "ZeroDivisionError('planted')" in found[0].what
        assert "--salvage" in found[0].next
        account = salvage(str(log), str(tmp_path / "new"))
    assert not account.is_whole
    brought = {
        topic if topic in expected else "salvaged/*": len(found)
        for (topic, _), found in logs.read(tmp_path / "new").items()
    }
    assert brought == expected
