"""A node from a directory and a config alone: made, stopped, refused, lost and found."""

import asyncio
import errno
import shutil
from pathlib import Path

import pytest
from tests.node.nodes import (
    Writer,
    a_config,
    a_node,
    a_topic,
    append,
    ask,
    ids,
)

from headrace.errors import (
    Corrupt,
    CorruptFile,
    DirectoryHeld,
    ForeignFile,
    MetadataInDoubt,
    MissingFile,
    NotReady,
    StorageFailed,
)
from headrace.metadata import commands
from headrace.metadata.state import LEVEL
from headrace.model.revisions import shown
from headrace.node import bootstrap
from headrace.node.bootstrap import Boot, start
from headrace.node.config.settings import Cluster, Config
from headrace.node.requests.catalog import Catalog
from headrace.storage.file import FileDirectory
from headrace.wire import read_messages, topic_messages


def damage(path: Path, position: int, data: bytes = b"\xff" * 64) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


async def fill(path: Path, appends: int = 5) -> topic_messages.TopicInfo:
    async with a_node(path) as node:
        info = await a_topic(node)
        writer = Writer(info)
        for _ in range(appends):
            await append(node, writer)
        return info


def test_a_new_directory_becomes_a_node_and_says_each_step(tmp_path):
    async def run():
        async with a_node(tmp_path / "data") as node:
            return node.node.status()

    status = asyncio.run(run())
    assert status["ready"] is True
    assert list(status["steps"]) == [
        "lock",
        "identity",
        "heads",
        "metadata",
        "shards",
        "doubt",
        "level",
        "cursors",
        "ready",
    ]
    names = sorted(each.name for each in (tmp_path / "data").iterdir())
    assert names == ["LOCK", "cluster.toml", "groups", "heads", "metadata.copy", "node.toml"]
    assert "slots = 4096" in (tmp_path / "data" / "node.toml").read_text()


def test_an_empty_log_takes_little_space_and_says_how_much(tmp_path):
    async def scenario():
        started = await start(str(tmp_path), Config())
        try:
            files = [path.lstat() for path in tmp_path.rglob("*")]
            return files, started.node.status()
        finally:
            await started.stop()

    files, status = asyncio.run(scenario())
    assert sum(each.st_blocks * 512 for each in files) < 12 * 1024 * 1024
    said = [group["journal"]["size"] for group in status["groups"].values()]
    assert sum(said) == sum(each.st_size for each in files if each.st_size >= 1024 * 1024)


def test_rows_survive_a_clean_stop(tmp_path):
    async def run():
        info = await fill(tmp_path)
        async with a_node(tmp_path) as node:
            report = node.boot.groups[1].report
            return report.was_clean, await ids(node, info.partitions[0])

    assert asyncio.run(run()) == (True, list(range(50)))


def test_rows_survive_a_copy_taken_in_full_run(tmp_path):
    async def run():
        async with a_node(tmp_path / "a") as node:
            info = await a_topic(node)
            writer = Writer(info)
            for _ in range(5):
                await append(node, writer)
            shutil.copytree(tmp_path / "a", tmp_path / "b")
        async with a_node(tmp_path / "b") as node:
            assert node.boot.groups[1].report.was_clean is False
            return await ids(node, info.partitions[0])

    assert asyncio.run(run()) == list(range(50))


def test_a_directory_that_is_held_is_refused_and_left_alone(tmp_path):
    async def run():
        async with a_node(tmp_path):
            with pytest.raises(DirectoryHeld, match="in use by process"):
                await start(str(tmp_path), a_config())
        async with a_node(tmp_path) as node:
            return node.boot.is_ready

    assert asyncio.run(run())


def test_a_failed_start_lets_go_of_the_lock(tmp_path):
    asyncio.run(fill(tmp_path))
    for copy in (tmp_path / "groups" / "00001").glob("superblock.*"):
        copy.unlink()
    (snapshot_free,) = (tmp_path / "groups" / "00001" / "journal").glob("*.wal")
    damage(snapshot_free, 0, b"\0" * 8192)

    async def run():
        with pytest.raises(Corrupt):
            await start(str(tmp_path), a_config())
        with pytest.raises(Corrupt):
            await start(str(tmp_path), a_config())

    asyncio.run(run())


def test_a_shard_that_refuses_leaves_a_node_that_is_up_and_says_so(tmp_path):
    info = asyncio.run(fill(tmp_path))
    (journal,) = (tmp_path / "groups" / "00001" / "journal").glob("*.wal")
    damage(journal, 0, b"\0" * 8192)

    async def run():
        async with a_node(tmp_path, strict=False) as node:
            status = node.node.status()
            assert status["ready"] is False
            assert str(journal) in status["groups"]["1"]["refused"]
            with pytest.raises(NotReady, match="shard 1 is not serving"):
                await ask(node, read_messages.GetBounds(info.partitions))
            found = await ask(node, topic_messages.DescribeTopic("shop/orders"))
            assert found.created == info.created

    asyncio.run(run())


def test_with_nothing_left_of_group_0_nothing_is_served_and_the_reason_is_named(tmp_path):
    info = asyncio.run(fill(tmp_path))
    (journal,) = (tmp_path / "groups" / "00000" / "journal").glob("*.wal")
    damage(journal, 0, b"\0" * 8192)
    (tmp_path / "metadata.copy").unlink()

    async def run():
        async with a_node(tmp_path, strict=False) as node:
            status = node.node.status()
            assert "header block" in status["groups"]["0"]["held"]
            assert [one["rows"] for one in status["orphans"]] == [50]
            for request in (
                topic_messages.ListTopics(),
                read_messages.GetBounds(info.partitions),
            ):
                with pytest.raises(MetadataInDoubt, match="group 0 is held"):
                    await ask(node, request)

    asyncio.run(run())


@pytest.mark.parametrize("group", ["00000", "00001"])
def test_a_group_whose_files_are_gone_is_not_made_anew(tmp_path, group):
    asyncio.run(fill(tmp_path))
    place = tmp_path / "groups" / group
    kept = tmp_path / "kept"
    place.rename(kept)
    (tmp_path / "metadata.copy").unlink()

    async def run():
        async with a_node(tmp_path, strict=False) as node:
            status = node.node.status()
            state = status["groups"][str(int(group))]
            assert status["ready"] is (group == "00000")
            assert "are missing, but the log was in use" in (state["refused"] or state["held"])

    asyncio.run(run())
    assert not any(path.is_file() for path in place.rglob("*"))
    if place.exists():
        place.rmdir()
    kept.rename(place)
    asyncio.run(_count(tmp_path))


def test_a_log_whose_groups_are_all_gone_is_not_made_anew(tmp_path):
    """They may lie on another disk, which is not there."""
    asyncio.run(_count(tmp_path))
    kept = tmp_path / "kept"
    (tmp_path / "groups").rename(kept)
    for _ in range(2):

        async def run():
            async with a_node(tmp_path, strict=False) as node:
                status = node.node.status()
                assert status["ready"] is False
                why = [each["refused"] or each["held"] for each in status["groups"].values()]
                assert all("missing" in str(each) or "no files" in str(each) for each in why)

        asyncio.run(run())
        assert not any(path.is_file() for path in (tmp_path / "groups").rglob("*"))
    shutil.rmtree(tmp_path / "groups", ignore_errors=True)
    kept.rename(tmp_path / "groups")
    asyncio.run(_count(tmp_path))


@pytest.mark.parametrize("step", ["_read_heads", "_recover_shards"])
def test_a_first_start_that_was_cut_short_is_gone_on_with(tmp_path, monkeypatch, step):
    def cut_short(*_):
        raise OSError("cut short")

    with monkeypatch.context() as patch:
        patch.setattr(Boot, step, cut_short)
        with pytest.raises(StorageFailed, match="cut short"):
            asyncio.run(_count(tmp_path))
    assert (tmp_path / "cluster.toml").exists()
    assert (tmp_path / "groups").exists() == (step == "_recover_shards")
    asyncio.run(_count(tmp_path))


def test_a_group_that_the_first_start_could_not_make_is_made_by_the_next(tmp_path):
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "00001").write_text("in its place")

    async def run():
        async with a_node(tmp_path, strict=False) as node:
            assert node.node.status()["groups"]["1"]["refused"]

    asyncio.run(run())
    (tmp_path / "groups" / "00001").unlink()
    asyncio.run(_count(tmp_path))


@pytest.mark.parametrize("level_before", range(1, LEVEL))
def test_an_older_log_goes_on_at_the_level_of_this_release(tmp_path, monkeypatch, level_before):
    """As one of release 1 left it: no Level, images of format 1, a reader minimum of 1."""

    async def run():
        async with a_node(tmp_path) as node:
            if level_before > 1:
                older = asyncio.get_running_loop().create_future()
                level = commands.Level(level_before)
                node.node.catalog.submit(level, float("inf"), older.set_result)
                await older
            info = await a_topic(node)
            await append(node, Writer(info))
            node.node.catalog.driver.perform(node.node.catalog.driver.pump.request_seal(1))
            state = node.node.metadata
            superblock = node.boot.metadata_group.superblock.current
            return info, state.level, superblock.reader_min

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "begin_level", lambda _: None)
        patch.setattr(bootstrap, "LEVEL", level_before)
        info, level, reader_min = asyncio.run(run())
        assert (level, reader_min) == (level_before, level_before)

    async def again():
        async with a_node(tmp_path) as node:
            superblock = node.boot.metadata_group.superblock.current
            assert superblock.reader_min == LEVEL
            found = await ids(node, info.partitions[0])
            async with asyncio.timeout(10):
                while node.node.metadata.level < LEVEL:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)
            return found, shown(node.node.metadata.revision)

    assert asyncio.run(again()) == (list(range(10)), shown(info.created))
    assert asyncio.run(again())[0] == list(range(10))


async def _count(path):
    async with a_node(path) as node:
        assert node.node.status()["ready"] is True


class TestIdentity:
    def test_a_lost_file_is_made_again_from_the_superblocks(self, tmp_path):
        info = asyncio.run(fill(tmp_path))
        path = tmp_path / "cluster.toml"
        before = path.read_text()
        path.unlink()

        async def run():
            async with a_node(tmp_path) as node:
                assert "rewritten" in node.boot.steps["identity"]
                return await ids(node, info.partitions[0])

        assert asyncio.run(run()) == list(range(50))
        assert path.read_text() == before

    @pytest.mark.parametrize(
        "text", ["", "cluster = 5", 'cluster = "zz"', "\0\0", 'cluster = "00"\nshards = -1']
    )
    def test_a_rotten_file_is_made_again_too(self, tmp_path, text):
        asyncio.run(fill(tmp_path))
        path = tmp_path / "cluster.toml"
        before = path.read_text()
        path.write_text(text)

        async def run():
            async with a_node(tmp_path) as node:
                return node.boot.is_ready

        assert asyncio.run(run())
        assert path.read_text() == before

    def test_a_rotten_file_without_groups_is_refused(self, tmp_path):
        (tmp_path / "cluster.toml").write_text("nothing")
        with pytest.raises(CorruptFile, match=r"cluster\.toml"):
            asyncio.run(start(str(tmp_path), a_config()))

    def test_groups_without_any_superblock_are_refused(self, tmp_path):
        asyncio.run(fill(tmp_path))
        (tmp_path / "cluster.toml").unlink()
        for copy in tmp_path.glob("groups/*/superblock.*"):
            copy.unlink()
        with pytest.raises(MissingFile, match=r"neither cluster\.toml nor a superblock"):
            asyncio.run(start(str(tmp_path), a_config()))

    def test_the_number_of_shards_is_that_of_the_directory(self, tmp_path):
        async def run():
            async with a_node(tmp_path, a_config(cluster=Cluster(shards=3))) as node:
                assert sorted(node.node.shards) == [1, 2, 3]
            async with a_node(tmp_path) as node:
                return sorted(node.node.shards)

        assert asyncio.run(run()) == [1, 2, 3]

    def test_another_groups_directory_is_refused(self, tmp_path):
        asyncio.run(fill(tmp_path / "a"))
        asyncio.run(fill(tmp_path / "b"))
        shutil.rmtree(tmp_path / "a" / "groups" / "00001")
        shutil.copytree(
            tmp_path / "b" / "groups" / "00001", tmp_path / "a" / "groups" / "00001"
        )
        with pytest.raises(ForeignFile):
            asyncio.run(start(str(tmp_path / "a"), a_config()))


def test_a_file_where_the_directory_should_be_is_refused(tmp_path):
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(StorageFailed, match="open failed"):
        asyncio.run(start(str(tmp_path / "data"), a_config()))


def test_a_directory_that_cannot_be_listed_fails_its_step_by_name(tmp_path, monkeypatch):
    def refuse(self):
        raise OSError(errno.EIO, "input or output error", self.path)

    monkeypatch.setattr(FileDirectory, "names", refuse)
    with pytest.raises(StorageFailed, match="lock failed: input or output error"):
        asyncio.run(start(str(tmp_path / "data"), a_config()))


def test_a_stop_under_load_answers_everything_and_loses_nothing(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            info = await a_topic(node)
            writer = Writer(info)
            await append(node, writer)
            asked = [asyncio.ensure_future(ask(node, *writer.request())) for _ in range(200)]
            await asyncio.sleep(0)
        ended = await asyncio.gather(*asked, return_exceptions=True)
        done = [one for one in ended if not isinstance(one, BaseException)]
        refused = [one for one in ended if isinstance(one, BaseException)]
        assert done, "nothing was under way"
        assert all(isinstance(one, NotReady) for one in refused)
        async with a_node(tmp_path) as node:
            return len(done), len(await ids(node, info.partitions[0]))

    acknowledged, rows = asyncio.run(run())
    assert rows == (1 + acknowledged) * 10


def test_a_running_node_is_written_in_a_few_words(tmp_path):
    """Setting a signal's handler writes out the result of the task it ends, large or not."""

    async def run():
        async with a_node(tmp_path / "data") as node:
            await a_topic(node)
            return repr(node)

    assert asyncio.run(run()) == "StartedNode(1 shards)"
