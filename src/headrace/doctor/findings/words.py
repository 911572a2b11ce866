"""What is said of each kind of finding: one table, filled in where something is found."""

from typing import Final, NamedTuple

from headrace.doctor.findings.finding import NOTHING, Finding, Loss, Severity, ops
from headrace.errors import ForeignFile
from headrace.model.ids import OP_MAX
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.node.identity import NAME as CLUSTER_NAME

REFUSES: Final = "a start of this group refuses"
HOLDS: Final = "a start holds this group, and takes no change of topics"

PUT_BACK: Final = "Put the file back from a copy"
SALVAGE: Final = "bring every readable row into a new log with --salvage NEW_DIR"
PUT_BACK_OR_SALVAGE: Final = f"{PUT_BACK}, or {SALVAGE}"
ADOPT_OR_PUT_BACK: Final = (
    "Run `headrace metadata adopt` to preview the recovery, or restore groups/00000 from a "
    "backup"
)
OR_ADOPT: Final = (
    "; or run `headrace metadata adopt` to preview what opens group 0 with all that can be read"
)

_OWN_FILE: Final = "Put this log's own file back: a start makes it again if there is none"
_UNSERVED: Final = "a node says so to whoever reads these rows, and serves all others"
_FIELD: Final = "its {field} should be {expected}, is {found}"
_NO_PARENT: Final = (
    "the entry does not follow the one before it: its parent should be {expected}, is {found}"
)
_MADE_AGAIN: Final = "The next start writes it again"
_NO_FILE: Final = "a directory, where a file should be"
_FOREIGN: Final = (
    "it belongs to another log, and a start of this group refuses while it is here"
)
_MOVE_OWN: Final = "Move it to where it belongs, and put this log's own file back"

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
    "identity-file": Words(NOTE, "the superblocks say which cluster this is", _MADE_AGAIN),
    "identity-file: unreadable": Words(
        NOTE,
        "nothing is lost by it: the superblocks say the same; a start fails until it can be "
        "read",
        "Let the user who runs the node read it: see ls -l; or move it elsewhere, and the next "
        "start makes it again from the superblocks",
        what="the file that says which cluster this is cannot be read: {what}",
    ),
    "identity-file: lost": Words(
        DAMAGE,
        "no superblock says which cluster this is either: the journal's headers do, and the "
        "widths of ids are taken from node.toml; a start refuses",
        PUT_BACK,
    ),
    "identity-file: too few": Words(
        DAMAGE,
        "a node serves no topic of a shard that it does not count",
        _OWN_FILE,
        what="it counts {counted}, and {why}",
    ),
    **dict.fromkeys(
        ("identity-file: directory", "lock", "config: directory", "not-a-file"),
        Words(
            DAMAGE,
            "a start fails while it is here",
            "Move it elsewhere: a start makes the file",
            what=_NO_FILE,
        ),
    ),
    "config": Words(
        NOTE,
        "it only tells people with which settings the last start ran",
        _MADE_AGAIN,
        what="cannot be read: {what}",
    ),
    "heads": Words(
        NOTE,
        "only the marks in the journals themselves tell damage at their ends from an "
        "unfinished append",
        "A running node writes it again",
    ),
    "copy": Words(
        NOTE,
        "some of metadata, or all of it, is in the log of group 0 alone",
        "The next start begins it anew",
    ),
    "copy: directory": Words(
        DAMAGE,
        "no change of topics is taken while it is here",
        "Move it elsewhere: the next start makes the file",
        what=_NO_FILE,
    ),
    "copy: unused": Words(
        NOTE,
        "nothing shows which state of metadata is right",
        what="group 0 is not healed from it: {reasons}",
    ),
    "copy-differs": Words(
        DAMAGE,
        "the copy has more than group 0, or another history: a start holds group 0, and takes "
        "no change of metadata",
        "Put group 0 and the copy back as they were at one moment; if group 0 is the one to go "
        "on with, move the copy away" + OR_ADOPT,
    ),
    "heal": Words(
        NOTE,
        "the copy fits the shards and what is left, so nothing is lost",
        "The next start makes it anew from the copy, and sets the old files aside",
        what=f"less than its copy: {{left}}, and {COPY_NAME} goes up to op {{to}}",
    ),
    "unlistable": Words(
        DAMAGE,
        "a start needs to read it, and fails",
        "Look with the rights of the user whose log it is, and at the disk",
        what="cannot be looked at: {what}",
    ),
    "leftover": Words(
        NOTE,
        "a process ended while it was writing it; nothing relied on it yet",
        "The next start, or the next file of that name, takes it away",
        what="an unfinished file of {size}",
    ),
    "leftover: group": Words(
        NOTE,
        "a process ended while it was healing group 0, or opening one that was held",
        "A start takes it where group 0 is gone, and empties it where that is whole",
        what="a group 0 that is made anew",
    ),
    "set-aside": Words(
        NOTE,
        "no start looks at it",
        "Look at the disk; remove it when it is of no use any more",
        what="group 0 as it was before it was healed from its copy, or opened by `metadata "
        "adopt`",
    ),
    "stranger": Words(
        NOTE,
        "no start looks at it or touches it",
        "Find out who put it here, and keep it elsewhere",
        what="a {noun} that Headrace did not make",
    ),
    "stranger: group": Words(
        NOTE,
        "no start looks at it or touches it",
        "Find out who put it here, and keep it elsewhere",
        what="no shard: a directory with a number, and nothing of a shard in it",
    ),
    "quarantined": Words(
        NOTE,
        "an earlier start or scrub found it damaged, or of no row that the log knows",
        "No start removes it; --salvage looks for rows in it",
        what="a file of {size} that was set aside",
    ),
    # Files of another log or release.
    "foreign-file: root": Words(
        DAMAGE,
        "it belongs to another log, and a start refuses while it is here",
        f"{_MOVE_OWN}: without one a start goes on, with weaker evidence",
        what=_FIELD,
    ),
    "foreign-file: cluster": Words(
        DAMAGE,
        "it belongs to another log, and a start refuses every group while it is here",
        _OWN_FILE,
    ),
    "foreign-file": Words(DAMAGE, _FOREIGN, _MOVE_OWN, what=_FIELD),
    "foreign-file: carry": Words(DAMAGE, _FOREIGN, _MOVE_OWN),
    "foreign-file: many": Words(
        DAMAGE,
        f"they belong to another log or group, and {REFUSES} while they are here",
        "Move them to where they belong, and put this group's own files back",
        what="of {files} files: {what}",
    ),
    "newer-format: root": Words(
        DAMAGE, "a newer release wrote it, and a start refuses", "Start that release"
    ),
    "newer-format": Words(
        DAMAGE, f"a newer release wrote it, and {REFUSES}", "Start that release"
    ),
    # A group.
    "group-gone": Words(
        DAMAGE,
        "a start refuses this group, and makes no empty one in its place",
        f"Do not start a node here. {PUT_BACK_OR_SALVAGE}",
    ),
    "group-gone: metadata": Words(DAMAGE, HOLDS, PUT_BACK_OR_SALVAGE),
    "group-gone: all": Words(
        DAMAGE,
        f"{CLUSTER_NAME} shows that a node began here: the files are gone, or its first start "
        "was killed before it made any; the next start makes an empty log",
        "If rows were here, do not start a node, and put the directory back from a copy",
        what="no group has any file",
    ),
    "refused": Words(DAMAGE, REFUSES, PUT_BACK_OR_SALVAGE),
    "slots": Words(
        NOTE,
        REFUSES,
        "Start with at least that many in journal.slots",
        what="{live} must stay reachable; node.toml has {slots}",
    ),
    "apply-failed": Words(
        DAMAGE,
        "by a defect of this release, and a start of this group refuses",
        f"Report this, and start a release that runs it, or {SALVAGE}",
        what="op {first_op:,} is whole, and the machine cannot run it: {what}",
    ),
    "metadata-behind": Words(
        DAMAGE,
        "a shard follows a change only once the metadata has it: changes are gone from here. A "
        "node serves what both agree on, and changes no topic",
        ADOPT_OR_PUT_BACK,
    ),
    "orphan": Words(
        DAMAGE,
        "the metadata neither has it nor has deleted it: no row of it is lost, and none can be "
        "reached. A node removes nothing of it, and gives its place to no other topic",
        ADOPT_OR_PUT_BACK,
        what="{names} to no topic: {rows}; {schema}",
    ),
    # Superblocks and snapshots.
    "superblock-fork": Words(
        DAMAGE,
        f"{REFUSES}: one of the two was copied from elsewhere",
        "Put the right copy back",
    ),
    "superblock-copy": Words(
        NOTE,
        "the other copy, sequence {sequence}, is whole and is taken",
        "The next start writes both again",
    ),
    "superblock-lost": Words(
        DAMAGE,
        "neither copy can be read: a start makes the record again from snapshots and journal, "
        "and cannot tell whether the last stop was clean",
        f"{PUT_BACK} if there is one, or start: it is made again",
    ),
    "superblock-stale": Words(
        NOTE,
        "a crash came between the two writes; the newer one is taken",
        "The next start writes both again",
        what="sequence {sequence}, while the other copy has {best}",
    ),
    "cut-begun": Words(
        NOTE,
        "a start was interrupted while it removed a torn tail",
        "The next start finishes it",
        what="a cut from op {cut_from:,} was begun",
    ),
    "snapshot-bad: spared": Words(
        NOTE,
        "a start begins at {begin} and replays the journal from there",
        "The next start moves it to quarantine and writes it again",
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
            f"{REFUSES}: no other snapshot reaches the journal that is here",
            PUT_BACK_OR_SALVAGE,
        ),
    ),
    "snapshot-state": Words(
        DAMAGE,
        "the machine cannot restore it, and a start of this group refuses",
        PUT_BACK_OR_SALVAGE,
        what="whole, but no state of a shard: {flaw}",
    ),
    # The journal. What a snapshot covers is needed no more.
    "journal-header": Words(
        DAMAGE,
        f"{REFUSES}: the ops from {{first_op:,}} are out of its reach",
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
        "the other one is whole and is taken",
        _MADE_AGAIN,
        what="header block {block} of 2 is bad",
    ),
    "journal-entry": Words(
        DAMAGE,
        f"an entry that was acknowledged cannot be read, and {REFUSES}",
        PUT_BACK_OR_SALVAGE,
    ),
    "journal-entry: covered": Words(NOTE, "the snapshot at op {covered:,} stands above it"),
    "chain-broken": Words(
        DAMAGE,
        f"what is behind it belongs to another log, and {REFUSES}",
        f"Find out who wrote here. {PUT_BACK_OR_SALVAGE}",
        what=_NO_PARENT,
    ),
    "chain-broken: covered": Words(NOTE, "a snapshot stands above it", what=_NO_PARENT),
    "journal-short": Words(
        DAMAGE,
        f"no crash cuts a file short, and {REFUSES}",
        PUT_BACK_OR_SALVAGE,
        what="{size:,} bytes, where its header says {expected:,}",
    ),
    "journal-short: clean": Words(
        NOTE,
        "the stop was clean, so the part that is gone was empty",
        "The next start gives its empty part back",
        what="{size:,} bytes, where its header says {expected:,}",
    ),
    "journal-missing": Words(
        DAMAGE,
        f"ops that were acknowledged are nowhere, and {REFUSES}",
        PUT_BACK_OR_SALVAGE,
        what="the file is gone",
    ),
    "journal-missing: covered": Words(
        NOTE, "the snapshot at op {covered:,} covers its ops", what="the file is gone"
    ),
    "journal-end": Words(
        DAMAGE,
        f"ops that were acknowledged are nowhere, and {REFUSES}",
        PUT_BACK_OR_SALVAGE,
        what="its end is gone",
    ),
    "journal-end: covered": Words(
        NOTE, "the snapshot at op {covered:,} covers its ops", what="its end is gone"
    ),
    "rubble": Words(NOTE, "bad bytes where no entry is: a mark, or the empty part of the file"),
    "rubble: end": Words(NOTE, "an end frame is bad or absent", _MADE_AGAIN),
    "torn-tail": Words(
        NOTE,
        "a process died while it was writing; nothing says that it was ever acknowledged",
        "The next start cuts it off",
        what="an unfinished append at the end of the journal",
    ),
    "spare-twin": Words(
        NOTE,
        "a crash came between two steps of a roll or a drain",
        "The next start drops this name; the file stays",
        what="a second name of a journal file that is in use",
    ),
    "spare-size": Words(
        NOTE,
        "it is never used; spares hold no rows",
        what="a spare of {size}, which is no whole block",
    ),
    # Rows of shards.
    **dict.fromkeys(
        ("carry-bad", "carry-gone", "kept-gone"),
        Words(
            DAMAGE,
            f"entries that are in no segment yet were kept here; {_UNSERVED}",
            PUT_BACK_OR_SALVAGE,
        ),
    ),
    "carry-entry": Words(
        DAMAGE,
        f"an entry that is in no segment yet is rotten here; {_UNSERVED}",
        PUT_BACK_OR_SALVAGE,
    ),
    "carry-entry: unneeded": Words(
        NOTE, f"an entry that is in no segment yet is rotten here; {_UNSERVED}"
    ),
    **dict.fromkeys(
        ("segment-gone", "segment-bad", "segment-rows", "segment-unknown"),
        Words(
            DAMAGE,
            "it is not what was sealed; a node gives no row of it, and serves all others",
            PUT_BACK_OR_SALVAGE,
        ),
    ),
    "segment-unsealed": Words(
        NOTE,
        "its rows are still in carry files, and are served from there",
        "Each checkpoint tries again",
        what="could not be written: {flaw}",
    ),
    "unnamed": Words(
        NOTE,
        "a checkpoint was interrupted, or its rows were trimmed; no row is read from it",
        "A later checkpoint takes it away, or sets it aside if it is of another log",
        what="a {noun} that no snapshot names",
    ),
    "rows-nowhere": Words(
        DAMAGE,
        "rows that were acknowledged and sealed into no segment yet cannot be found",
        PUT_BACK_OR_SALVAGE,
        what="{entries} in no journal file and no carry file",
    ),
    "cursor-beyond": Words(
        DAMAGE,
        "its partition ends at {end:,}: rows that it read are gone",
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
    """Make a finding of one case of the table. `last_op`: OP_MAX if nobody knows."""
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
    """Tell of a file of another log."""
    expected, found = error.expected, error.found
    return finding(case, file, loss=loss, field=error.field, expected=expected, found=found)


def apply_failed(where: str, op: int, what: str, loss: Loss) -> Finding:
    """Tell of a whole entry on which the machine raises."""
    return finding(
        "apply-failed", f"{where}/journal", loss=loss, first_op=op, last_op=op, what=what
    )
