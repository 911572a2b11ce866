"""State transfer: a snapshot replaces entries that journals no longer have.

    begin → GetOffer → Offer → `syncing_to` durable → GetChunk, Chunk, ... → Install → installed

From the offer on, the replica neither votes nor acknowledges until it holds the head named for
its life (`join.settle`). A missing chunk is requested again; after an expired offer, a new one
is requested, and the transfer resumes if it is the same snapshot.
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
    """Accept an offer that is ahead of us; recorded in the superblock before any change."""
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
    """The snapshot is obsolete: we are already past it. Probe to regain the vote."""
    state.transfer = None
    if not state.may_vote:
        join.probe(state)


def abandon(state: MemberState[E]) -> None:
    """No primary can continue the transfer: become a voter again, so that one is elected.

    The replica remembers its promises, and ops cut by an install are suspect. The superblock
    records the end of syncing before anything is sent.
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
    """Accept the next chunk, and install the snapshot when it is complete."""
    transfer = state.transfer
    if transfer is None or transfer.offer is None or transfer.ticket:
        return
    offer = transfer.offer
    if offer.entry.op <= state.applied:
        _forgo(state)
        return
    if message.checksum != offer.checksum or message.position != len(transfer.data):
        state.drop("chunk that was not requested")
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
    """The snapshot is installed. `kept`: the journal continued past it, and was kept."""
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
    """The received data is not the offered snapshot: start over."""
    if state.transfer is not None and state.transfer.ticket == ticket:
        state.drop("snapshot that is not what was offered")
        state.transfer = SnapshotTransfer()
        _ask_offer(state)
