"""What the audit holds against a shard: each rule, broken once."""

from dataclasses import replace

from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.ids import Offset
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import Unplaced
from headrace.partition.segments.sealer import InProcess
from headrace.partition.shard_store import StoreOptions
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.kills.audit import Audit
from headrace_lab.shard.kills.ledger import LedgerRows, ShardAccount
from headrace_lab.shard.kills.workload import (
    CREATED,
    SCHEMA,
    TOPIC,
    Batch,
    ShardWorkload,
    digest_of,
    writer_id,
)
from headrace_lab.shard.shard import SoloShard, opening, publishing, trimming

WORKLOAD = ShardWorkload(seed=7)
FIRST, SECOND, OTHER = Batch(0, 1), Batch(0, 2), Batch(1, 1)  # of partition 0


def a_shard(batches=(FIRST, OTHER, SECOND)):
    """A shard that holds these batches, and the account of their writer."""
    options = StoreOptions(
        RecoveryOptions(slots=64, file_size=256 * 1024),
        SegmentSizes(1_000, 8_000, 2),
        InProcess,
    )
    shard = SoloShard.open(MemoryDisk().root, options)
    for key in WORKLOAD.partitions:
        shard.one(opening(key, [SCHEMA], CREATED, CREATED))
    account = ShardAccount()
    for batch in batches:
        result = shard.one(WORKLOAD.append(batch))
        account.hear(f"trying {batch.source} {batch.version}")
        account.hear(rows_of(batch, result.start).line())
    return shard, account


def rows_of(batch, start):
    rows = WORKLOAD.rows(batch)
    place = WORKLOAD.partition_of(batch)
    return LedgerRows(place, start, start + rows.num_rows, batch, digest_of(rows))


def problems(shard, account):
    return Audit(shard.store, account, WORKLOAD).run().problems


def test_what_was_acknowledged_and_is_there_holds_before_and_after_it_is_sealed():
    shard, account = a_shard()
    assert problems(shard, account) == []
    shard.checkpoint()
    assert shard.store.machine.state.partitions[0].segments
    assert problems(shard, account) == []


def test_rows_in_flight_may_be_there_and_are_named():
    shard, account = a_shard([FIRST])
    result = shard.one(WORKLOAD.append(SECOND))
    account.hear("trying 0 2")
    audit = Audit(shard.store, account, WORKLOAD)
    assert audit.run().problems == []
    assert audit.unheard == [rows_of(SECOND, result.start)]


def test_rows_that_nobody_tried_are_invented():
    shard, account = a_shard([FIRST])
    shard.one(WORKLOAD.append(SECOND))
    assert "holds no such rows" in problems(shard, account)[0]


def test_an_acknowledged_batch_that_is_not_there_is_lost():
    shard, account = a_shard([FIRST, SECOND])
    account.hear("trying 1 1")
    account.hear(rows_of(OTHER, 0)._replace(end=1).line())
    assert "is lost" in problems(shard, account)[0]


def test_an_end_below_the_acknowledged_one_is_a_loss():
    shard, account = a_shard([FIRST])
    account.hear(rows_of(SECOND, account.ends[0]).line())
    count = WORKLOAD.row_count(SECOND)
    assert f"lost {count} rows" in problems(shard, account)[0]


def test_other_offsets_than_the_acknowledged_ones_are_seen():
    shard, account = a_shard([FIRST, OTHER])
    account.rows[OTHER] = account.rows[OTHER]._replace(start=0)
    assert "is not as acknowledged" in problems(shard, account)[0]


def test_another_content_is_seen():
    shard, account = a_shard()
    found = Audit(shard.store, account, replace(WORKLOAD, seed=8)).run()
    assert found.problems
    assert found.invented_count > 0


def test_rows_below_a_trim_need_not_be_there_but_only_those():
    shard, account = a_shard()
    shard.one(trimming(WORKLOAD.partitions[0], Offset(account.rows[FIRST].end + 1)))
    first = account.rows[FIRST].end + 1
    assert "begins at" in problems(shard, account)[0]
    account.hear(f"trimming 0 {first}")
    assert problems(shard, account) == []
    account.hear(f"trimmed 0 {first + 1}")
    assert "begins at" in problems(shard, account)[0]


def test_rows_of_a_discarded_version_may_not_show():
    shard, account = a_shard([FIRST])
    account.dropped.add((FIRST.source, FIRST.version))
    assert "holds no such rows" in problems(shard, account)[0]


def test_half_a_transaction_is_seen():
    source = WORKLOAD.publishers[0]
    version = next(
        version
        for version in range(1, 100)
        if len({WORKLOAD.partition_of(one) for one in WORKLOAD.entries(source, version)}) > 1
    )
    shard, account = a_shard([FIRST])
    for stage, batches in enumerate(WORKLOAD.stages(source, version)):
        for number, batch in enumerate(batches):
            shard.one(WORKLOAD.stage(batch, stage, number))
    account.hear(f"trying {source} {version}")
    receipts = WORKLOAD.receipts(source, version)
    shard.one(publishing(TOPIC, writer_id(source), version, receipts))
    assert problems(shard, account) == []
    # What one partition holds of it goes, unseen by the ledger's trims.
    place = WORKLOAD.partition_of(WORKLOAD.entries(source, version)[-1])
    state = shard.store.machine.state.partitions[place]
    shard.one(trimming(WORKLOAD.partitions[place], state.end))
    account.hear(f"trimming {place} {state.end}")
    account.rows.pop(FIRST, None)
    assert any("half a transaction" in one for one in problems(shard, account))


def test_a_segment_that_is_gone_is_seen():
    shard, account = a_shard()
    shard.checkpoint()
    files = shard.store.keeper.files
    for name in list(files.there):
        files.segments.unlink(name)
    assert "cannot be read" in problems(shard, account)[0]


def test_a_segment_without_a_file_is_seen_though_its_rows_can_be_read():
    shard, account = a_shard()
    pieces = tuple(shard.store.machine.state.partitions[0].runs[0].pieces)
    shard.checkpoint()
    segment = shard.store.machine.state.partitions[0].segments[0]
    segment.place = Unplaced(pieces, "a child died of it")
    assert "a child died of it" in problems(shard, account)[0]
