"""What becomes of group 0, as a function of values: each piece of evidence by itself."""

from dataclasses import replace

import pytest

from headrace.journal.entry import Entry, Flaw, root, seal
from headrace.journal.heads import Head
from headrace.metadata.state import MetadataState
from headrace.model.ids import GroupId, Op, Revision, View
from headrace.model.namespace import NamespaceLayout
from headrace.model.proposal import EntryProposal
from headrace.node.doubt.metadata_copy import Base, Copy
from headrace.node.doubt.verdict import CopyState, Healed, Held, Recovered, Remains, judge
from headrace_lab.counter.solo import SOLO


def a_chain(count: int, branch: bytes = b"", at: int = 1) -> list[Entry]:
    """Return entries from op 1 on; with `branch`, other ones from `at` on."""
    entries: list[Entry] = []
    parent = root(SOLO)
    for op in range(1, count + 1):
        body = branch if op >= at else b""
        entries.append(
            seal(
                SOLO,
                EntryProposal(16, body),
                op=Op(op),
                parent=parent,
                view=View(0),
                timestamp=op,
            )
        )
        parent = entries[-1].checksum
    return entries


LAYOUT = NamespaceLayout(*SOLO.namespace_bits)
CHAIN = a_chain(20)
OTHER = a_chain(20, b"other", at=8)


def head(op: int, chain=CHAIN) -> Head:
    return Head(Op(op), root(SOLO) if op == 0 else chain[op - 1].checksum)


def a_copy(end: int, base: int = 6, first: int = 1, chain=CHAIN, flaw=None) -> CopyState:
    """A copy with an image at `base`, entries up to `end`, and a history from `first` on."""
    past = {one.op: one.checksum for one in chain[first - 1 : base - 1]}
    entry = chain[base - 1]
    copy = Copy(
        SOLO.cluster,
        Base(Op(base), entry.checksum, b"", entry),
        past,
        tuple(chain[base:end]),
        flaw,
    )
    return CopyState(copy, MetadataState(LAYOUT, Revision(end), {}, {}))


def remains(end: int, first: int = 1, chain=CHAIN, *, is_whole: bool = True) -> Remains:
    """A group 0 whose journal begins at `first` and ends at `end`."""
    found = tuple(head(op, chain) for op in range(first, end + 1))
    return Remains(found, Op(end), head(end, chain), is_whole)


NOTHING = Remains((), Op(0), None, is_whole=False)
SHARDS = {GroupId(1): Revision(10), GroupId(2): Revision(3)}


def reasons(verdict) -> str:
    assert isinstance(verdict, Held)
    return "; ".join(verdict.reasons)


class TestRecovered:
    def test_whole_as_the_copy_says(self):
        assert judge(head(10), a_copy(10), remains(10), {}) == Recovered(is_kin=True)

    def test_ahead_of_the_copy_by_what_was_not_acknowledged(self):
        assert judge(head(9), a_copy(10), remains(11), {}) == Recovered(is_kin=True)

    def test_without_a_copy(self):
        assert judge(head(10), None, remains(10), {}) == Recovered(is_kin=False)

    def test_an_older_copy_of_which_nothing_is_known_any_more(self):
        assert judge(head(20), a_copy(8), remains(20, first=12), {}) == Recovered(is_kin=False)

    @pytest.mark.parametrize("shards", [{GroupId(1): None}, {GroupId(1): Revision(99)}])
    def test_shards_do_not_matter(self, shards):
        assert isinstance(judge(head(10), a_copy(10), remains(10), shards), Recovered)


class TestHealed:
    @pytest.mark.parametrize("left", [0, 1, 5, 6, 7, 9])
    @pytest.mark.parametrize("is_whole", [True, False])
    @pytest.mark.parametrize("known", [head(10), head(8), None])
    def test_what_lost_its_end_or_is_older(self, left, is_whole, known):
        found = remains(left, is_whole=is_whole)
        assert judge(known, a_copy(10), found, SHARDS) == Healed(Op(left), Op(10))

    def test_what_is_gone(self):
        assert judge(head(10), a_copy(10), NOTHING, SHARDS) == Healed(None, Op(10))

    def test_damage_in_the_middle(self):
        found = Remains((head(3), head(9), head(10)), Op(10), head(3), is_whole=False)
        assert judge(head(10), a_copy(10), found, SHARDS) == Healed(Op(3), Op(10))

    def test_a_bad_end_behind_the_head(self):
        state = a_copy(10, flaw=Flaw("torn"))
        assert judge(head(10), state, NOTHING, SHARDS) == Healed(None, Op(10))


class TestHeld:
    def test_without_a_copy(self):
        assert "no readable copy" in reasons(judge(head(10), None, NOTHING, {}))

    def test_a_copy_short_of_the_head(self):
        said = reasons(judge(head(11), a_copy(10), NOTHING, SHARDS))
        assert said == "the copy ends at op 10, but group 0 was at op 11"

    def test_a_copy_of_another_history_than_the_head(self):
        assert "op 9 of the copy is not" in reasons(
            judge(head(9, OTHER), a_copy(10), NOTHING, SHARDS)
        )

    def test_a_copy_short_of_what_is_there(self):
        said = reasons(judge(None, a_copy(8), remains(10, is_whole=False), {}))
        assert said == "the copy ends at op 8, but group 0 has op 10"

    def test_a_copy_short_of_what_was_durable_there(self):
        found = replace(NOTHING, reach=Op(12))
        assert "has op 12" in reasons(judge(None, a_copy(10), found, {}))

    @pytest.mark.parametrize("is_whole", [True, False])
    @pytest.mark.parametrize("end", [8, 10])
    def test_a_copy_that_does_not_continue_group_0(self, is_whole, end):
        found = remains(end, chain=OTHER, is_whole=is_whole)
        assert "op 8 of group 0 differs" in reasons(judge(None, a_copy(10), found, SHARDS))

    def test_a_group_0_older_than_the_memory_of_the_copy(self):
        verdict = judge(head(10), a_copy(10, first=4), remains(3), SHARDS)
        assert "older than the history of the copy" in reasons(verdict)

    def test_a_shard_ahead_of_the_copy(self):
        said = reasons(judge(head(10), a_copy(10), NOTHING, {GroupId(2): Revision(11)}))
        assert (
            said == "group 2 follows revision 11 of the metadata, but the copy has revision 10"
        )

    def test_a_shard_that_did_not_start(self):
        said = reasons(judge(head(10), a_copy(10), NOTHING, {GroupId(1): None}))
        assert "group 1 did not start" in said

    def test_a_damaged_copy_without_a_head(self):
        state = a_copy(10, flaw=Flaw("torn"))
        assert "damaged after op 10" in reasons(judge(None, state, NOTHING, SHARDS))
