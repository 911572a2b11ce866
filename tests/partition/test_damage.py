"""Damage at rest: what is lost is named, and everything else is served."""

from dataclasses import replace

import pytest
from tests.partition.shards import (
    OTHER,
    a_disk,
    a_shard,
    carry_path,
    files_in,
    layered,
    sealed,
)

from headrace.errors import CorruptEntry, CorruptSegment, ForeignFile
from headrace.journal.entry import HEADER_SIZE
from headrace.journal.frame import PREFIX_SIZE
from headrace.model.ids import Op
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk


class TestCarryLost:
    """Rows 140..170 are in carry files 18, 20 and 22, one append each; 22's is journaled."""

    def test_what_is_gone_is_named_and_everything_else_is_served(self):
        disk = a_disk(layered)
        disk.remove(carry_path(18))
        shard = a_shard(disk)
        (finding,) = shard.store.findings
        assert (finding.path, finding.what) == (
            carry_path(18),
            "carry file: file is missing",
        )
        with pytest.raises(CorruptEntry, match=r"op 17 is neither.*18.carry: .* missing"):
            shard.ids(140, 150)
        assert shard.ids(0, 140) == list(range(140))
        assert shard.ids(150, 190) == list(range(150, 190))

    def test_what_is_still_in_the_journal_is_in_the_next_carry_file(self):
        disk = a_disk(layered)
        disk.remove(carry_path(22))
        shard = a_shard(disk, sizes=SegmentSizes(4_000, 16_000, 99))
        assert shard.ids() == list(range(190))
        op = shard.checkpoint()
        assert list(shard.store.keeper.files.carry[op].ops) == [21, 23, 24]
        for _ in range(3):
            shard.checkpoint()
        assert shard.store.group.journal.slot(Op(21)) is None
        assert shard.ids() == list(range(190))
        disk = disk.kill()
        again = a_shard(disk, sizes=SegmentSizes(4_000, 16_000, 99))
        assert again.store.findings == []
        assert again.ids() == list(range(190))

    def test_a_lost_one_stays_named_and_brings_its_rows_back_when_it_comes_back(self):
        disk = a_disk(layered)
        content = disk.content(carry_path(18))
        disk.remove(carry_path(18))
        for _ in range(3):  # its run is due meanwhile, and cannot be sealed
            shard = a_shard(disk)
            shard.append()
            shard.checkpoint()
            with pytest.raises(CorruptEntry, match="op 17"):
                shard.ids(140, 150)
            disk = disk.kill()
        disk.put(carry_path(18), content)
        shard = a_shard(disk)
        end = shard.partition.end
        assert shard.ids() == list(range(end))
        shard.checkpoint()
        assert not shard.unsealed
        assert shard.store.findings == []

    @pytest.mark.parametrize("at", [20, 130, 150])
    def test_rot_in_header_or_index_is_found_at_the_start(self, at):
        disk = a_disk(layered)
        disk.flip(carry_path(20), at * 8)
        shard = a_shard(disk)
        (finding,) = shard.store.findings
        assert finding.path == carry_path(20)
        with pytest.raises(CorruptEntry, match="op 19"):
            shard.ids(150, 160)
        assert shard.ids(140, 150) + shard.ids(160, 190) == [*range(140, 150), *range(160, 190)]

    def test_rot_in_an_entry_is_that_entrys_alone(self):
        disk = a_disk(layered)
        disk.flip(carry_path(20), (len(disk.content(carry_path(20))) - 100) * 8)
        shard = a_shard(disk)
        with pytest.raises(CorruptEntry) as caught:
            shard.ids(150, 160)
        assert caught.value.path == carry_path(20)
        assert shard.ids(140, 150) + shard.ids(160, 190) == [*range(140, 150), *range(160, 190)]
        shard.checkpoint()
        assert "op 19" in shard.unsealed[0].place.flaw
        assert shard.ids(140, 150) + shard.ids(160, 190) == [*range(140, 150), *range(160, 190)]

    def test_another_file_in_its_place_is_not_taken_for_it(self):
        disk = a_disk(layered)
        other = a_disk(lambda shard: (sealed(shard, 15), shard.append(7), shard.checkpoint()))
        (path,) = files_in(other, "carry")
        assert path == carry_path(19)
        disk.put(carry_path(18), other.content(path))
        shard = a_shard(disk)
        assert [one.path for one in shard.store.findings] == [carry_path(18)]
        with pytest.raises(CorruptEntry):
            shard.ids(140, 150)

    def test_one_of_another_cluster_is_refused_at_the_start(self):
        disk = a_disk(layered)
        other = MemoryDisk()
        shard = a_shard(other, identity=replace(SOLO, cluster=b"another cluster!"))
        layered(shard)
        disk.put(carry_path(18), other.content(carry_path(18)))
        with pytest.raises(ForeignFile, match="cluster"):
            a_shard(disk)

    def test_one_of_another_cluster_that_nothing_names_is_set_aside(self):
        other = MemoryDisk()
        layered(a_shard(other, identity=replace(SOLO, cluster=b"another cluster!")))
        disk = a_disk(layered)
        disk.put(carry_path(3), other.content(carry_path(18)))
        disk.put(carry_path(17), other.content(carry_path(18)))
        shard = a_shard(disk)
        shard.checkpoint()
        assert carry_path(17) not in disk.files()
        assert len(files_in(disk, "quarantine")) == 2
        assert shard.ids() == list(range(190))

    def test_a_run_whose_entry_is_lost_is_not_sealed_without_it(self):
        disk = a_disk(layered)
        disk.remove(carry_path(18))
        shard = a_shard(disk)
        for _ in range(3):
            shard.checkpoint()
        (unsealed,) = shard.unsealed
        assert (unsealed.first, unsealed.end) == (140, 190)
        assert "op 17 is neither in the journal nor in a carry file" in unsealed.place.flaw
        assert shard.ids(150, 190) == list(range(150, 190))


class TestJournalDamage:
    def test_a_rotten_entry_is_not_drained_away(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(14)
        slot = shard.store.group.journal.slot(Op(5))
        disk.flip(slot.file.path, (slot.position + PREFIX_SIZE + HEADER_SIZE + 9) * 8)
        for _ in range(2):
            with pytest.raises(CorruptEntry, match="op 5"):
                shard.checkpoint() if not shard.pending else shard.run()
        assert shard.pending == [16]
        assert shard.ids(0, 30) == list(range(30))
        with pytest.raises(CorruptEntry):
            shard.ids(30, 40)

    def test_one_that_is_to_be_carried_neither(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(3)
        slot = shard.store.group.journal.slot(Op(3))
        disk.flip(slot.file.path, (slot.position + PREFIX_SIZE + HEADER_SIZE + 9) * 8)
        with pytest.raises(CorruptEntry, match="op 3"):
            shard.checkpoint()
        assert files_in(disk, "carry") == []

    def test_one_that_is_carried_too_is_read_from_its_copy_and_sealed(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(3)
        shard.checkpoint()
        slot = shard.store.group.journal.slot(Op(3))
        disk.flip(slot.file.path, (slot.position + PREFIX_SIZE + HEADER_SIZE + 9) * 8)
        assert shard.ids() == list(range(30))
        for _ in range(4):
            shard.checkpoint()
        assert shard.ids() == list(range(30))
        assert not shard.unsealed


class TestSegmentDamage:
    def damaged(self, act):
        disk = a_disk(layered)
        (path,) = files_in(disk, "segments")
        act(disk, path)
        shard = a_shard(disk)
        with pytest.raises(CorruptSegment) as caught:
            shard.ids(0, 5)
        assert caught.value.path == path
        assert "restore the file" in str(caught.value)
        assert shard.ids(140, 190) == list(range(140, 190))
        shard.append()
        assert isinstance(shard.checkpoint(), int)
        return caught.value

    def test_missing(self):
        assert "cannot be opened" in str(self.damaged(lambda disk, path: disk.remove(path)))

    def test_truncated(self):
        found = self.damaged(lambda disk, path: disk.cut(path, len(disk.content(path)) - 1))
        assert "another size" in str(found)

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.999])
    def test_rotten(self, part):
        def rot(disk, path):
            disk.flip(path, int(len(disk.content(path)) * part) * 8)

        assert "another file digest" in str(self.damaged(rot))

    def test_empty(self):
        assert "another size" in str(self.damaged(lambda disk, path: disk.cut(path, 0)))

    def test_another_partitions(self):
        other = MemoryDisk()
        shard = a_shard(other)
        shard.open_partition(OTHER)
        shard.append_many(14, key=OTHER)
        shard.checkpoint()
        (found,) = files_in(other, "segments")
        self.damaged(lambda disk, path: disk.put(path, other.content(found)))

    def test_another_clusters_with_the_very_same_rows(self):
        other = MemoryDisk()
        layered(a_shard(other, identity=replace(SOLO, cluster=b"another cluster!")))
        (found,) = files_in(other, "segments")
        self.damaged(lambda disk, path: disk.put(path, other.content(found)))

    def test_put_back_it_is_served_again(self):
        disk = a_disk(layered)
        (path,) = files_in(disk, "segments")
        whole = disk.content(path)
        disk.flip(path, 9_000)
        shard = a_shard(disk)
        with pytest.raises(CorruptSegment):
            shard.ids(0, 5)
        disk.put(path, whole)
        assert shard.ids() == list(range(190))
