"""A topic that is appended to, sealed and trimmed all the time, and whole reads of it."""

import threading

from tests.spark.conftest import rows
from tests.spark.sealing import checkpoint

from headrace.spark import release, table

STEP = 10
KEPT = 200  # sealed rows of each partition that a trim leaves


class Changing:
    """Changes a topic of two partitions in a thread; the id of a row is its offset.

    It trims rows that were sealed before the current read began: the others are under no lease.
    """

    def __init__(self, topic, path):
        self.topic, self.path = topic, path
        self.row_count = self.seal_count = self.trim_count = 0
        self.flaw = None  # what ended the thread too early
        self._sealed = {0: 0, 1: 0}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def begin_read(self):
        """Let rows be trimmed that are sealed by now."""
        self._sealed = {each.partition: each.sealed_end for each in self.topic.bounds()}

    def _run(self):
        try:
            self._change()
        except BaseException as error:
            self.flaw = error
            raise

    def _change(self):
        while not self._ended.is_set():
            for partition in (0, 1):
                new = rows(self.row_count, self.row_count + STEP)
                self.topic.append(new, partition=partition)
            self.row_count += STEP
            checkpoint(self.path)
            self.seal_count += 1
            for partition, end in self._sealed.items():
                if end > KEPT:
                    self.topic.trim(end - KEPT, partition=partition)
                    self.trim_count += 1


def read_whole(spark, path):
    """Read the topic once; fail if a row is missing, twice, or another one.

    Return the rows, and how many files some of them are from.
    """
    frame = table(spark, "shop/orders", path=path, columns=["_partition", "_offset", "id"])
    found, files = frame.collect(), frame.inputFiles()
    release(frame)
    for partition in (0, 1):
        places = [row._offset for row in found if row._partition == partition]
        first = min(places, default=0)
        assert sorted(places) == list(range(first, first + len(places)))
    assert all(row.id == row._offset for row in found)
    return found, len(files)
