"""Reads the usable prefix of a group that refuses to start. Changes nothing.

It takes the newest intact snapshot that the machine accepts, and the entries that follow it
without a gap: a state that the log once had, maybe not its last.
"""

from collections.abc import Iterator

from headrace.errors import HeadraceError
from headrace.journal.entry import Entry, decode, root, size_of
from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.machine_seam import Machine
from headrace.journal.recovery.scan import contiguous_from
from headrace.journal.recovery.scan_findings import Found, Scan
from headrace.journal.recovery.survey import Survey, survey
from headrace.journal.snapshot import Snapshot, SnapshotFiles
from headrace.model.ids import Identity, Op
from headrace.storage.seam import Directory


def read_prefix(directory: Directory, identity: Identity, machine: Machine) -> Op:
    """Bring `machine` to the newest state reachable without a gap; return its op."""
    try:
        rooms = [directory.child(name) for name in ("journal", "snapshots")]
    except OSError:  # not even the directories exist
        machine.restore(None)
        return Op(0)
    found = survey(directory, rooms[0], SnapshotFiles(rooms[1], identity))
    try:
        base = _restore(found, machine)
        op, tip = (Op(0), root(identity)) if base is None else (base.op, base.tip)
        for entry in _entries(found.scan, op, tip):
            machine.apply(entry)
            op = entry.op
    finally:
        for one in found.scan.files:
            one.candidate.storage.close()
    return op


def _restore(found: Survey, machine: Machine) -> Snapshot | None:
    for snapshot in found.snapshots:
        try:
            machine.restore(snapshot.state)
        except HeadraceError:
            continue  # intact, but not a valid state of this machine
        return snapshot
    machine.restore(None)
    return None


def _entries(scan: Scan, base: Op, tip: bytes) -> Iterator[Entry]:
    for found in contiguous_from(scan.entries, base, tip):
        entry = _read(scan, found)
        if entry is None:
            return
        yield entry


def _read(scan: Scan, found: Found) -> Entry | None:
    storage = scan.files[found.file].candidate.storage
    try:
        entry = decode(storage.read(found.position + PREFIX_SIZE, size_of(found.sealed)))
    except OSError:
        return None
    return entry if isinstance(entry, Entry) else None
