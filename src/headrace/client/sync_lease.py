"""A lease on the segments of a topic, for the sync API. See `lease.py`."""

from headrace.client.connect.loop_thread import LoopThread
from headrace.client.read.lease import AsyncLease, LeasedPartition
from headrace.client.values.topic_view import View
from headrace.errors import HeadraceError


class Lease:
    """Keeps files from being deleted until the block, the lease or the log ends."""

    def __init__(self, core: AsyncLease, runner: LoopThread) -> None:
        self._core = core
        self._runner = runner

    @property
    def id(self) -> bytes:
        """Its id, under which executors fetch the files."""
        return self._core.id

    @property
    def partitions(self) -> tuple[LeasedPartition, ...]:
        """Every partition with its files, as of when the lease was taken."""
        return self._core.partitions

    @property
    def view(self) -> View:
        """The topic as of then."""
        return self._core.view

    @property
    def lost(self) -> HeadraceError | None:
        """Why files may be deleted, if the node has dropped the lease; None while they stay."""
        return self._core.lost

    @property
    def is_released(self) -> bool:
        return self._core.is_released

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the files. If the node cannot be reached, the lease expires there."""
        self._runner.run(self._core.release())
