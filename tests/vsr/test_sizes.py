"""What is on its way is bounded in bytes, not only in number."""

from tests.vsr.test_divergence import a_group, leader_of

from headrace.errors import Busy
from headrace.model.proposal import EntryProposal
from headrace.vsr import effects as fx
from headrace.vsr import normal
from headrace.vsr import peer_messages as vm
from headrace_lab.cluster.machine import ADD, add

BODY = add("n", 1).ljust(1000, b"x")


def test_an_answer_holds_no_more_bytes_than_a_peer_reads_and_the_rest_comes_later(monkeypatch):
    scene = a_group()
    leader = leader_of(scene)
    late = next(host for host in scene.hosts if host.me != leader)
    sizes: list[int] = []

    def note(_from: int, to: int, message: object) -> bool:
        if isinstance(message, vm.Prepares) and to == late.me:
            sizes.append(sum(len(entry.body) for entry in message.entries))
        return True

    scene.crash(late.me)
    for number in range(10):
        request = EntryProposal(
            ADD, BODY, writer=b"c" * 16, version=number + 2, created=scene.session
        )
        scene.hosts[leader].request(request, number)
        scene.run(10)
    monkeypatch.setattr(vm, "GROUP_SIZE_MAX", 2500)
    scene.filters.append(note)
    scene.boot(late.me).run(600)
    assert late.state.applied == scene.world.oracles.top == 12
    assert max(sizes) == 2000


def test_a_primary_takes_no_more_bytes_than_one_group_holds_until_some_are_committed(
    monkeypatch,
):
    monkeypatch.setattr(normal, "GROUP_SIZE_MAX", 2500)
    scene = a_group()
    member = scene.hosts[leader_of(scene)].process.member
    scene.filters.append(lambda *_: False)
    requests = [(EntryProposal(ADD, BODY), number) for number in range(4)]
    effects = member.on_requests(requests)
    refused = [one.ticket for one in effects if isinstance(one, fx.Reply)]
    assert refused == [2, 3]
    assert all(isinstance(one.result, Busy) for one in effects if isinstance(one, fx.Reply))
    state = member.state
    state.acked = [state.log.head] * 3
    normal.count(state)
    assert state.sizes == {}


def test_a_body_larger_than_a_group_is_taken_when_nothing_else_is_on_its_way(monkeypatch):
    monkeypatch.setattr(normal, "GROUP_SIZE_MAX", 500)
    scene = a_group()
    member = scene.hosts[leader_of(scene)].process.member
    effects = member.on_requests([(EntryProposal(ADD, BODY), 0)])
    assert not any(isinstance(one, fx.Reply) for one in effects)
