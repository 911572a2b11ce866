"""`headrace metadata`: what the metadata has lost is named, adopted, or given up."""

import shutil
from dataclasses import replace

import msgspec
import pytest
from tests.cli.commands import a_node, headrace_here
from tests.node.test_heads import damage_end, journal_of

import headrace
from headrace.cli.commands.metadata import AdoptedShape, ForgottenShape
from headrace.cli.status.status_figures import Picture
from headrace.cli.terminal.exits import Exit
from headrace.errors import MetadataInDoubt

LOST = "1000001000000"


@pytest.fixture
def lost(tmp_path):
    """A log of two topics, with the metadata of before the second."""
    return a_lost_log(tmp_path)


def a_lost_log(tmp_path, **kept):
    data = tmp_path / "data"
    with headrace.open(data) as log:
        log.create_topic("shop/a", {"id": "int64"}, **kept).append({"id": [1, 2]})
    shutil.copytree(data / "groups" / "00000", tmp_path / "older")
    with headrace.open(data) as log:
        log.create_topic("shop/b", {"id": "int64", "word": "string"})
        log.topic("shop/b").append({"id": [7, 8, 9], "word": ["x", "y", "z"]})
    shutil.rmtree(data / "groups" / "00000")
    shutil.copytree(tmp_path / "older", data / "groups" / "00000")
    for name in ("heads", "metadata.copy"):  # with either, group 0 would be healed or held
        (data / name).unlink()
    return data


def shape(told, kind):
    return msgspec.json.decode(told.raw, type=kind, strict=True)


def test_status_and_doctor_name_what_is_lost(lost):
    told = headrace_here("status", "--data", lost, "--json")
    (orphan,) = shape(told, Picture).node.orphans
    assert (orphan.partition, orphan.rows, orphan.group) == (LOST, 3, 1)
    assert orphan.schema == ("id: int64", "word: string")
    said = headrace_here("status", "--data", lost).out
    assert f"partition {LOST} of revision 2: 3 rows" in said
    assert "id: int64, word: string" in said
    title = said.splitlines()[0]
    assert "degraded: 1 partition without a topic  not running" in title
    assert "Run `headrace metadata adopt` to preview the recovery" in said
    doctor = headrace_here("doctor", lost, "--json")
    assert doctor.code == Exit.INTEGRITY
    assert "orphan" in {one["kind"] for one in doctor.json["findings"]}


def test_adopt_only_says_what_it_would_do_unless_it_is_told_to(lost):
    told = headrace_here("metadata", "adopt", "--data", lost)
    assert told.code == 0
    said = told.out + told.err
    assert "the metadata is at revision 1, but shard 1 has seen revision 2" in said
    assert f"would recover: shop/recovered-1-2 (partition {LOST}, 3 rows, shard 1)" in said
    assert "Nothing was changed" in said
    found = shape(headrace_here("metadata", "adopt", "--data", lost, "--json"), AdoptedShape)
    assert not found.changed
    assert len(found.adopted) == 1
    with headrace.open(lost) as log:
        assert log.topics() == ["shop/a"]
        assert log.status()["orphans"]


@pytest.mark.parametrize("is_served", [False, True])
def test_adopt_brings_a_topic_back_under_a_name_that_is_said(lost, is_served):
    arguments = ("metadata", "adopt", "--yes", "--as", f"{LOST}=b", "--json")
    if is_served:
        with a_node(lost) as address:
            found = shape(headrace_here(*arguments, "--address", address), AdoptedShape)
    else:
        found = shape(headrace_here(*arguments, "--data", lost), AdoptedShape)
    assert found.changed
    assert found.left == ()
    with headrace.open(lost) as log:
        assert log.topics() == ["shop/a", "shop/b"]
        assert log.topic("shop/b").read().to_pandas()["id"].tolist() == [7, 8, 9]
        assert log.status()["degraded"] == []
        log.create_topic("shop/c", {"id": "int64"})
    again = headrace_here("metadata", "adopt", "--data", lost)
    assert "not in doubt" in again.out + again.err


def test_forget_asks_for_the_name_and_then_removes(lost):
    refused = headrace_here("metadata", "forget", LOST, "--data", lost)
    assert refused.code == Exit.FAILURE
    assert "no partition was given up" in refused.err
    with headrace.open(lost) as log:
        assert log.status()["orphans"]
    unknown = headrace_here("metadata", "forget", "99", "--data", lost, "--yes")
    assert unknown.code == Exit.NOT_FOUND
    told = headrace_here("metadata", "forget", LOST, "--data", lost, "--yes", "--json")
    assert shape(told, ForgottenShape).rows == 3
    with headrace.open(lost) as log:
        assert log.status()["degraded"] == []
        assert log.topics() == ["shop/a"]
        assert log.topic("shop/a").read().to_pandas()["id"].tolist() == [1, 2]


def test_forget_without_confirmation_would_be_noticed(lost, monkeypatch):
    monkeypatch.setattr("headrace.cli.commands.metadata.typed", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        test_forget_asks_for_the_name_and_then_removes(lost)


def test_a_name_that_is_none_is_refused(lost):
    told = headrace_here("metadata", "adopt", "--data", lost, "--as", LOST)
    assert told.code == Exit.USAGE
    told = headrace_here("metadata", "adopt", "--data", lost, "--as", "orders=x")
    assert told.code == Exit.USAGE
    assert "'orders' is not a recoverable partition ID" in told.err
    told = headrace_here(
        *("metadata", "adopt", "--data", lost, "--as", f"{LOST}=b", "--as", f"0{LOST}=c")
    )
    assert told.code == Exit.USAGE
    assert "has two names, 'b' and 'c'" in told.err
    told = headrace_here("metadata", "adopt", "--data", lost, "--as", f"{LOST}=a")
    assert told.code == Exit.USAGE
    assert "stream 'shop' already has a topic 'a'. Choose another name with --as" in told.err


def test_forget_looks_all_names_up_before_the_first_is_given_up(lost):
    for typo in ("1000009000000", "zzz", "shop/b"):
        told = headrace_here("metadata", "forget", LOST, typo, "--data", lost, "--yes")
        assert told.code != 0
        assert f"'{typo}' is not a recoverable partition ID" in told.err
        with headrace.open(lost) as log:
            assert [one["partition"] for one in log.status()["orphans"]] == [LOST]


def test_forget_that_fails_on_its_way_says_what_is_gone(lost, monkeypatch):
    """Of two partitions the second fails: the first is named, with its rows."""

    def fails_second(log, partition, created, calls=[]):  # noqa: B006
        calls.append(partition)
        if len(calls) > 1:
            raise headrace.errors.NotReady("the node stopped")

    with headrace.open(lost) as log:
        (one,) = log.orphans(LOST)
    monkeypatch.setattr(headrace.Log, "forget_orphan", fails_second)
    twice = [one, replace(one, partition="2000001000000")]
    monkeypatch.setattr("headrace.cli.commands.metadata._orphans", lambda *_: twice)
    told = headrace_here("metadata", "forget", LOST, "2000001000000", "--data", lost, "--yes")
    assert told.code == Exit.UNAVAILABLE
    assert f"partition {LOST} was given up: 3 rows" in told.err


def test_adopt_changes_nothing_where_nothing_is_in_doubt(tmp_path):
    data = tmp_path / "data"
    with headrace.open(data) as log:
        log.create_topic("a", {"id": "int64"}).append({"id": [1]})
    for words in ((), ("--yes",)):
        told = headrace_here("metadata", "adopt", "--json", "--data", data, *words)
        found = shape(told, AdoptedShape)
        assert (found.changed, found.reasons) == (False, ())


@pytest.mark.parametrize("command", ["adopt", "forget"])
def test_what_ends_the_doubt_says_which_retention_it_suspends(tmp_path, command):
    lost = a_lost_log(tmp_path, retention="7d", retention_size="1GiB")
    again = "`headrace topic alter shop/a --retention 7d,1GiB` restores it"
    what = () if command == "adopt" else (LOST,)
    told = headrace_here("metadata", command, *what, "--data", lost, "--yes", "--json")
    found = shape(told, AdoptedShape if command == "adopt" else ForgottenShape)
    said = found.adopted if command == "adopt" else found.suspended
    assert [one for one in said if again in one and one.startswith("shop/a")]
    with headrace.open(lost) as log:
        assert str(log.topic("shop/a").retention) == "forever"
        assert log.status()["degraded"] == []


@pytest.fixture
def many(tmp_path):
    """A log whose metadata lost more wide partitions than one answer can show."""
    data = tmp_path / "data"
    with headrace.open(data) as log:
        log.create_topic("shop/a", {"id": "int64"}).append({"id": [1, 2]})
    shutil.copytree(data / "groups" / "00000", tmp_path / "older")
    wide = {f"column_{number}_{'n' * 180}": "string" for number in range(70)}
    with headrace.open(data) as log:
        for number in range(13):
            log.create_topic(f"shop/t{number}", {"id": "int64", **wide}, partitions=100)
        log.topic("shop/t12").append([{"id": 7}], partition=99)
    shutil.rmtree(data / "groups" / "00000")
    shutil.copytree(tmp_path / "older", data / "groups" / "00000")
    for name in ("heads", "metadata.copy"):
        (data / name).unlink()
    return data


def test_more_orphans_than_one_answer_shows_are_adopted_and_given_up_all_the_same(many):
    first, last = "1000001000000", "100000d000063"
    with a_node(many) as address:
        told = headrace_here("status", "--address", address, "--json")
        node = shape(told, Picture).node
        assert (len(node.orphans), node.orphan_count) == (100, 1_300)
        assert [len(one.schema) for one in node.orphans[:2]] == [71, 0]
        assert node.reasons[-1].startswith("and 1,2")
        said = headrace_here("status", "--address", address).out
        assert "1,300 partitions without a topic" in said
        assert "and 1,200 more" in said
        told = headrace_here("metadata", "adopt", "--address", address, "--json")
        assert len(shape(told, AdoptedShape).adopted) == 13
        with headrace.connect(address) as log:
            (lost,) = log.orphans(last)
            assert (lost.group, lost.rows, len(lost.schema)) == (1, 1, 71)
            assert lost.first_at == lost.last_at
        arguments = ("metadata", "forget", first, last, "--address", address, "--yes", "--json")
        assert shape(headrace_here(*arguments), ForgottenShape).rows == 1
        told = headrace_here("metadata", "adopt", "--address", address, "--yes", "--json")
        assert len(shape(told, AdoptedShape).adopted) == 13
    with headrace.open(many) as log:
        assert log.status()["degraded"] == []
        assert log.status()["orphan_count"] == 0
        assert len(log.topics()) == 14


@pytest.fixture
def evolved(tmp_path):
    """A log whose metadata lost a topic's second schema, and with it how to show some rows."""
    data = tmp_path / "data"
    with headrace.open(data) as log:
        log.create_topic("shop/a", {"id": "int64"}).append({"id": [1, 2]})
    shutil.copytree(data / "groups" / "00000", tmp_path / "older")
    with headrace.open(data) as log:
        topic = log.topic("shop/a")
        topic.append({"id": [3]})
        topic.evolve({"id": "int64", "word": "string"})
        topic.append({"id": [4], "word": ["x"]})
    shutil.rmtree(data / "groups" / "00000")
    shutil.copytree(tmp_path / "older", data / "groups" / "00000")
    for name in ("heads", "metadata.copy"):
        (data / name).unlink()
    return data


@pytest.mark.parametrize("columns", [None, ["id"]])
def test_rows_are_given_up_to_the_first_of_a_schema_that_is_lost(evolved, columns):
    with headrace.open(evolved) as log:
        topic, found = log.topic("shop/a"), []
        rows = (one for each in topic.read(columns=columns) for one in each.column("id"))
        with pytest.raises(MetadataInDoubt, match="rows from offset 3 on") as caught:
            found.extend(one.as_py() for one in rows)
        assert "metadata adopt" in caught.value.hint
        assert found == [1, 2, 3]
        assert topic.read(end=3).to_pandas()["id"].tolist() == [1, 2, 3]
        consumer = topic.consumer("g")
        assert consumer.poll().column("id").to_pylist() == [1, 2, 3]
        with pytest.raises(MetadataInDoubt):
            consumer.poll()
    told = headrace_here("read", "shop/a", "--data", evolved)
    assert told.code == Exit.INTEGRITY
    assert "metadata adopt" in told.err
    headrace_here("metadata", "adopt", "--data", evolved, "--yes")
    with headrace.open(evolved) as log:
        assert log.topic("shop/a").read().to_pandas()["id"].tolist() == [1, 2, 3, 4]


@pytest.fixture
def wide(tmp_path):
    """A log whose metadata lost three topics and a stream; shop/a is there."""
    data = tmp_path / "data"
    with headrace.open(data) as log:
        log.create_topic("shop/a", {"id": "int64"}).append({"id": [1]})
        log.create_topic("recovered-3/x", {"id": "int64"})
    shutil.copytree(data / "groups" / "00000", tmp_path / "older")
    with headrace.open(data) as log:
        log.create_topic("shop/b", {"id": "int64"}).append({"id": [7]})
        log.create_topic("shop/c", {"id": "int64"}).append({"id": [17]})
        topic = log.create_topic("new/d", {"id": "int64"}, partitions=2)
        topic.append({"id": [27, 28, 29]})
    shutil.rmtree(data / "groups" / "00000")
    shutil.copytree(tmp_path / "older", data / "groups" / "00000")
    for name in ("heads", "metadata.copy"):  # with either, group 0 would be healed or held
        (data / name).unlink()
    return data


B, C, D0, D1 = "1000001000000", "1000002000000", "3000000000000", "3000000000001"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ((f"{B}=a",), "already has a topic"),
        ((f"{B}=z", f"{C}=z"), "already has a topic"),
        ((f"{B}=no/slash",), "topic"),
        ((f"{D0}=p", f"{D1}=q"), "two names"),
        ((f"{B}=y", f"{B}=z"), "has two names"),
        ((f"{B}=y", f"0x{B}=z"), "not a recoverable partition ID"),
        (("1000000000000=y",), "not a recoverable partition ID"),
    ],
)
def test_names_that_cannot_be_are_refused_before_anything_is_done(wide, named, said):
    options = [part for each in named for part in ("--as", each)]
    for more in ((), ("--yes",)):
        told = headrace_here("metadata", "adopt", "--data", wide, *options, *more)
        assert (told.code, said in told.err) == (Exit.USAGE, True), told.err
    with headrace.open(wide) as log:
        assert log.topics() == ["recovered-3/x", "shop/a"]


def test_a_name_for_a_partition_that_joins_a_known_topic_is_refused(tmp_path):
    """The topic has a name: one that is given would be dropped without a word."""
    data = tmp_path / "data"
    with headrace.open(data) as log:
        log.create_topic("shop/a", {"id": "int64"}).append({"id": [1]})
    shutil.copytree(data / "groups" / "00000", tmp_path / "older")
    with headrace.open(data) as log:
        log.topic("shop/a").add_partitions(2)
        log.topic("shop/a").append({"id": [2, 3]})
    shutil.rmtree(data / "groups" / "00000")
    shutil.copytree(tmp_path / "older", data / "groups" / "00000")
    for name in ("heads", "metadata.copy"):
        (data / name).unlink()
    with headrace.open(data) as log:
        lost = log.status()["orphans"][0]["partition"]
    for more in ((), ("--yes",)):
        told = headrace_here("metadata", "adopt", "--data", data, "--as", f"{lost}=b", *more)
        assert told.code == Exit.USAGE
        assert "cannot be named" in told.err


def test_names_that_a_user_has_taken_are_passed_over(wide):
    told = headrace_here("metadata", "adopt", "--data", wide)
    assert told.code == 0
    assert "would recover: recovered-3-2/recovered-0-5" in told.err
    options = ("--as", f"{B}=recovered-2-4")  # which shop/c would get otherwise
    found = shape(
        headrace_here("metadata", "adopt", "--data", wide, "--yes", "--json", *options),
        AdoptedShape,
    )
    assert len(found.adopted) == 3
    with headrace.open(wide) as log:
        assert log.status()["degraded"] == []
        assert log.topics() == [
            "recovered-3-2/recovered-0-5",
            "recovered-3/x",
            "shop/a",
            "shop/recovered-2-4",
            "shop/recovered-2-4-2",
        ]
        assert log.topic("shop/recovered-2-4").read().to_pandas()["id"].tolist() == [7]


def test_adopt_lists_each_partition_that_is_lost(lost):
    told = headrace_here("metadata", "adopt", "--data", lost)
    (line,) = [one for one in told.err.splitlines() if one.startswith(f"partition {LOST}")]
    assert f"partition {LOST} of revision 2: 3 rows from 20" in line
    assert " to 20" in line
    assert line.endswith(" B, id: int64, word: string")
    found = shape(headrace_here("metadata", "adopt", "--data", lost, "--json"), AdoptedShape)
    (one,) = found.orphans
    assert (one.partition, one.rows, one.schema) == (LOST, 3, ("id: int64", "word: string"))


@pytest.fixture(params=["end damaged", "gone", "older, with an older copy"])
def held(tmp_path, request):
    """A log of two topics whose group 0 no start recovers or heals: `heads` is there."""
    data, older = tmp_path / "data", tmp_path / "older"
    with headrace.open(data) as log:
        log.create_topic("shop/a", {"id": "int64"}).append({"id": [1, 2]})
    shutil.copytree(data, older, ignore=shutil.ignore_patterns("*.sock"))
    with headrace.open(data) as log:
        log.create_topic("shop/b", {"id": "int64", "word": "string"})
        log.topic("shop/b").append({"id": [7, 8, 9], "word": ["x", "y", "z"]})
    if request.param == "end damaged":
        damage_end(journal_of(data, 0), 512)
    else:
        shutil.rmtree(data / "groups" / "00000")
    (data / "metadata.copy").unlink()
    if request.param.startswith("older"):
        shutil.copytree(older / "groups" / "00000", data / "groups" / "00000")
        shutil.copy(older / "metadata.copy", data / "metadata.copy")
    return data


@pytest.mark.parametrize("is_served", [False, True])
def test_a_held_group_0_is_listed_and_adopted(held, is_served):
    def run(*arguments):
        if not is_served:
            return headrace_here("metadata", "adopt", "--data", held, *arguments)
        with a_node(held) as address:
            return headrace_here("metadata", "adopt", "--address", address, *arguments)

    listed = run()
    assert listed.code == 0, listed.err
    assert "group 0 is held" in listed.err
    assert f"partition {LOST} of revision 2: 3 rows from 20" in listed.err
    assert "id: int64, word: string" in listed.err
    assert "Nothing was changed" in listed.err
    done = shape(run("--yes", "--as", f"{LOST}=b", "--json"), AdoptedShape)
    assert (done.changed, done.left) == (True, ())
    assert LOST in {one.partition for one in done.orphans}
    with headrace.open(held) as log:
        (name,) = [
            one for one in log.topics() if one.endswith("/b")
        ]  # of a stream that is lost
        assert log.topic(name).read().to_pandas()["id"].tolist() == [7, 8, 9]
        assert sum(len(log.topic(name).read()) for name in log.topics()) == 5
        assert log.status()["degraded"] == []
        log.create_topic("shop/c", {"id": "int64"})
    again = run()
    assert "not in doubt" in again.out + again.err
    doctor = headrace_here("doctor", held, "--json")
    assert doctor.code == Exit.OK, doctor.out
    assert {one["kind"] for one in doctor.json["findings"]} <= {"set-aside"}


@pytest.mark.parametrize("is_served", [False, True])
def test_forget_opens_a_held_group_0(held, is_served):
    options = ("metadata", "forget", LOST, "--yes", "--json")
    if is_served:
        with a_node(held) as address:
            told = headrace_here(*options, "--address", address)
    else:
        told = headrace_here(*options, "--data", held)
    assert shape(told, ForgottenShape).rows == 3
    headrace_here("metadata", "adopt", "--yes", "--data", held)
    with headrace.open(held) as log:
        assert log.status()["degraded"] == []
        assert len(log.topics()) == 1
        assert log.topic(log.topics()[0]).read().to_pandas()["id"].tolist() == [1, 2]


@pytest.mark.parametrize("command", [["adopt"], ["adopt", "--yes"], ["forget", LOST, "--yes"]])
def test_a_directory_without_a_log_gets_none(tmp_path, command):
    told = headrace_here("metadata", *command, "--data", tmp_path)
    assert told.code == Exit.NOT_FOUND
    assert "holds no log" in told.err
    assert list(tmp_path.iterdir()) == []
