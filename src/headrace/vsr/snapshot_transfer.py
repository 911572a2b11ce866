"""State transfer: a snapshot instead of entries that no journal reaches back to.

    begin → GetOffer → Offer → `syncing_to` durable → GetChunk, Chunk, ... → Install → installed

The replica neither votes nor acknowledges from the offer until it holds the head that was named
for its life (`join.settle`). A piece that does not come is asked for again; an offer that is
over is followed by another, and goes on where it was if it is of the same snapshot.
"""

from headrace.model.ids import Op, ReplicaId
from headrace.vsr import join, normal, repair
from headrace.vsr.effects import Install, ServeChunk, ServeOffer
from headrace.vsr.member_state import MemberState, SnapshotTransfer
from headrace.vsr.peer_messages import E, GetChunk, GetOffer, Offer, SnapshotChunk, header_of


def begin(state: MemberState[E]) -> None:
    if state.transfer is None:
        state.transfer = SnapshotTransfer()
        _ask_offer(state)


def _ask_offer(state: MemberState[E]) -> None:
    state.send(state.primary, GetOffer(state.view))
    state.arm("transfer", state.times.transfer)


def on_get_offer(state: MemberState[E], sender: ReplicaId, message: GetOffer) -> None:
    if state.leads and message.view == state.view and state.checkpoint > 0:
        state.out.append(ServeOffer(sender, state.view))


def on_offer(state: MemberState[E], sender: ReplicaId, message: Offer[E]) -> None:
    """Take an offer that gets us further; the superblock says so before anything is touched."""
    transfer = state.transfer
    if transfer is None or transfer.offer is not None or not state.is_backup:
        return
    if sender != state.primary or message.view != state.view:
        state.drop("offer of another view")
        return
    if message.entry.op <= state.applied:
        _forgo(state)
        return
    if not transfer.data or transfer.checksum != message.checksum:
        transfer.data.clear()
    transfer.offer, transfer.checksum, transfer.unanswered = message, message.checksum, 0
    state.syncing_to = max(message.entry.op, state.syncing_to or Op(0))
    state.answered = None
    state.persist(lambda: _ask_chunk(state))


def _forgo(state: MemberState[E]) -> None:
    """We got there by other ways: a snapshot would take us back. Ask who may vote again."""
    state.transfer = None
    if not state.may_vote:
        join.probe(state)


def abandon(state: MemberState[E]) -> None:
    """Nobody leads who could go on with it: be a voter again, so that somebody may.

    It remembers what it promised, and what an install has cut here is suspect. The superblock
    says that it is no longer syncing before anything is sent.
    """
    if state.recovering or (state.transfer is not None and state.transfer.ticket):
        return
    state.transfer = None
    state.syncing_to = None


def _ask_chunk(state: MemberState[E]) -> None:
    transfer = state.transfer
    if transfer is None or transfer.offer is None or transfer.ticket or not state.is_backup:
        return
    offer = transfer.offer
    state.send(state.primary, GetChunk(offer.checksum, offer.entry.op, len(transfer.data)))
    state.arm("transfer", state.times.transfer)


def on_get_chunk(state: MemberState[E], sender: ReplicaId, message: GetChunk) -> None:
    state.out.append(ServeChunk(sender, message.checksum, message.op, message.position))


def on_chunk(state: MemberState[E], sender: ReplicaId, message: SnapshotChunk) -> None:
    """Take the piece that follows what we have, and install when all is here."""
    transfer = state.transfer
    if transfer is None or transfer.offer is None or transfer.ticket:
        return
    offer = transfer.offer
    if offer.entry.op <= state.applied:
        _forgo(state)
        return
    if message.checksum != offer.checksum or message.position != len(transfer.data):
        state.drop("chunk that nobody asked for")
        return
    if not message.data or len(transfer.data) + len(message.data) > offer.size:
        transfer.offer = None
        _ask_offer(state)
        return
    transfer.data += message.data
    transfer.unanswered = 0
    if len(transfer.data) < offer.size:
        _ask_chunk(state)
        return
    transfer.ticket = state.next_ticket()
    data = bytes(transfer.data)
    state.out.append(Install(transfer.ticket, offer.entry, offer.checksum, data))


def on_tick(state: MemberState[E]) -> None:
    transfer = state.transfer
    if transfer is None or transfer.ticket or not state.is_backup:
        return
    if "transfer" in state.due and not state.is_due("transfer"):
        return
    transfer.unanswered += 1
    if transfer.offer is None or transfer.unanswered > state.times.transfers:
        transfer.offer = None
        _ask_offer(state)
    else:
        _ask_chunk(state)


def on_installed(state: MemberState[E], ticket: int, *, kept: bool) -> None:
    """The snapshot is in place. `kept`: the journal went through it, and is still there."""
    transfer = state.transfer
    assert transfer is not None
    assert transfer.offer is not None
    assert transfer.ticket == ticket
    entry = transfer.offer.entry
    state.transfer = None
    state.mending.clear()
    if kept:
        state.log.cover(entry.op)
    else:
        state.log.reset(header_of(entry))
        state.fetched.clear()
    state.applied = state.asked = state.checkpoint = entry.op
    state.commit = max(state.commit, entry.op)
    state.timestamp = max(state.timestamp, entry.timestamp)
    join.probe(state)
    if not state.is_verified:
        join.ask_for_view(state, state.primary)
    normal.advance(state)
    repair.catch_up(state)


def on_spoiled(state: MemberState[E], ticket: int) -> None:
    """What came is not the snapshot that was offered: begin again."""
    if state.transfer is not None and state.transfer.ticket == ticket:
        state.drop("snapshot that is not what was offered")
        state.transfer = SnapshotTransfer()
        _ask_offer(state)
