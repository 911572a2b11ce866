"""What a replica knows of its own log."""

from headrace.model.ids import Op, View
from headrace.vsr.op_log import OpLog
from headrace.vsr.peer_messages import PrepareHeader


def header(op: int, name: str = "a") -> PrepareHeader:
    return PrepareHeader(
        Op(op), f"{name}{op}".encode(), f"{name}{op - 1}".encode(), View(1), op
    )


def a_log(count: int = 3) -> OpLog:
    log = OpLog(Op(0), b"a0")
    for op in range(1, count + 1):
        log.found(Op(op), header(op), header(op).checksum)
    return log


def test_what_is_on_its_way_is_not_whole_until_it_is_durable():
    log = a_log()
    log.add(header(4), ticket=7)
    assert (log.head, log.whole) == (4, 3)
    log.durable(Op(4), Op(4), ticket=7)
    assert log.whole == 4


def test_an_append_that_was_cut_meanwhile_makes_nothing_durable():
    log = a_log()
    log.add(header(4), ticket=7)
    log.cut(Op(4))
    log.add(header(4), ticket=8)
    log.durable(Op(4), Op(4), ticket=7)
    assert log.whole == 3


def test_a_spoiled_entry_stops_what_is_whole_and_its_repair_lets_it_go_on():
    log = a_log()
    log.spoiled(Op(2))
    assert (log.whole, log.faulty) == (1, {2})
    log.mended(header(2))
    assert (log.whole, log.faulty) == (3, set())


def test_another_entry_does_not_mend_a_slot():
    log = a_log()
    log.spoiled(Op(2))
    log.mended(header(2, "b"))
    assert log.whole == 1


def test_what_the_state_covers_needs_no_repair():
    log = a_log()
    log.spoiled(Op(2))
    log.cover(Op(2))
    assert log.whole == 3


def test_a_trimmed_log_still_knows_what_it_hangs_on():
    log = a_log()
    log.trim(Op(2))
    assert (log.anchor, log.checksum(Op(2)), log.checksum(Op(1))) == (2, b"a2", None)
