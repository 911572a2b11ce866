"""Every error, by what its receiver does next.

    HeadraceError
    ├── Rejected             fix the request: repeating it changes nothing
    │   ├── BodyTooLarge         a body over the limit; no byte was written
    │   ├── NotNext              an entry that is not head + 1, or does not chain to the head
    │   ├── TooFewSlots          the ring is smaller than the ops that must be kept
    │   ├── ForeignFile          a file or directory of another cluster, group or replica
    │   ├── BadName              a stream or topic that may not be called so
    │   ├── BadSchema            a column that cannot be kept, or that breaks the old schema
    │   ├── BadBatch             a batch that is not what its schema and its header say
    │   ├── BadRequest           a read that asks for something which cannot be
    │   ├── Expired              rows below the first one retained
    │   ├── Recreated            meant for an earlier life of the partition
    │   ├── TopicUnknown         no such topic; a name is mistyped, or it was deleted
    │   ├── TopicExists          a topic of that name is there already
    │   ├── Refused              a machine refused what was asked, by its rules; see `code`
    │   ├── BadFrame             bytes from a peer that are not the protocol; it is cut off
    │   ├── VersionUnknown       no version of the protocol that both sides speak
    │   ├── Unauthorized         the token is missing or wrong
    │   └── BadConfig            a setting that cannot be
    ├── Unavailable          wait, then repeat
    │   ├── DirectoryHeld        another process holds the data directory
    │   ├── RingFull             no free slot until the next checkpoint
    │   ├── DiskFull             no space; nothing was written
    │   ├── WriteFailed          a write failed and was undone; nothing was written
    │   ├── Stopped              this group was stopped here; it may run again elsewhere
    │   ├── CheckpointPending    two checkpoints wait already
    │   ├── PartitionUnknown     no such partition here, or not yet
    │   ├── Behind               rows that are not committed here yet
    │   ├── ReadFailed           a file cannot be read now; its bytes are not judged
    │   ├── SealFailed           a file of a checkpoint cannot be written now; none is skipped
    │   ├── NotReady             the node, or the group asked for, does not serve now
    │   ├── NotYet               a machine does not know something yet; see `code`
    │   ├── Busy                 a bound was reached; see `retry_after_ms`
    │   ├── NotErased            a topic is deleted, and files still hold bytes of its rows
    │   ├── TimedOut             the deadline came first; it did not happen
    │   └── ConnectionLost       no connection; what was asked did not happen
    ├── Corrupt              stop, and tell a human
    │   ├── CorruptEntry         an acknowledged entry cannot be read
    │   ├── CorruptFile          a file of ours whose bytes are not what was written
    │   ├── CorruptSegment       a segment, or some row group of it, is not what was sealed
    │   ├── Diverged             a cursor beyond the end: rows that were acknowledged are gone
    │   ├── CorruptSnapshot      no snapshot can be used, and the journal does not reach back
    │   ├── MissingFile          a file that must be there is gone
    │   ├── ChainBroken          whole entries that do not follow one another
    │   ├── UnsupportedFormat    written by a newer release
    │   └── ApplyFailed          a machine raised on a committed entry: this group halts
    ├── Unknown              it may have happened: repeat only with the same writer and version
    │   └── WriterUnknown        the log forgot this writer: go on as a new one
    └── StorageFailed        this file is not trusted any more; its component is poisoned

Errors carry fields, not only text: what (`path`), where (`position`), `expected`, `found`.
"""

import errno
from typing import Final

from headrace.model.revisions import shown

# What helps where the operating system refused something, and the disk is not at fault.
OS_HINTS: Final[dict[int, str]] = {
    errno.EACCES: "Run it as the user who owns it, or change its permissions: see ls -ld",
    errno.EPERM: "Run it as the user who owns it, and look at its attributes: see lsattr",
    errno.ENOENT: "Check the name",
    errno.ENOTDIR: "Check the name: a part of it before the last is a file",
    errno.ENAMETOOLONG: "Check the name",
    errno.ELOOP: "Check the name: symbolic links in it lead round in a circle",
    errno.ENOSPC: "Free some space, and repeat",
    errno.EDQUOT: "Free some space, or raise the quota, and repeat",
    errno.EROFS: "Name a place on a file system that is not mounted read-only",
    errno.EMFILE: "Raise the limit of open files: ulimit -n",
    errno.EIO: "Look at the disk: the kernel's log (dmesg) says more",
}
_NOT_THE_DISK: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE})


def _hint_of(cause: OSError) -> str:
    """Return what helps if the disk is not at fault."""
    return OS_HINTS[cause.errno] if cause.errno in _NOT_THE_DISK else ""


class HeadraceError(Exception):
    """The root of everything Headrace raises on purpose."""

    hint: str = ""  # the next step, in one sentence

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. {self.hint}" if self.hint else text


class Rejected(HeadraceError):
    """Fix the request: repeating it changes nothing."""


class Unavailable(HeadraceError):
    """Wait, then repeat what did not happen."""


class Corrupt(HeadraceError):
    """Stop, and tell a human: bytes are not what was written."""

    def __init__(
        self,
        message: str,
        *,
        path: str,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str = "",
    ) -> None:
        where = path if position is None else f"{path} at byte {position}"
        text = f"{where}: {message}"
        if expected is not None or found is not None:
            text += f" (expected {expected}, found {found})"
        super().__init__(text, hint=hint)
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found


class Unknown(HeadraceError):
    """It may have happened: repeat only with the same writer and version."""

    hint = "Look whether it happened before you repeat it"


class StorageFailed(HeadraceError):
    """A disk failed in a way that leaves `path` untrusted. `stage` says what is on disk."""

    hint = "Look at the disk, then start again: only a new start tells what it holds"

    def __init__(self, path: str, stage: str, cause: OSError, *, hint: str = "") -> None:
        text = f"{path}: {stage} failed: {cause.strerror or cause}"
        super().__init__(text, hint=hint or _hint_of(cause))
        self.path = path
        self.stage = stage
        self.cause = cause


class BodyTooLarge(Rejected):
    """A body over the limit. No byte of it was written."""

    def __init__(self, size: int, limit: int, *, row_count: int | None = None) -> None:
        what, hint = f"a body of {size} bytes", "Split it into smaller batches"
        if row_count == 1:
            what = f"a row of {size} bytes"
            hint = (
                "A row is never split: keep large values elsewhere, and their place in the row"
            )
        super().__init__(f"{what} is over the limit of {limit}", hint=hint)
        self.size = size
        self.limit = limit


class NotNext(Rejected):
    """An entry that is not the one after the head, or does not chain to it."""

    hint = "Seal the entry for the op after the head, with the head's checksum as its parent"

    def __init__(self, field: str, expected: object, found: object) -> None:
        super().__init__(
            f"the entry does not follow the head: {field} should be {expected}, is {found}"
        )
        self.field = field
        self.expected = expected
        self.found = found


class TooFewSlots(Rejected):
    """The ring is smaller than the ops that must be kept."""

    def __init__(self, path: str, slots: int, live: int) -> None:
        super().__init__(
            f"{path}: {live} ops must stay reachable, but the ring has {slots} slots",
            hint="Open it with the slots it was made with",
        )
        self.path = path
        self.slots = slots
        self.live = live


class ForeignFile(Rejected):
    """A file of another cluster, group or replica: the wrong directory, or a misplaced file."""

    def __init__(self, path: str, field: str, expected: object, found: object) -> None:
        super().__init__(
            f"{path} belongs elsewhere: {field} should be {expected}, is {found}",
            hint="Check the data directory in the configuration; nothing was changed",
        )
        self.path = path
        self.field = field
        self.expected = expected
        self.found = found


class BadName(Rejected):
    """A stream or topic that may not be called so."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(
            f"{name[:200]!r} is no name for a {what}",
            hint="Use 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or a digit",
        )
        self.what = what
        self.name = name


class BadSchema(Rejected):
    """A schema that cannot be kept. `column` is a path, such as `items[].price`."""

    def __init__(self, column: str, flaw: str, *, hint: str = "") -> None:
        super().__init__(f"column {column!r}: {flaw}" if column else flaw, hint=hint)
        self.column = column


class BadBatch(Rejected):
    """A batch that is not what its schema and its header say. `column` may be empty."""

    def __init__(self, flaw: str, *, column: str = "", hint: str = "") -> None:
        super().__init__(f"column {column!r}: {flaw}" if column else flaw, hint=hint)
        self.column = column


class BadRequest(Rejected):
    """A read that asks for something which cannot be, whatever the log holds."""


class Expired(Rejected):
    """Rows below the first one retained. Nothing is given instead of them."""

    def __init__(self, partition: str, offset: int, first: int) -> None:
        super().__init__(
            f"partition {partition}: offset {offset} is gone, the first retained is {first}",
            hint=f"Read from {first}, and count what lies before as lost to this reader",
        )
        self.partition = partition
        self.offset = offset
        self.first = first


class Recreated(Rejected):
    """The partition was deleted and made again: its offsets count other rows now."""

    def __init__(self, partition: str, expected: int, found: int) -> None:
        super().__init__(
            f"partition {partition} was deleted and created again: "
            f"meant for revision {shown(expected)}, found {shown(found)}",
            hint="Look the topic up again and decide where to begin",
        )
        self.partition = partition
        self.expected = expected
        self.found = found


class TopicUnknown(Rejected):
    """No such topic."""


class TopicExists(Rejected):
    """A topic of that name is there already."""


class Refused(Rejected):
    """A machine refused what was asked. Its rules, not this node, say so."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class BadFrame(Rejected):
    """Bytes from a peer that are not the protocol. The connection ends."""

    hint = "Check that both sides are Headrace, and that nothing between them changes bytes"


class VersionUnknown(Rejected):
    """No version of the protocol that both sides speak."""


class Unauthorized(Rejected):
    """The token is missing or wrong."""


class BadConfig(Rejected):
    """A setting that cannot be. `key` is its name in the file, such as `listen.port`."""

    def __init__(self, key: str, flaw: str, *, source: str = "", hint: str = "") -> None:
        where = f" (from {source})" if source else ""
        super().__init__(f"{key}{where}: {flaw}" if key else flaw, hint=hint)
        self.key = key
        self.source = source


class DirectoryHeld(Unavailable):
    """Another process holds the data directory. `socket` is where it listens, if it does."""

    def __init__(self, path: str, pid: int | None, socket: str = "") -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(
            f"{path} is in use by {holder}",
            hint="Stop it, or connect to it: headrace.connect(address)",
        )
        self.path = path
        self.pid = pid
        self.socket = socket


class RingFull(Unavailable):
    """The slot of an op still holds one that must be kept. No byte was written."""

    def __init__(self, op: int, watermark: int, slots: int) -> None:
        super().__init__(
            f"op {op} has no free slot: {slots} slots hold the ops from {watermark + 1}",
            hint="Wait for the next checkpoint",
        )
        self.op = op
        self.watermark = watermark
        self.slots = slots


class DiskFull(Unavailable):
    """No space left. What was to be written is not there, and what was there is intact."""

    def __init__(self, path: str, stage: str, *, hint: str = "") -> None:
        super().__init__(
            f"{path}: no space left on the device ({stage})",
            hint=hint or "Free some space; appends go on by themselves",
        )
        self.path = path
        self.stage = stage


class WriteFailed(Unavailable):
    """A write failed and was undone durably: its entries are not in the journal."""

    hint = "Append them again; if that goes on failing, look at the disk"

    def __init__(self, path: str, position: int, cause: OSError, *, hint: str = "") -> None:
        super().__init__(
            f"{path} at byte {position}: write failed and was undone: "
            f"{cause.strerror or cause}",
            hint=hint,
        )
        self.path = path
        self.position = position
        self.cause = cause


class Stopped(Unavailable):
    """The group was stopped in this process."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: this group is stopped", hint="Open it again")
        self.path = path


class CheckpointPending(Unavailable):
    """As many checkpoints wait as may. Appends wait too."""

    def __init__(self, pending: int) -> None:
        super().__init__(
            f"{pending} checkpoints are waiting to be written",
            hint="Wait for the oldest to finish",
        )
        self.pending = pending


class PartitionUnknown(Unavailable):
    """No such partition here: it was never made, is being made, or is gone."""

    def __init__(self, partition: str) -> None:
        super().__init__(
            f"there is no partition {partition} here",
            hint="If it was made just now, try again; otherwise check the topic's name",
        )
        self.partition = partition


class Behind(Unavailable):
    """Rows that are not committed here yet. A bounded read is whole or an error."""

    def __init__(self, partition: str, end: int, committed: int) -> None:
        super().__init__(
            f"partition {partition}: asked for up to {end}, committed up to {committed}",
            hint="Wait and repeat, or ask for less",
        )
        self.partition = partition
        self.end = end
        self.committed = committed


class ReadFailed(Unavailable):
    """A file could not be opened or read now. This says nothing about its bytes."""

    def __init__(self, path: str, cause: OSError, *, hint: str = "") -> None:
        usual = "Look at the limits of this process and of the machine, then repeat"
        super().__init__(
            f"{path}: cannot be read now: {cause.strerror or cause}",
            hint=hint or _hint_of(cause) or usual,
        )
        self.path = path
        self.cause = cause


class SealFailed(Unavailable):
    """A file of a checkpoint could not be written now. The same rows are in the next try."""

    def __init__(self, path: str, flaw: str) -> None:
        super().__init__(
            f"{path}: the file was not written: {flaw}",
            hint="The same rows are written at the next try; nothing is lost",
        )
        self.path = path


class NotReady(Unavailable):
    """The node, or the group asked for, does not serve now."""


class NotYet(Unavailable):
    """A machine does not know something yet: a schema, or the version before this one."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Busy(Unavailable):
    """A bound was reached. Nothing happened."""

    def __init__(self, what: str, retry_after_ms: int) -> None:
        super().__init__(what, hint=f"Come again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class NotErased(Unavailable):
    """The topic is deleted, and some files may still hold bytes of its rows: it names them."""


class TimedOut(Unavailable):
    """The deadline came before it happened, so it did not."""

    hint = "Repeat it, with a longer timeout if that goes on"


class ConnectionLost(Unavailable):
    """No connection. What was asked did not happen."""

    hint = "Check that the node runs, and repeat it"


class WriterUnknown(Unknown):
    """The log has forgotten this writer: what was in flight may have happened."""

    hint = "Look which rows are there, and go on as a new writer"


class CorruptEntry(Corrupt):
    """An entry that was acknowledged cannot be read."""

    hint = "Stop, keep the directory as it is, and put the file back from a copy"


class CorruptFile(Corrupt):
    """A file of ours whose bytes are not what was written."""


class CorruptSegment(Corrupt):
    """A segment, or one row group of it, that is not what was sealed."""

    hint = "Other ranges are served; put the file back from a copy or from a replica"

    def __init__(
        self,
        message: str,
        *,
        path: str,
        row_group: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        text = message if row_group is None else f"row group {row_group}: {message}"
        super().__init__(text, path=path, expected=expected, found=found)
        self.row_group = row_group


class Diverged(Corrupt):
    """A cursor beyond the end of its partition. Clamping it would hide the loss."""


class CorruptSnapshot(Corrupt):
    """No snapshot can be used, and the journal does not reach back far enough to do without."""


class MissingFile(Corrupt):
    """A file that must be there is gone."""


class ChainBroken(Corrupt):
    """Whole entries that do not follow one another."""


class UnsupportedFormat(Corrupt):
    """Written by a newer release than this one."""

    hint = "Open it with the release that wrote it, or a newer one"


class MetadataInDoubt(Corrupt):
    """Metadata is not shown to be what it once acknowledged: it is not changed, only read."""


class ApplyFailed(Corrupt):
    """A machine raised on a committed entry: this group halts, the others go on."""


def refuse_newer(path: str, known: int, needed: int | str) -> None:
    """Raise UnsupportedFormat if a file needs a newer format than the newest that is known."""
    if int(needed) > known:
        raise UnsupportedFormat(
            "needs a newer release", path=path, expected=f"format {known}", found=needed
        )


def first_line(error: BaseException) -> str:
    """Return what an error of a library says, without the trace that it may add."""
    return (str(error) or type(error).__name__).splitlines()[0]
