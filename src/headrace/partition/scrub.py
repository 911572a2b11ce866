"""Reading every file again, so that rot is found while a copy of the bytes still exists."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress

from headrace.errors import Corrupt, ReadFailed
from headrace.partition.checkpoint_files import CheckpointFiles
from headrace.partition.files.carry import CarryFile
from headrace.partition.files.file_set import FileFinding
from headrace.partition.machine.state import Placed, Segment
from headrace.storage.seam import joined
from headrace.storage.stream import Pace, unpaced


def scrub(
    keeper: CheckpointFiles, pace: Pace = unpaced, begin: float = 0.0
) -> Iterator[FileFinding | None]:
    """Check one file at each step: every byte against its digest, every row against its own.

    Segments come first, from the one at the fraction `begin` on. Any one thread may run it
    beside readers and checkpoints; what `pace` raises ends it and leaves nothing behind.

    A bad segment goes to quarantine, so that no reader trusts what is still in a cache. Its
    place stays known: a whole copy that is put back is served again. Entries of a bad carry
    file that the journal still holds are carried again by the next checkpoint.
    """
    segments = _placed(keeper)
    first = int(len(segments) * begin)
    for segment in segments[first:] + segments[:first]:
        yield _check_segment(keeper, segment, pace)
    for op in list(keeper.files.carry_ops):
        file = keeper.files.carry.get(op)
        found = [] if file is None else list(_carry_findings(file, pace))
        if not found or keeper.files.carry.get(op) is not file:  # collected meanwhile
            yield None
            continue
        keeper.files.rotten.add(op)
        for finding in found:
            keeper.files.report(finding)
            yield finding


def _carry_findings(file: CarryFile, pace: Pace) -> Iterator[FileFinding]:
    flaw = file.check(pace)
    if flaw is not None:
        yield FileFinding(file.path, f"carry file: {flaw.what}")
    for path, bad in file.check_kept(pace):
        yield FileFinding(path, f"kept file of {file.name}: {bad.what}")


def _placed(keeper: CheckpointFiles) -> list[Segment]:
    return [
        segment
        for partition in list(keeper.machine.state.partitions.values())
        for segment in partition.segments
        if isinstance(segment.place, Placed)
    ]


def _is_live(keeper: CheckpointFiles, segment: Segment) -> bool:
    partition = keeper.machine.state.partitions.get(segment.namespace)
    segments = () if partition is None else partition.segments
    place = bisect_left(segments, segment.first, key=lambda one: one.first)
    return place < len(segments) and segments[place] is segment


def _check_segment(keeper: CheckpointFiles, segment: Segment, pace: Pace) -> FileFinding | None:
    assert isinstance(segment.place, Placed)
    files, info = keeper.files, keeper.info(segment)
    with files.hold(info.name):
        # A scrub takes days: what was trimmed since it began may be gone, and is no loss. What
        # is live once it is held stays.
        if not _is_live(keeper, segment):
            return None
        try:
            _drop_cache(keeper, info.name)
            file = files.opened(info, segment.place, pace)
            try:
                file.check_rows(pace)
            finally:
                file.close()
                _drop_cache(keeper, info.name)  # readers get the memory back
        except Corrupt as error:
            path = joined(files.segments.path, info.name)
            if info.name in files.there:
                files.quarantine_segment(info.name, str(error))
            else:
                files.report(FileFinding(path, str(error)))
            return FileFinding(path, str(error))
        except ReadFailed as error:  # not judged: it stays where it is, for the next scrub
            return FileFinding(error.path, str(error))
    return None


def _drop_cache(keeper: CheckpointFiles, name: str) -> None:
    """What the cache holds says nothing about the platter."""
    with suppress(OSError):  # whatever it is, the check meets it too and gives it a name
        file = keeper.files.segments.open(name)
        try:
            file.drop_cache()
        finally:
            file.close()
