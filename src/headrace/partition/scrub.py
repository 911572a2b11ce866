"""Reading every file again, so that rot is found while a copy of the bytes still exists."""

from collections.abc import Iterator
from contextlib import suppress

from headrace.errors import Corrupt, ReadFailed
from headrace.partition.checkpoint_files import CheckpointFiles
from headrace.partition.files.carry import CarryFile
from headrace.partition.files.file_set import FileFinding
from headrace.partition.machine.state import Placed, Segment
from headrace.storage.seam import joined


def scrub(keeper: CheckpointFiles) -> Iterator[FileFinding | None]:
    """Check one file at each step: every byte against its digest, every row against its own.

    A bad segment goes to quarantine, so that no reader trusts what is still in a cache. Its
    place stays known: a whole copy that is put back is served again. Entries of a bad carry
    file that the journal still holds are carried again by the next checkpoint.
    """
    for segment in _placed(keeper):
        # A scrub takes days: what was trimmed since it began may be gone, and is no loss.
        yield _check_segment(keeper, segment) if _is_live(keeper, segment) else None
    for op in list(keeper.files.carry_ops):
        file = keeper.files.carry.get(op)
        found = [] if file is None else list(_carry_findings(file))
        if not found or keeper.files.carry.get(op) is not file:  # collected meanwhile
            yield None
            continue
        keeper.files.rotten.add(op)
        for finding in found:
            keeper.files.report(finding)
            yield finding


def _carry_findings(file: CarryFile) -> Iterator[FileFinding]:
    flaw = file.check()
    if flaw is not None:
        yield FileFinding(file.path, f"carry file: {flaw.what}")
    for path, bad in file.check_kept():
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
    return partition is not None and any(one is segment for one in partition.segments)


def _check_segment(keeper: CheckpointFiles, segment: Segment) -> FileFinding | None:
    assert isinstance(segment.place, Placed)
    files, info = keeper.files, keeper.info(segment)
    with files.hold(info.name):
        try:
            files.open.pop(info.name, None)  # it was checked when it was opened; check again
            _drop_cache(keeper, info.name)
            files.segment(info, segment.place).check()
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
