"""Which cases of a campaign are tried: all of them in turn, a few in each run."""


def sample(count: int, size: int, rotation: int) -> frozenset[int]:
    """Return `size` of the places below `count`: as many runs in a row as needed try them all.

    The places are spread, since neighbours are often alike: each run takes every n-th.
    """
    rounds = -(-count // size) if size else 1
    return frozenset(range(rotation % rounds, count, rounds))
