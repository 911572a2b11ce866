"""From a recovered group to a replica with peers: the disk state that a driver passes on."""

from collections.abc import Iterator
from functools import partial

from headrace.journal.entry import BODY_SIZE_MAX, SEAL, Entry, Header, decode_header, root, seal
from headrace.journal.group import Group
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.journal.superblock import Superblock
from headrace.model.ids import Identity, Op
from headrace.vsr import peer_messages as vm
from headrace.vsr.clock import Clock
from headrace.vsr.member import Member, RecoveredMember
from headrace.vsr.member_state import MemberState, Timeouts
from headrace.vsr.op_log import OpLog
from headrace.vsr.quorum import quorum_of

# Shorter than in a node: what is simulated is not slower for waiting less.
TIMES = Timeouts(
    heartbeat=4,
    election=16,
    resend=5,
    view_change=24,
    probe=4,
    repair=3,
    transfer=4,
    stall=30,
    stagger=3,
)

Found = list[tuple[Op, vm.PrepareHeader | None, bytes | None]]


def member_of(group: Group, report: RecoveryReport, slots: int) -> Member[Entry]:
    """Make the replica that continues what `recover` found."""
    journal, block = group.journal, group.superblock.current
    *past, (_, boot) = block.starts or ((0, 1),)
    identity, found = journal.identity, _found(group, report)
    anchor = journal.ring.watermark if found else journal.durable
    tip = _anchor_checksum(group, anchor, found)
    state = MemberState[Entry](
        me=identity.replica,
        quorum=quorum_of(identity.replica_count),
        slots=slots,
        seal=partial(seal, identity),
        seal_operation=SEAL,
        boot=boot,
        log=OpLog(anchor, tip),
        times=TIMES,
        clock=Clock(identity.replica_count),
        accepts=lambda entry: _is_ours(entry, identity),
    )
    recovered = RecoveredMember(
        view=block.view,
        log_view=block.log_view,
        commit=max(group.applied, journal.commit),
        applied=group.applied,
        checkpoint=block.checkpoint.op,
        anchor=anchor,
        anchor_checksum=tip,
        found=found,
        suspect=block.suspect,
        recovering=block.recovering,
        syncing_to=block.syncing_to,
        sequence=block.sequence,
        past=tuple(vm.Start(*one) for one in past),
        gave_up=block.gave_up,
        peers=_peers(block),
        timestamp=max((one.timestamp for _, one, _ in found if one), default=0),
    )
    return Member.started(state, recovered)


def _is_ours(entry: Entry, identity: Identity) -> bool:
    """Judge what the journal would refuse: a peer may have sent the entry of another group."""
    header = entry.header
    is_sized = header.body_size == len(entry.body) <= BODY_SIZE_MAX
    return is_sized and (header.cluster, header.group) == (identity.cluster, identity.group)


def _peers(block: Superblock) -> Iterator[vm.Peer]:
    boots = dict(block.peer_boots)
    for peer, life in block.peers:
        yield vm.Peer(peer, life, boots.get(peer, 0))


def _found(group: Group, report: RecoveryReport) -> Found:
    """Every op that the journal must have: whole, or faulty with what is known of it."""
    journal = group.journal
    checksums = {one.op: one.checksum for one in report.faulty}
    found: Found = []
    for number in range(journal.ring.watermark + 1, journal.durable + 1):
        slot = journal.ring.get(Op(number))
        header = None if slot is None else decode_header(slot.sealed)
        if isinstance(header, Header):
            short = vm.PrepareHeader(
                header.op, header.checksum, header.parent, header.view, header.timestamp
            )
            found.append((Op(number), short, header.checksum))
        else:
            found.append((Op(number), None, checksums.get(Op(number))))
    if found and found[-1][2] is None:
        found[-1] = (found[-1][0], None, journal.tip)
    return found


def _anchor_checksum(group: Group, anchor: Op, found: Found) -> bytes | None:
    if not found:
        return group.journal.tip
    if anchor == 0:
        return root(group.journal.identity)
    first = found[0][1]
    return None if first is None else first.parent
