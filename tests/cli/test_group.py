"""`headrace group`: how far consumer groups are behind, and where they are sent."""

import time

import msgspec
import pytest
from tests.cli.commands import a_node, headrace_here

import headrace
from headrace.cli.commands.group import GroupDeleted, GroupList, GroupReset
from headrace.cli.terminal.exits import Exit
from headrace.cli.topics.consumer_lag import lags_of
from headrace.errors import Refused


@pytest.fixture(params=["embedded", "held", "address"])
def place(request, tmp_path):
    """Options that name a log in which two groups have read something."""
    with headrace.open(tmp_path) as log:
        fill(log)
    if request.param == "embedded":
        yield ["--data", str(tmp_path)]
        return
    with a_node(tmp_path) as address:
        yield ["--data", str(tmp_path)] if request.param == "held" else ["--address", address]


@pytest.fixture
def data(tmp_path):
    with headrace.open(tmp_path) as log:
        fill(log)
    return ["--data", str(tmp_path)]


def fill(log):
    """Two partitions of 10 rows: billing is at 4 and 10, audit has read all of visits."""
    orders = log.create_topic("orders", {"id": "int64"}, partitions=2)
    for partition in (0, 1):
        orders.append({"id": list(range(10))}, partition=partition)
    orders.store_cursors("billing", {0: 4, 1: 10})
    visits = log.create_topic("visits", {"id": "int64"})
    visits.append({"id": [1]})
    visits.store_cursors("audit", {0: 1})


def places(options, group="billing", topic="orders"):
    told = headrace_here("group", "describe", group, "--topic", topic, "--json", *options)
    (found,) = told.json["groups"]
    return [cursor["next"] for cursor in found["cursors"]]


def reset(options, to, *more):
    return headrace_here(
        *("group", "reset", "billing", "--topic", "orders", "--to", to, *more, *options)
    )


def test_groups_over_all_topics_with_their_lag(place):
    ended = headrace_here("group", "list", "--json", *place)
    found = {each.group: each for each in decoded(ended, GroupList).groups}
    assert list(found) == ["billing", "audit"]
    billing, audit = found["billing"], found["audit"]
    assert (billing.topic, billing.lag_rows, billing.state) == ("default/orders", 6, "behind")
    assert 0 < billing.lag_seconds < 120
    assert (audit.lag_rows, audit.lag_seconds, audit.state) == (0, 0.0, "caught up")
    one = headrace_here("group", "list", "--topic", "visits", "--json", *place)
    assert [each.group for each in decoded(one, GroupList).groups] == ["audit"]


def test_a_reset_shows_before_and_after_and_moves_the_cursors(place):
    tried = reset(place, "earliest", "--dry-run", "--json")
    found = decoded(tried, GroupReset)
    assert [(each.before, each.after) for each in found.partitions] == [(4, 0), (10, 0)]
    assert not found.changed
    assert places(place) == [4, 10]
    done = reset(place, "earliest", "--yes", "--json")
    assert decoded(done, GroupReset).changed
    assert places(place) == [0, 0]


@pytest.mark.parametrize(
    ("to", "more", "expected"),
    [
        ("latest", [], [10, 10]),
        ("7", [], [7, 7]),
        ("7", ["--partition", "1"], [4, 7]),
        ("shift:-3", [], [1, 7]),
        ("shift:-100", [], [0, 0]),
        ("shift:100", [], [10, 10]),
        ("shift:+2", ["--partition", "0"], [6, 10]),
        ("-1h", [], [0, 0]),
        ("now", [], [10, 10]),
        ("2099-01-01T00:00Z", [], [10, 10]),
    ],
)
def test_a_group_can_be_sent_anywhere_that_is_there(data, to, more, expected):
    ended = reset(data, to, "--yes", *more)
    assert ended.code == 0, ended.err
    assert places(data) == expected


@pytest.mark.parametrize(
    ("to", "more", "said"),
    [
        ("11", [], "offset 11 is not in partition 0. It has 0 to 10"),
        ("soon", [], "--to: 'soon' is not a valid time"),
        ("shift:x", [], "'shift:x' is not a valid shift"),
        ("shift", [], "is not a valid shift"),
        ("5", ["--partition", "2"], "has no partition 2"),
    ],
)
def test_where_nothing_is_a_group_is_not_sent(data, to, more, said):
    ended = reset(data, to, "--yes", *more)
    assert ended.code == Exit.USAGE
    assert said in ended.err
    assert places(data) == [4, 10]


def test_a_reset_without_a_terminal_wants_yes(data):
    ended = reset(data, "latest")
    assert ended.code == Exit.FAILURE
    assert "nothing was changed. Add --yes" in ended.err
    assert ended.out.splitlines()[2].split() == ["0", "4", "10", "6", "0"]
    assert places(data) == [4, 10]


def test_a_new_group_is_made_by_a_reset_but_cannot_be_shifted(data):
    ended = headrace_here(
        *("group", "reset", "fresh", "--topic", "orders", "--to", "5", "--yes", *data)
    )
    assert ended.code == 0
    assert places(data, "fresh") == [5, 5]
    other = headrace_here(
        *("group", "reset", "other", "--topic", "orders", "--to", "shift:1", "--yes", *data)
    )
    assert other.code == Exit.USAGE
    assert "there is no cursor in partition 0" in other.err


def test_a_consumer_that_runs_is_refused_at_its_next_commit(tmp_path):
    with a_node(tmp_path) as address, headrace.connect(address) as log:
        fill(log)
        with log.topic("orders").consumer("billing") as consumer:
            consumer.poll("10s")
            assert reset(["--address", address], "earliest", "--yes").code == 0
            with pytest.raises(Refused):
                consumer.commit()
        assert places(["--address", address]) == [0, 0]


def test_a_description_for_people_has_a_line_for_each_partition(data):
    told = headrace_here("group", "describe", "billing", *data).out.splitlines()
    assert told[0] == "billing in default/orders"
    assert told[1].split()[:5] == ["partition", "next", "first", "end", "lag"]
    assert told[2].split()[:5] == ["0", "4", "0", "10", "6"]
    assert told[3].endswith("caught up")


def test_a_list_of_nothing_says_so_apart(tmp_path):
    ended = headrace_here("group", "list", "--data", tmp_path)
    assert (ended.code, ended.out) == (0, "")
    assert "There are no consumer groups yet" in ended.err


def test_a_group_is_deleted_in_all_its_topics_or_in_one(data):
    with headrace.open(data[1]) as log:
        log.topic("visits").store_cursors("billing", {0: 0})
    refused = headrace_here("group", "delete", "billing", *data, given="billing\n")
    assert refused.code == Exit.FAILURE
    one = headrace_here(
        *("group", "delete", "billing", "--topic", "visits", "--yes", "--json", *data)
    )
    assert decoded(one, GroupDeleted).topics == ["default/visits"]
    assert places(data) == [4, 10]
    rest = headrace_here("group", "delete", "billing", "--yes", "--json", *data)
    assert decoded(rest, GroupDeleted).topics == ["default/orders"]
    gone = headrace_here("group", "describe", "billing", *data)
    assert gone.code == Exit.NOT_FOUND


@pytest.mark.parametrize("verb", ["describe", "delete"])
def test_a_group_that_is_not_there_is_not_found_and_a_name_is_offered(data, verb):
    more = ["--yes"] if verb == "delete" else []
    ended = headrace_here("group", verb, "biling", *more, *data)
    assert ended.code == Exit.NOT_FOUND
    assert "there is no consumer group 'biling'. Did you mean 'billing'?" in ended.err


def test_a_topic_that_is_not_there_is_not_found(data):
    assert headrace_here("group", "list", "--topic", "nope", *data).code == Exit.NOT_FOUND


@pytest.mark.parametrize("name", ["../x", "", "a b", "x" * 65, "\x1b[31m"])
def test_hostile_names_are_refused(data, name):
    ended = headrace_here(
        *("group", "reset", "--topic", "orders", "--to", "0", "--yes", *data, "--", name)
    )
    assert ended.code == Exit.USAGE
    assert "is not a valid name for a consumer group" in ended.err


class TestLag:
    @pytest.fixture
    def topic(self, tmp_path):
        with headrace.open(tmp_path) as log:
            yield log.create_topic("orders", {"id": "int64"})

    def test_seconds_are_the_age_of_the_oldest_row_not_read(self, topic):
        topic.append({"id": [1, 2]})
        time.sleep(1.2)
        topic.append({"id": [3]})
        topic.store_cursors("old", {0: 1})
        topic.store_cursors("new", {0: 2})
        new, old = lags_of(topic)
        assert 1.2 <= old.lag_seconds < 60
        assert new.lag_seconds < old.lag_seconds - 1.0

    def test_rows_that_retention_took_before_they_were_read_are_said(self, topic):
        topic.append({"id": list(range(10))})
        topic.store_cursors("billing", {0: 2})
        topic.trim(5)
        (found,) = lags_of(topic)
        assert (found.lag_rows, found.state) == (8, "rows lost")
        assert found.lag_seconds > 0


def decoded(ended, shape):
    assert ended.code == 0, ended.err
    return msgspec.json.decode(ended.raw, type=shape)
