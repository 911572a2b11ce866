"""`headrace topic`: made, listed, described, altered and deleted, wherever the log is."""

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import a_node, headrace_here

from headrace.cli.commands.topic import TopicCreated, TopicDeleted
from headrace.cli.terminal.exits import Exit
from headrace.cli.topics.schema_text import schema_from_words
from headrace.cli.topics.topic_lines import TopicDescribed, TopicList
from headrace.client.write.schemas import schema_of, type_word
from headrace.errors import BadSchema


@pytest.fixture(scope="module", params=["embedded", "held", "address"])
def place(request, tmp_path_factory):
    """Options that name a log: one opened here, one that a process holds, one elsewhere."""
    path = tmp_path_factory.mktemp("data")
    if request.param == "embedded":
        yield ["--data", str(path)]
        return
    with a_node(path) as address:
        yield ["--data", str(path)] if request.param == "held" else ["--address", address]


@pytest.fixture
def data(tmp_path):
    return ["--data", str(tmp_path / "data")]


def test_the_life_of_a_topic(place):
    made = headrace_here(
        *("topic", "create", "shop/orders", "--schema", "id:int64 not null,customer:string"),
        *("--partitions", 2, "--key", "customer", "--retention", "7d,10GiB", "--json", *place),
    )
    assert made.code == 0
    found = msgspec.json.decode(made.raw, type=TopicCreated)
    assert (found.topic, found.created, found.partitions) == ("shop/orders", True, 2)
    assert [(each.name, each.type) for each in found.columns] == [
        ("id", "int64 not null"),
        ("customer", "string"),
    ]
    assert (found.retention_seconds, found.retention_size) == (604_800, 10 * 2**30)

    rows = '{"id":1,"customer":"ann"}\n{"id":2,"customer":"bob"}\n'
    assert headrace_here("produce", "shop/orders", *place, given=rows).code == 0
    listed = msgspec.json.decode(
        headrace_here("topic", "list", "--json", *place).raw, type=TopicList
    )
    (line,) = [each for each in listed.topics if each.topic == "shop/orders"]
    assert (line.partitions, line.rows) == (2, 2)

    altered = headrace_here(
        *("topic", "alter", "shop/orders", "--add-column", "note:string", "--partitions", 3),
        *("--retention", "forever", "--json", *place),
    )
    assert altered.code == 0
    assert "Its schema is now at version 2." in altered.err
    described = headrace_here("topic", "describe", "shop/orders", "--json", *place)
    found = msgspec.json.decode(described.raw, type=TopicDescribed)
    assert [[each.name for each in one.columns] for one in found.schemas] == [
        ["id", "customer"],
        ["id", "customer", "note"],
    ]
    assert [each.partition for each in found.partitions] == [0, 1, 2]
    assert sum(each.rows for each in found.partitions) == found.rows == 2
    assert (found.key, found.retention_seconds, found.retention_size) == (
        "customer",
        None,
        None,
    )

    gone = headrace_here("topic", "delete", "shop/orders", "--yes", "--json", *place)
    assert msgspec.json.decode(gone.raw, type=TopicDeleted).deleted
    assert headrace_here("topic", "describe", "shop/orders", *place).code == Exit.NOT_FOUND


def test_a_description_for_people_has_schemas_partitions_and_groups(data):
    headrace_here("topic", "create", "orders", "--schema", "id:int64", *data)
    headrace_here("produce", "orders", *data, given='{"id":1}\n{"id":2}\n{"id":3}\n')
    headrace_here(
        *("group", "reset", "billing", "--topic", "orders", "--to", "1", "--yes", *data)
    )
    told = headrace_here("topic", "describe", "orders", *data).out
    for line in (
        "topic    default/orders",
        "kept     forever",
        "schema version 1",
        "id      int64",
    ):
        assert line in told
    assert "partition  first  end  rows" in told
    (group,) = [line for line in told.splitlines() if line.startswith("billing")]
    assert group.split()[1:3] == ["1", "2"]


def test_a_list_for_people_is_a_table_and_empty_words(data):
    headrace_here("topic", "create", "b", "--schema", "id:int64", "--retention", "7d", *data)
    headrace_here("topic", "create", "a", "--schema", "id:int64", *data)
    lines = headrace_here("topic", "list", *data).out.splitlines()
    assert lines[0].split() == ["topic", "partitions", "rows", "size", "kept"]
    assert [line.split()[0] for line in lines[1:]] == ["default/a", "default/b"]
    for name in "ab":
        headrace_here("topic", "delete", name, "--yes", *data)
    ended = headrace_here("topic", "list", *data)
    assert (ended.code, ended.out) == (0, "")
    assert "There are no topics yet" in ended.err


class TestCreate:
    def test_a_schema_file_names_types(self, data, tmp_path):
        file = tmp_path / "schema.json"
        file.write_text('{"id": "int64 not null", "tags": "list<string>"}')
        made = headrace_here("topic", "create", "a", "--schema-file", file, "--json", *data)
        assert [each["type"] for each in made.json["columns"]] == [
            "int64 not null",
            "list<string>",
        ]

    def test_a_topic_is_made_like_a_csv_with_another_delimiter(self, data, tmp_path):
        (tmp_path / "rows.csv").write_text("id;name\n1;x\n")
        arguments = (
            "topic",
            "create",
            "rows",
            "--like",
            tmp_path / "rows.csv",
            *data,
            "--json",
        )
        assert "Add --delimiter ';'" in headrace_here(*arguments).err
        made = headrace_here(*arguments, "--delimiter", ";").json
        assert [column["name"] for column in made["columns"]] == ["id", "name"]

    def test_a_topic_is_made_like_a_file(self, data, tmp_path):
        pq.write_table(pa.table({"id": [1], "name": ["x"]}), tmp_path / "a.parquet")
        (tmp_path / "b.csv").write_text("id,name\n1,x\n")
        (tmp_path / "c.ndjson").write_text('{"id": 1, "name": "x"}\n')
        for name in ("a.parquet", "b.csv", "c.ndjson"):
            made = headrace_here(
                *("topic", "create", name[0], "--like", tmp_path / name, "--json", *data)
            )
            assert [each["type"] for each in made.json["columns"]] == ["int64", "string"]

    def test_one_that_is_there_is_refused_or_taken(self, data):
        create = ("topic", "create", "a", "--schema", "id:int64", *data)
        assert headrace_here(*create).code == 0
        refused = headrace_here(*create)
        assert refused.code == Exit.USAGE
        assert "already exists" in refused.err
        taken = headrace_here(*create, "--if-not-exists", "--json")
        assert (taken.code, taken.json["created"]) == (0, False)
        other = headrace_here(
            *("topic", "create", "a", "--schema", "id:string", "--if-not-exists", *data)
        )
        assert other.code == Exit.USAGE
        assert "with a different schema. `headrace topic describe a` shows it" in other.err

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ([], "exactly one schema is required"),
            (["--schema", "id:int64", "--like", "x.csv"], "exactly one schema is required"),
            (["--schema", "id:int64", "--delimiter", ";"], "--delimiter applies only to a CSV"),
            (["--schema", "id"], "'id' is not a name:type pair"),
            (["--schema", "id:int65"], "column 'id': 'int65' is not a valid type"),
            (["--schema", "id:int64,id:string"], "column 'id': it appears twice"),
            (["--schema", "_id:int64"], "reserved"),
            (["--schema", ""], "is not a name:type pair"),
            (["--schema", "id:int64", "--key", "nope"], "nope"),
            (["--schema", "id:int64", "--partitions", "0"], "0"),
            (["--schema", "id:int64", "--retention", "7"], "'7' is neither"),
            (["--schema", "id:int64", "--retention", "7d,8d"], "has two times or two sizes"),
            (["--schema", "id:int64", "--retention", "soon"], "Give a time (7d)"),
        ],
    )
    def test_what_cannot_be_is_named(self, data, options, said):
        ended = headrace_here("topic", "create", "a", *options, *data)
        assert ended.code == Exit.USAGE
        assert said in ended.err
        assert ended.out == ""

    @pytest.mark.parametrize(
        "name", ["../etc", "a/b/c", "", "x" * 65, "a b", "\x1b[31m", "-", ".hidden", "ä"]
    )
    def test_hostile_names_are_refused(self, data, name):
        ended = headrace_here("topic", "create", "--schema", "id:int64", *data, "--", name)
        assert ended.code == Exit.USAGE
        assert "is not a valid name for a" in ended.err
        assert "\x1b" not in ended.err

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "is not valid JSON"),
            ("[1]", "is not a JSON object"),
            ("{}", "is not a JSON object"),
            ('{"id": 7}', "column 'id': 7 is not a valid type"),
            ("[" * 100_000, "is not valid JSON"),
        ],
    )
    def test_a_schema_file_that_is_none_is_told(self, data, tmp_path, text, said):
        (tmp_path / "s.json").write_text(text)
        ended = headrace_here(
            *("topic", "create", "a", "--schema-file", tmp_path / "s.json", *data)
        )
        assert ended.code == Exit.USAGE
        assert said in ended.err

    def test_a_schema_file_that_is_not_there_is_not_found(self, data, tmp_path):
        ended = headrace_here(
            *("topic", "create", "a", "--schema-file", tmp_path / "s.json", *data)
        )
        assert ended.code == Exit.NOT_FOUND


class TestAlter:
    @pytest.fixture
    def orders(self, data):
        headrace_here(
            *("topic", "create", "orders", "--schema", "id:int64", "--partitions", 2),
            *("--retention", "7d,1GiB", *data),
        )
        return ("topic", "alter", "orders", *data)

    def test_only_what_is_said_changes(self, orders, data):
        assert headrace_here(*orders, "--retention", "1d").code == 0
        found = headrace_here("topic", "describe", "orders", "--json", *data).json
        assert (found["retention_seconds"], found["retention_size"]) == (86_400, 2**30)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ([], "nothing to alter"),
            (["--partitions", "2"], "Partitions can only be added"),
            (["--partitions", "1"], "has 2"),
            (["--add-column", "id:int64"], "column 'id' already exists"),
            (["--add-column", "x:int64 not null"], "Make it nullable"),
            (["--add-column", "x"], "is not a name:type pair"),
        ],
    )
    def test_what_cannot_be_is_named_and_nothing_changes(self, orders, data, options, said):
        before = headrace_here("topic", "describe", "orders", "--json", *data).json
        ended = (
            headrace_here(*orders, "--retention", "1d", *options)
            if options
            else headrace_here(*orders)
        )
        assert ended.code == Exit.USAGE
        assert said in ended.err
        assert headrace_here("topic", "describe", "orders", "--json", *data).json == before


def test_a_deletion_without_a_terminal_wants_yes(data):
    headrace_here("topic", "create", "orders", "--schema", "id:int64", *data)
    ended = headrace_here("topic", "delete", "orders", *data, given="orders\n")
    assert ended.code == Exit.FAILURE
    assert "Add --yes" in ended.err
    assert len(headrace_here("topic", "list", "--json", *data).json["topics"]) == 1


@pytest.mark.parametrize("verb", ["describe", "alter", "delete"])
def test_a_topic_that_is_not_there_is_not_found_and_a_name_is_offered(data, verb):
    headrace_here("topic", "create", "orders", "--schema", "id:int64", *data)
    more = {"alter": ["--partitions", "2"], "delete": ["--yes"]}.get(verb, [])
    ended = headrace_here("topic", verb, "order", *more, *data)
    assert ended.code == Exit.NOT_FOUND
    assert "orders" in ended.err


ALL_TYPES = {
    "a": "bool",
    "b": "int8 not null",
    "c": "float32",
    "d": "float64",
    "e": "decimal(10, 2)",
    "f": "list<string not null>",
    "g": "map<string, list<int64>>",
    "h": "struct<x: int64, y: struct<z: timestamp not null>>",
    "i": "date",
    "j": "binary",
}


def test_types_are_written_as_they_are_read():
    text = ",".join(f"{name}:{kind}" for name, kind in ALL_TYPES.items())
    schema = schema_from_words(text)
    assert schema.equals(schema_of(ALL_TYPES))
    for field in schema:
        word = type_word(field.type)
        assert schema_of({"x": word}).field("x").type == field.type


@pytest.mark.parametrize(
    "text", ["a:list<int64", "a:map<a,b>", ":int64", "a:", ",", "a:struct<>"]
)
def test_a_schema_that_is_none_is_refused(text):
    with pytest.raises(BadSchema):
        schema_from_words(text)
