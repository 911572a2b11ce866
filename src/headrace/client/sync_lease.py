"""A lease on the segments of a topic, as plain programs use it. See `lease.py`."""

from headrace.client.connect.loop_thread import LoopThread
from headrace.client.read.lease import AsyncLease, LeasedPartition
from headrace.client.values.topic_view import View
from headrace.errors import HeadraceError


class Lease:
    """Files that stay until the block, the lease or the log ends."""

    def __init__(self, core: AsyncLease, runner: LoopThread) -> None:
        self._core = core
        self._runner = runner

    @property
    def partitions(self) -> tuple[LeasedPartition, ...]:
        """Every partition, and its files, as they were when the lease was taken."""
        return self._core.partitions

    @property
    def view(self) -> View:
        """The topic as it was then."""
        return self._core.view

    @property
    def lost(self) -> HeadraceError | None:
        """Why files may be gone, if the node has let them go; None while they stay."""
        return self._core.lost

    @property
    def is_released(self) -> bool:
        return self._core.is_released

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let the files go. A node that cannot be told does so when the time is over."""
        self._runner.run(self._core.release())
