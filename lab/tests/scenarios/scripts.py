"""The scripts of the transcripts beside this file; run this file to write them anew.

Read a transcript before you keep a changed one: it is what the cluster now does.
"""

from collections.abc import Callable
from pathlib import Path

from headrace.model.ids import Op
from headrace.model.proposal import EntryProposal
from headrace.vsr import peer_messages as vm
from headrace_lab.cluster.scene import Scene

HERE = Path(__file__).parent
Script = Callable[[], Scene]
SCRIPTS: dict[str, Script] = {}


def script(write: Script) -> Script:
    SCRIPTS[write.__name__] = write
    return write


def led(replicas: int = 3, slots: int = 48) -> Scene:
    """A cluster that was started, elected somebody and opened a session."""
    scene = Scene(replicas, slots).boot().run(600).register()
    leader = leader_of(scene)
    scene.lines.clear()
    scene.say(f"{replicas} replicas run, r{leader} leads, a session is open")
    return scene


def leader_of(scene: Scene) -> int:
    return next(host.me for host in scene.hosts if host.state and host.state.leads)


def backup_of(scene: Scene, place: int = 0) -> int:
    leader = leader_of(scene)
    return [host.me for host in scene.hosts if host.me != leader][place]


def is_kind(*kinds: type) -> Callable[[int, int, object], bool]:
    return lambda _from, _to, message: isinstance(message, kinds)


@script
def first_start_of_three() -> Scene:
    return Scene().boot().run(600).register().ask(5).run(60).ask(7, 8).run(60).show()


@script
def two_replicas_need_both() -> Scene:
    scene = led(2).ask(1).run(60)
    backup = backup_of(scene)
    scene.crash(backup).ask(2).run(200).show()
    return scene.boot(backup).run(900).show()


@script
def five_replicas_do_without_two() -> Scene:
    scene = led(5).ask(1).run(60)
    scene.crash(backup_of(scene, 0), backup_of(scene, 1))
    return scene.ask(2, 3).run(100).show()


@script
def primary_crashes() -> Scene:
    scene = led().ask(1, 2).run(60)
    old = leader_of(scene)
    scene.crash(old).run(700).ask(3).run(60).show()
    return scene.boot(old).run(400).show()


@script
def restarted_primary_does_not_lead_on() -> Scene:
    scene = led().ask(1).run(60)
    old = leader_of(scene)
    return scene.crash(old).boot(old).run(700).show()


@script
def lost_start_view() -> Scene:
    scene = led().ask(1).run(60)
    scene.forbid("no start-view passes", is_kind(vm.StartView))
    scene.crash(leader_of(scene)).run(500).show()
    return scene.allow_all().run(600).show()


@script
def lost_prepare_is_repaired() -> Scene:
    scene = led()
    late = backup_of(scene)
    scene.forbid(
        f"no prepare reaches r{late}",
        lambda _from, to, message: to == late and isinstance(message, vm.Prepares),
    )
    scene.ask(1, 2, 3).run(60).show()
    return scene.allow_all().run(200).show()


@script
def lost_acks_do_not_matter() -> Scene:
    scene = led().forbid("no prepare-ok passes", is_kind(vm.PrepareOk))
    scene.ask(1, 2).run(60).show()
    return scene.allow_all().run(100).show()


@script
def uncommitted_tail_is_discarded() -> Scene:
    scene = led().ask(1).run(60)
    old = leader_of(scene)
    scene.isolate(old).ask(100, to=old).run(800).show()
    scene.ask(2).run(60).show()
    return scene.allow_all().run(500).show()


@script
def uncommitted_tail_is_kept() -> Scene:
    scene = led().ask(1).run(60)
    scene.forbid("no prepare-ok passes", is_kind(vm.PrepareOk))
    scene.ask(100).run(60)
    scene.crash(leader_of(scene)).allow_all().run(800).show()
    return scene


@script
def two_view_changes_in_a_row() -> Scene:
    scene = led(5).ask(1).run(60)
    scene.crash(leader_of(scene)).run(700).ask(2).run(60)
    scene.crash(leader_of(scene)).run(900).ask(3).run(60)
    return scene.show()


@script
def restart_of_all() -> Scene:
    scene = led().ask(1, 2, 3).run(100)
    return scene.crash().boot().run(900).show().ask(4).run(60)


@script
def restart_of_all_but_one() -> Scene:
    scene = led().ask(1, 2, 3).run(100).crash()
    return scene.boot(0, 2).run(900).show().ask(4).run(60)


@script
def wiped_replica() -> Scene:
    scene = led().ask(1, 2).run(60)
    gone = backup_of(scene)
    scene.wipe(gone).ask(3).run(60)
    return scene.boot(gone).run(300).show()


@script
def wiped_replica_does_not_vote() -> Scene:
    scene = led().ask(1, 2).run(60)
    gone = backup_of(scene)
    scene.wipe(gone).crash(leader_of(scene))
    return scene.boot(gone).run(900).show()


@script
def restored_old_directory() -> Scene:
    scene = led().ask(1).run(60)
    back = backup_of(scene)
    copy = scene.hosts[back].disk.clone()
    scene.crash(back).boot(back).run(300).ask(2, 3).run(100).show()
    return scene.restore(back, copy).boot(back).run(400).show()


@script
def all_start_empty() -> Scene:
    scene = Scene()
    for host in scene.hosts:
        host.disk, host.was_made = type(host.disk)(), False
    return scene.boot().run(900).show().register().ask(1).run(60).show()


@script
def rotten_entry_is_repaired_in_place() -> Scene:
    scene = led().ask(1, 2, 3).run(100)
    sick = backup_of(scene)
    scene.rot(sick, 3).crash(sick, power=False).boot(sick).show().run(400).show()
    return scene


@script
def repair_across_a_checkpoint() -> Scene:
    scene = led(slots=24)
    late = backup_of(scene)
    scene.isolate(late)
    for _ in range(4):
        scene.ask(1, 1, 1, 1).run(60).seal()
    scene.show()
    return scene.allow_all().run(900).show()


@script
def state_transfer_interrupted() -> Scene:
    scene = led(slots=24)
    late = backup_of(scene)
    scene.isolate(late)
    for _ in range(4):
        scene.ask(1, 1, 1, 1).run(60).seal()
    scene.allow_all().forbid("no chunk passes", is_kind(vm.SnapshotChunk)).run(900).show()
    scene.crash(late).boot(late).run(300).show()
    return scene.allow_all().run(900).show()


@script
def suspect_tail_with_one_node_dead() -> Scene:
    scene = led().ask(1).run(100)
    dead = leader_of(scene)
    left = [host.me for host in scene.hosts if host.me != dead]
    scene.crash()
    _tear(scene, left[0])
    scene.boot(*left).run(1500).show()
    return scene.boot(dead).run(1500).show()


@script
def the_operator_gives_up_an_op() -> Scene:
    scene = led().ask(1).run(100)
    dead = leader_of(scene)
    left = [host.me for host in scene.hosts if host.me != dead]
    scene.crash()
    _tear(scene, left[0])
    scene.boot(*left).run(1500).show()
    waits = [host.state.awaiting for host in scene.hosts if host.state and host.state.awaiting]
    scene.say(f"the operator gives up op {waits[0][0]}")
    for one in left:
        process = scene.hosts[one].process
        assert process is not None
        scene.hosts[one].perform(process.member.on_give_up(waits[0][0]))
    return scene.run(600).show()


@script
def session_retried_across_a_view_change() -> Scene:
    scene = led().ask(5).run(60)
    scene.ask(7).run(4)
    scene.crash(leader_of(scene)).run(800)
    return scene.ask(7, again=True).run(60).ask(7, again=True).run(60).show()


@script
def second_session_fences_the_first() -> Scene:
    scene = led().ask(5).run(60)
    old = scene.session
    scene.register()
    new, scene.session = scene.session, old
    scene.ask(6).run(60)
    scene.session = new
    return scene.ask(7).run(60).show()


@script
def primary_cut_off_in_one_direction() -> Scene:
    scene = led().ask(1).run(60)
    old = leader_of(scene)
    scene.forbid(f"r{old} is not heard", lambda sender, _to, _message: sender == old)
    return scene.run(800).ask(2).run(100).show().allow_all().run(400).show()


def _tear(scene: Scene, number: int) -> None:
    """Leave the header of one more op behind the head, as an interrupted append does."""
    from headrace.journal.entry import seal
    from headrace.journal.frame import FrameKind, Prefix, encode_prefix
    from headrace.journal.recovery.recover import recover
    from headrace_lab.cluster.machine import ADD, SessionMachine, add

    host = scene.hosts[number]
    group, _ = recover(host.disk.root, host.identity, SessionMachine(), host.options())
    journal, view = group.journal, group.superblock.current.view
    op = Op(journal.durable + 1)
    entry = seal(
        host.identity,
        EntryProposal(ADD, add("n", 9)),
        op=op,
        parent=journal.tip,
        view=view,
        timestamp=10**9,
    )
    file = journal.newest
    size = 64 + 256 + len(entry.body)
    prefix = Prefix(
        FrameKind.ENTRY, size, file.header.file_id, Op(op - 1), Op(0), op, entry.checksum
    )
    file.storage.write(file.end, [encode_prefix(prefix, file.end), entry.sealed, b"torn"])
    file.storage.sync()
    host.disk = host.disk.kill()
    scene.say(f"op {op} of r{number} is torn")


if __name__ == "__main__":
    for name, write in SCRIPTS.items():
        (HERE / f"{name}.txt").write_text(write().text(), encoding="utf-8")
