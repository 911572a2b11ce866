"""Two checkpoints leave no file that held entries of a closed partition, and no row less."""

from tests.partition.shards import OTHER, a_shard, files_in
from tests.partition.test_keep import NEVER, crashes_of_a_checkpoint, kept, names_and_everything

from headrace.model.ids import Revision
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import closing

SMALL = {"sizes": NEVER, "file_size": 32 * 1024, "slots": 2048, "spare_count_max": 9}
TIMES = 60


def a_shard_of_both(disk, rounds=3):
    """Have both partitions' entries in carry files, kept files, the journal and spares.

    The second value has bytes of each of OTHER's entries that are in no other.
    """
    shard = a_shard(disk, **SMALL)
    shard.open_partition(OTHER)
    journal, headers = shard.store.group.journal, []

    def append_to_other():
        shard.append(key=OTHER)
        headers.append(journal.read(journal.durable).sealed)

    for _ in range(rounds):
        for _ in range(TIMES // 3):
            shard.append_many(2)
            append_to_other()
        shard.checkpoint()
    shard.append_many(TIMES)
    append_to_other()
    return shard, headers


def holding(disk, headers) -> list[str]:
    return [
        path
        for room in ("journal", "carry")
        for path in files_in(disk, room)
        if any(header in disk.content(path) for header in headers)
    ]


def close_other(shard) -> None:
    shard.one(closing(OTHER, Revision(9)))
    group = shard.store.group
    group.journal.erase_through = group.applied


def test_no_older_file_is_kept_or_carried_on():
    disk = MemoryDisk()
    shard, headers = a_shard_of_both(disk)
    before = kept(disk)
    assert before
    assert {path.split("/")[0] for path in holding(disk, headers)} == {"journal", "carry"}
    close_other(shard)
    shard.checkpoint()
    assert set(kept(disk)) <= set(before), "nothing older is kept from now on"
    shard.checkpoint()
    assert holding(disk, headers) == []
    assert kept(disk) == []
    assert len(shard.ids()) == 10 * (3 * 2 * (TIMES // 3) + TIMES)
    shard.append_many(2 * TIMES)
    shard.checkpoint()
    assert kept(disk), "files that begin later are kept as ever"


def test_every_crash_leaves_every_row_and_the_same_can_be_asked_again():
    count = 10 * (2 * (TIMES // 3) + TIMES)
    reached = 0
    for done in (0, 1):  # checkpoints before the one that crashes

        def before_it(disk, done=done):
            shard, _ = a_shard_of_both(disk, rounds=1)
            close_other(shard)
            for _ in range(done):
                shard.checkpoint()
            return shard

        _, headers = a_shard_of_both(MemoryDisk(), rounds=1)
        for disk in crashes_of_a_checkpoint(before_it):
            reached += 1
            for changes in ([], *reversed(names_and_everything(disk))):
                after = disk.power_cut(changes)
                assert done or reached > 1 or holding(after, headers)
                again = a_shard(after, **SMALL)
                assert again.ids() == list(range(count))
                group = again.store.group
                group.journal.erase_through = group.applied
                again.checkpoint()
                again.checkpoint()
                assert holding(after, headers) == []
                assert again.ids() == list(range(count))
    assert reached > 40
