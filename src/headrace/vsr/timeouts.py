"""How long a replica waits for what, in ticks: one table. A tick is 10 ms in a node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All of them. Each replica adds `stagger` times its id where two could collide."""

    heartbeat: int = 10  # the primary says that it lives
    election: int = 50  # a backup that heard nothing leaves the view
    resend: int = 10  # start-view-change and do-view-change again
    view_change: int = 60  # a view that does not start is left for the next
    probe: int = 10  # a restarted replica asks again
    probes: int = 5  # unanswered; then it leaves the view
    repair: int = 6  # what was asked for and did not come is asked for again
    transfer: int = 12  # a chunk that did not come is asked for again
    transfers: int = 5  # unanswered; then another offer is asked for
    stall: int = 80  # a primary whose own log does not go on is no primary
    stagger: int = 7
