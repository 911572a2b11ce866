"""The sync API, part two: rows, producers, consumers, transactions."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.client.connect.loop_thread import LoopThread
from headrace.client.read.consumer import AsyncConsumer
from headrace.client.read.rows import AsyncRows
from headrace.client.read.spans import Where
from headrace.client.values.answers import Appended, Published, Range
from headrace.client.write.accumulator import Signal
from headrace.client.write.convert import Data
from headrace.client.write.producer import AsyncProducer
from headrace.client.write.transaction import AsyncTransaction

if TYPE_CHECKING:
    import polars as pl


class Rows:
    """The rows of a read, fetched lazily. Can be read any number of times.

    Iterate over it for record batches, or pass it to anything that takes an Arrow stream, such
    as Polars or DuckDB. `to_pandas`, `to_polars` and `to_table` read all of it; `len` counts.
    """

    def __init__(self, core: AsyncRows, runner: LoopThread) -> None:
        self._core = core
        self._runner = runner

    @property
    def schema(self) -> pa.Schema:
        return self._core.schema

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The offsets to read, fixed when `read` was called."""
        return self._core.ranges

    @property
    def row_count(self) -> int:
        return self._core.row_count

    def __len__(self) -> int:
        return len(self._core)

    def __bool__(self) -> bool:
        return True  # it is a read, whatever it finds

    def __array__(self, *_: object, **__: object) -> object:
        """Raise with a hint: pandas would make one cell of each batch."""
        raise TypeError("rows are no array: use rows.to_pandas(), or rows.to_table()")

    def __repr__(self) -> str:
        return repr(self._core)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        batches = Taking(self._core.__aiter__())
        try:
            while (batch := self._runner.run(batches.next())) is not None:
                yield batch
        finally:
            self._runner.begin(batches.close())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """Read everything into one table."""
        return self._runner.run(self._core.to_table())

    def to_pandas(self) -> Any:  # noqa: ANN401  # pandas has no types of its own
        return self.to_table().to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        import polars as pl

        return pl.DataFrame(self.to_table())


class Taking:
    """Batches that another thread takes. Closing waits until nobody is taking one."""

    def __init__(self, batches: AsyncGenerator[pa.RecordBatch, None]) -> None:
        self._batches = batches
        self._lock = asyncio.Lock()

    async def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None is the end."""
        async with self._lock:
            return await anext(self._batches, None)

    async def close(self) -> None:
        """Stop reading."""
        async with self._lock:
            await self._batches.aclose()


class Producer:
    """Buffers rows and appends them in batches. Thread-safe."""

    def __init__(self, core: AsyncProducer, runner: LoopThread) -> None:
        self._core = core
        self._runner = runner

    def __repr__(self) -> str:
        return repr(self._core)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: Data | object) -> None:
        """Buffer a row, a list of rows or a table. Blocks while the buffer is full.

        Raises the error of an earlier batch that failed.
        """
        core = self._core
        for signal in core.put(data):
            if signal is Signal.FULL:
                self._runner.run(core.push())
            elif signal is not Signal.NOTHING:
                self._runner.post(lambda told=signal: core.on_signal(told))  # type: ignore[misc]

    def flush(self) -> Appended:
        """Wait until all rows sent are on disk. Returns the offsets since the last flush.

        Returns at most the last 65,536 batches.
        """
        return self._runner.run(self._core.flush())

    def close(self) -> None:
        """Flush, then close."""
        if not self._core.is_closed:
            self._runner.run(self._core.close())


class Consumer:
    """Returns batches as they arrive. `commit` durably stores the place after the last one."""

    def __init__(self, core: AsyncConsumer, runner: LoopThread) -> None:
        self._core = core
        self._runner = runner

    @property
    def group(self) -> str:
        return self._core.group

    def __repr__(self) -> str:
        return repr(self._core)

    def __enter__(self) -> "Consumer":
        self._runner.run(self._core.__aenter__())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._runner.run(self._core.__aexit__(kind, error, trace))

    def __iter__(self) -> "Consumer":
        return self

    def __next__(self) -> pa.RecordBatch:
        return self._runner.run(self._core.__anext__())

    def poll(self, wait: str | float = "1s") -> pa.RecordBatch | None:
        """Return the next batch, or None if none arrives within `wait`."""
        return self._runner.run(self._core.poll(wait))

    def positions(self) -> dict[int, int]:
        """Return the next offset of each partition that this consumer will return."""
        return self._runner.run(self._core.positions())

    def commit(self) -> dict[int, int]:
        """Mark everything returned so far as done. Returns the next offsets."""
        return self._runner.run(self._core.commit())

    def seek(self, where: Where) -> dict[int, int]:
        """Continue from another place: an offset, a time, `earliest`, `latest`, or a dict."""
        return self._runner.run(self._core.seek(where))

    def close(self) -> None:
        """Stop reading. Uncommitted rows will be redelivered."""
        self._runner.run(self._core.close())


class Transaction:
    """Rows that become readable together at the end of its block, once or not at all."""

    def __init__(self, core: AsyncTransaction, runner: LoopThread) -> None:
        self._core = core
        self._runner = runner

    @property
    def result(self) -> Published | None:
        """The outcome, once it is published."""
        return self._core.result

    def __repr__(self) -> str:
        return repr(self._core)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._runner.run(self._core.__aexit__(kind, error, trace))

    def append(self, data: Data, partition: int | None = None) -> None:
        """Add rows to the transaction."""
        for parcel in self._core.parcels(data, partition):
            self._runner.run(self._core.put(parcel))

    def publish(self) -> Published:
        """Give all rows their offsets in one step. The end of the block does so too."""
        return self._runner.run(self._core.publish())

    def discard(self) -> None:
        """Discard the rows."""
        self._runner.run(self._core.discard())
