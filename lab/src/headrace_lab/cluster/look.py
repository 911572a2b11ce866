"""Look at a simulated disk without touching it: what would a recovery find?"""

from headrace.errors import HeadraceError
from headrace.journal.recovery import recover
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.machine import SessionMachine


def finds_nothing(host: Host) -> bool:
    """Recover a copy of the disk; tell whether nothing is wrong with it."""
    copy = host.disk.clone()
    try:
        _, report = recover(copy.root, host.identity, SessionMachine(), host.options())
    except HeadraceError:
        return False
    bad = report.faulty or report.problem or report.fell_back or report.quarantined
    return not bad and not report.superblock_rebuilt and report.cut is None
