"""The words for each kind of finding: one table, filled in where something is found."""

from typing import Final, NamedTuple

from headrace.doctor.findings.finding import NOTHING, Finding, Loss, Severity, ops
from headrace.errors import ForeignFile
from headrace.model.ids import OP_MAX
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.node.identity import NAME as CLUSTER_NAME

REFUSES: Final = "the node refuses to start this group"
HOLDS: Final = "the node holds this group read-only and accepts no topic changes"

PUT_BACK: Final = "Restore the file from a backup"
SALVAGE: Final = "copy every readable row into a new log with --salvage NEW_DIR"
PUT_BACK_OR_SALVAGE: Final = f"{PUT_BACK}, or {SALVAGE}"
ADOPT_OR_PUT_BACK: Final = (
    "Run `headrace metadata adopt` to preview the recovery, or restore groups/00000 from a "
    "backup"
)
OR_ADOPT: Final = (
    "; or run `headrace metadata adopt` to preview opening group 0 with all that can be read"
)

_OWN_FILE: Final = "Restore this log's own file; if the file is missing, a start recreates it"
_UNSERVED: Final = "reads of these rows return an error; the node serves all other rows"
_FIELD: Final = "expected {field} {expected}, found {found}"
_NO_PARENT: Final = (
    "the entry does not follow the previous one: expected parent {expected}, found {found}"
)
_MADE_AGAIN: Final = "The next start rewrites it"
_NO_FILE: Final = "a directory where a file is expected"
_MOVE_AWAY: Final = "Move it elsewhere; the next start creates the file"
_FOREIGN: Final = f"it belongs to another log; {REFUSES} while it is here"
_MOVE_OWN: Final = "Move it to where it belongs, and restore this log's own file"

NOTE, DAMAGE = Severity.NOTE, Severity.DAMAGE


class Words(NamedTuple):
    """Sentences with blanks in braces."""

    severity: Severity
    means: str
    next: str = ""
    what: str = "{what}"


# A kind, or a kind and a case of it.
WORDS: Final[dict[str, Words]] = {
    # The directory.
    "identity-file": Words(
        NOTE, "the superblocks also record which cluster this is", _MADE_AGAIN
    ),
    "identity-file: unreadable": Words(
        NOTE,
        "nothing is lost: the superblocks hold the same data; the node fails to start until "
        "the file is readable",
        "Make it readable for the user who runs the node (see ls -l); or move it elsewhere, "
        "and the next start recreates it from the superblocks",
        what="the file that records the cluster identity cannot be read: {what}",
    ),
    "identity-file: lost": Words(
        DAMAGE,
        "no superblock records the cluster either: it is taken from the journal headers, and "
        "the ID widths from node.toml; the node refuses to start",
        PUT_BACK,
    ),
    "identity-file: too few": Words(
        DAMAGE,
        "the node serves no topic of a shard beyond that count",
        _OWN_FILE,
        what="it counts {counted}, but {why}",
    ),
    **dict.fromkeys(
        ("identity-file: directory", "lock", "config: directory", "not-a-file"),
        Words(DAMAGE, "the node fails to start while it is here", _MOVE_AWAY, what=_NO_FILE),
    ),
    "config": Words(
        NOTE,
        "it only records the settings of the last start, for information",
        _MADE_AGAIN,
        what="cannot be read: {what}",
    ),
    "heads": Words(
        NOTE,
        "only the marks in the journals themselves can tell damage at their ends from an "
        "unfinished append",
        "A running node rewrites it",
    ),
    "copy": Words(
        NOTE,
        "some or all of the metadata is only in the log of group 0",
        "The next start recreates it",
    ),
    "copy: directory": Words(
        DAMAGE, "the node accepts no topic changes while it is here", _MOVE_AWAY, what=_NO_FILE
    ),
    "copy: unused": Words(
        NOTE,
        "there is no evidence which state of the metadata is right",
        what="group 0 is not healed from it: {reasons}",
    ),
    "copy-differs": Words(
        DAMAGE,
        "the copy has more than group 0, or another history: the node holds group 0 and "
        "accepts no metadata changes",
        "Restore group 0 and the copy as they were at one moment; to keep group 0 as it is, "
        "move the copy away" + OR_ADOPT,
    ),
    "heal": Words(
        NOTE,
        "the copy matches the shards and the rest of group 0, so nothing is lost",
        "The next start rebuilds it from the copy and sets the old files aside",
        what=f"has less than its copy: {{left}}, and {COPY_NAME} reaches op {{to}}",
    ),
    "unlistable": Words(
        DAMAGE,
        "the node must read it, so it fails to start",
        "Rerun as the user who owns the log, and check the disk",
        what="cannot be accessed: {what}",
    ),
    "leftover": Words(
        NOTE,
        "a process ended while writing it; nothing depends on it yet",
        "The next start removes it, or the next file of that name replaces it",
        what="an unfinished file of {size}",
    ),
    "leftover: group": Words(
        NOTE,
        "a process ended while healing group 0, or while opening a held group 0",
        "The next start adopts it if group 0 is missing, and empties it if group 0 is intact",
        what="a new group 0 under construction",
    ),
    "set-aside": Words(
        NOTE,
        "startup ignores it",
        "Check the disk; remove it when it is no longer needed",
        what="group 0 from before it was healed from its copy, or opened by `metadata adopt`",
    ),
    "stranger": Words(
        NOTE,
        "the node neither reads nor changes it",
        "Find out where it came from, and move it elsewhere",
        what="a {noun} that Headrace did not create",
    ),
    "stranger: group": Words(
        NOTE,
        "the node neither reads nor changes it",
        "Find out where it came from, and move it elsewhere",
        what="not a shard: a numbered directory without any of a shard's files",
    ),
    "quarantined": Words(
        NOTE,
        "an earlier start or scrub found it damaged, or without any row that the log knows",
        "The node never removes it; --salvage searches it for rows",
        what="a file of {size} that was set aside",
    ),
    # Files of another log or release.
    "foreign-file: root": Words(
        DAMAGE,
        "it belongs to another log; the node refuses to start while it is here",
        f"{_MOVE_OWN}; without one the node starts, with weaker evidence",
        what=_FIELD,
    ),
    "foreign-file: cluster": Words(
        DAMAGE,
        "it belongs to another log; the node refuses to start any group while it is here",
        _OWN_FILE,
    ),
    "foreign-file": Words(DAMAGE, _FOREIGN, _MOVE_OWN, what=_FIELD),
    "foreign-file: carry": Words(DAMAGE, _FOREIGN, _MOVE_OWN),
    "foreign-file: many": Words(
        DAMAGE,
        f"they belong to another log or group; {REFUSES} while they are here",
        "Move them to where they belong, and restore this group's own files",
        what="{files} files: {what}",
    ),
    "newer-format: root": Words(
        DAMAGE, "a newer release wrote it; the node refuses to start", "Start that release"
    ),
    "newer-format": Words(DAMAGE, f"a newer release wrote it; {REFUSES}", "Start that release"),
    # A group.
    "group-gone": Words(
        DAMAGE,
        f"{REFUSES}, and creates no empty one in its place",
        f"Do not start a node here. {PUT_BACK_OR_SALVAGE}",
    ),
    "group-gone: metadata": Words(DAMAGE, HOLDS, PUT_BACK_OR_SALVAGE),
    "group-gone: all": Words(
        DAMAGE,
        f"{CLUSTER_NAME} shows that a node was started here: the files are missing, or the "
        "first start was killed before it created any; the next start creates an empty log",
        "If there were rows here, start no node, and restore the directory from a backup",
        what="no group has any files",
    ),
    "refused": Words(DAMAGE, REFUSES, PUT_BACK_OR_SALVAGE),
    "slots": Words(
        NOTE,
        REFUSES,
        "Start with journal.slots set to at least that number",
        what="{live} must stay reachable; node.toml has {slots}",
    ),
    "apply-failed": Words(
        DAMAGE,
        f"this is a defect of this release; {REFUSES}",
        f"Report this, and start a release that can run it, or {SALVAGE}",
        what="op {first_op:,} is intact, but the machine cannot run it: {what}",
    ),
    "metadata-behind": Words(
        DAMAGE,
        "a shard applies a change only after the metadata has it, so changes are missing "
        "here. The node serves what both agree on and changes no topic",
        ADOPT_OR_PUT_BACK,
    ),
    "orphan": Words(
        DAMAGE,
        "the metadata neither has it nor has deleted it: none of its rows are lost, but none "
        "can be read. The node removes nothing of it and gives its place to no other topic",
        ADOPT_OR_PUT_BACK,
        what="{names} to no topic: {rows}; {schema}",
    ),
    # Superblocks and snapshots.
    "superblock-fork": Words(
        DAMAGE,
        f"{REFUSES}: one of the two was copied from elsewhere",
        "Restore the right copy",
    ),
    "superblock-copy": Words(
        NOTE,
        "the other copy, sequence {sequence}, is intact and in use",
        "The next start rewrites both",
    ),
    "superblock-lost": Words(
        DAMAGE,
        "neither copy can be read: a start rebuilds the record from snapshots and journal, "
        "but cannot tell whether the last stop was clean",
        f"{PUT_BACK} if there is one, or start: the record is rebuilt",
    ),
    "superblock-stale": Words(
        NOTE,
        "a crash came between the two writes; the newer copy is in use",
        "The next start rewrites both",
        what="sequence {sequence}, while the other copy has {best}",
    ),
    "cut-begun": Words(
        NOTE,
        "a start was interrupted while removing a torn tail",
        "The next start finishes it",
        what="an unfinished cut from op {cut_from:,}",
    ),
    "snapshot-bad: spared": Words(
        NOTE,
        "a start begins at {begin} and replays the journal from there",
        "The next start moves it to quarantine and writes a new one",
    ),
    "snapshot-gone: spared": Words(
        NOTE,
        "a start begins at {begin} and replays the journal from there",
        "The next start or checkpoint writes a new one",
    ),
    **dict.fromkeys(
        ("snapshot-bad", "snapshot-gone"),
        Words(
            DAMAGE,
            f"{REFUSES}: no other snapshot connects to this journal",
            PUT_BACK_OR_SALVAGE,
        ),
    ),
    "snapshot-state": Words(
        DAMAGE,
        f"the machine cannot restore it; {REFUSES}",
        PUT_BACK_OR_SALVAGE,
        what="intact, but not a valid shard state: {flaw}",
    ),
    # The journal. What a snapshot covers is no longer needed.
    "journal-header": Words(
        DAMAGE,
        f"{REFUSES}: it cannot reach the ops from {{first_op:,}}",
        PUT_BACK_OR_SALVAGE,
        what="neither header block can be read: {what}",
    ),
    "journal-header: covered": Words(
        NOTE,
        "the snapshot at op {covered:,} covers all its ops",
        "The next start moves it to quarantine",
    ),
    "header-block": Words(
        NOTE,
        "the other block is intact and in use",
        _MADE_AGAIN,
        what="header block {block} of 2 is bad",
    ),
    "journal-entry": Words(
        DAMAGE, f"an acknowledged entry cannot be read; {REFUSES}", PUT_BACK_OR_SALVAGE
    ),
    "journal-entry: covered": Words(NOTE, "the snapshot at op {covered:,} covers it"),
    "chain-broken": Words(
        DAMAGE,
        f"what follows belongs to another log; {REFUSES}",
        f"Find out what wrote here. {PUT_BACK_OR_SALVAGE}",
        what=_NO_PARENT,
    ),
    "chain-broken: covered": Words(NOTE, "a snapshot covers it", what=_NO_PARENT),
    "journal-short": Words(
        DAMAGE,
        f"a crash never cuts a file short; {REFUSES}",
        PUT_BACK_OR_SALVAGE,
        what="{size:,} bytes, but its header says {expected:,}",
    ),
    "journal-short: clean": Words(
        NOTE,
        "the stop was clean, so the missing part was empty",
        "The next start restores the empty part",
        what="{size:,} bytes, but its header says {expected:,}",
    ),
    "journal-missing": Words(
        DAMAGE,
        f"acknowledged ops are in no other file; {REFUSES}",
        PUT_BACK_OR_SALVAGE,
        what="the file is missing",
    ),
    "journal-missing: covered": Words(
        NOTE, "the snapshot at op {covered:,} covers its ops", what="the file is missing"
    ),
    "journal-end": Words(
        DAMAGE,
        f"acknowledged ops are in no other file; {REFUSES}",
        PUT_BACK_OR_SALVAGE,
        what="its end is missing",
    ),
    "journal-end: covered": Words(
        NOTE, "the snapshot at op {covered:,} covers its ops", what="its end is missing"
    ),
    "rubble": Words(
        NOTE, "bad bytes outside any entry: in a mark, or in the empty part of the file"
    ),
    "rubble: end": Words(NOTE, "an end frame is bad or missing", _MADE_AGAIN),
    "torn-tail": Words(
        NOTE,
        "a process died while writing; there is no evidence that it was ever acknowledged",
        "The next start cuts it off",
        what="an unfinished append at the end of the journal",
    ),
    "spare-twin": Words(
        NOTE,
        "a crash came between two steps of a roll or a drain",
        "The next start removes this name; the file stays",
        what="a second name of a journal file that is in use",
    ),
    "spare-size": Words(
        NOTE,
        "it is never used; spares hold no rows",
        what="a spare of {size}, which is not a whole number of blocks",
    ),
    # Rows of shards.
    **dict.fromkeys(
        ("carry-bad", "carry-gone", "kept-gone"),
        Words(
            DAMAGE,
            f"it held entries that are in no segment yet; {_UNSERVED}",
            PUT_BACK_OR_SALVAGE,
        ),
    ),
    "carry-entry": Words(
        DAMAGE,
        f"an entry that is in no segment yet is corrupt here; {_UNSERVED}",
        PUT_BACK_OR_SALVAGE,
    ),
    "carry-entry: unneeded": Words(
        NOTE, f"an entry that is in no segment yet is corrupt here; {_UNSERVED}"
    ),
    **dict.fromkeys(
        ("segment-gone", "segment-bad", "segment-rows", "segment-unknown"),
        Words(
            DAMAGE,
            "it differs from what was sealed; the node serves all rows except those in it",
            PUT_BACK_OR_SALVAGE,
        ),
    ),
    "segment-unsealed": Words(
        NOTE,
        "its rows are still in carry files and are served from there",
        "Each checkpoint retries",
        what="could not be written: {flaw}",
    ),
    "unnamed": Words(
        NOTE,
        "a checkpoint was interrupted, or its rows were trimmed; no row is read from it",
        "A later checkpoint removes it, or sets it aside if it belongs to another log",
        what="a {noun} that no snapshot names",
    ),
    "rows-nowhere": Words(
        DAMAGE,
        "acknowledged rows that are in no segment yet cannot be found",
        PUT_BACK_OR_SALVAGE,
        what="{entries} in no journal file and no carry file",
    ),
    "cursor-beyond": Words(
        DAMAGE,
        "its partition ends at {end:,}: rows that it has read are missing",
        PUT_BACK_OR_SALVAGE,
        what="consumer group {group!r} reads {following:,} next",
    ),
}


def finding(
    case: str,
    file: str,
    *,
    loss: Loss = NOTHING,
    position: int | None = None,
    first_op: int | None = None,
    last_op: int | None = None,
    **blanks: object,
) -> Finding:
    """Fill in one case of the table. `last_op` is OP_MAX if the end is unknown."""
    words = WORDS[case]
    blanks["first_op"] = first_op
    place = file if position is None else f"{file} at byte {position:,}"
    return Finding(
        severity=words.severity,
        kind=case.partition(":")[0],
        file=file,
        position=position,
        first_op=first_op,
        last_op=None if last_op == OP_MAX else last_op or first_op,
        where=place if first_op is None else f"{place}, {ops(first_op, last_op)}",
        what=words.what.format_map(blanks),
        means=words.means.format_map(blanks),
        lost=loss.words,
        lost_rows=loss.rows,
        next=words.next.format_map(blanks),
        is_counted=loss.is_counted,
    )


def foreign(case: str, file: str, error: ForeignFile, loss: Loss = NOTHING) -> Finding:
    """Report a file of another log."""
    expected, found = error.expected, error.found
    return finding(case, file, loss=loss, field=error.field, expected=expected, found=found)


def apply_failed(where: str, op: int, what: str, loss: Loss) -> Finding:
    """Report an intact entry on which the machine raises."""
    return finding(
        "apply-failed", f"{where}/journal", loss=loss, first_op=op, last_op=op, what=what
    )
