"""How many replicas must agree, and why any two such sets intersect."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quorum:
    """The sizes for `count` replicas. The asserts prove that the sets intersect."""

    count: int
    replication: int  # hold an op durably: it is committed
    view_change: int  # have left the old views: a new one may start
    nack: int  # never held an op: it cannot have been committed
    witness: int  # of the others: at least one saw whatever this replica took part in

    def __post_init__(self) -> None:
        n = self.count
        # A new view learns of every committed op, and of every earlier view.
        assert self.replication + self.view_change > n
        assert self.view_change * 2 > n
        # The holders of a committed op are too many for a nack quorum beside them.
        assert self.nack + self.replication > n
        # Without this replica, any view-change quorum that it was in still meets its witnesses.
        assert n == 1 or self.witness + (self.view_change - 1) > n - 1


def quorum_of(count: int) -> Quorum:
    """Return the sizes: majorities; for two replicas, both."""
    assert count >= 1
    majority = count // 2 + 1
    nack = count - majority + 1
    return Quorum(count, majority, majority, nack, nack)
