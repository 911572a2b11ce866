"""A real file system whose power can be cut: ext4 on a loop device.

The cut is the ioctl FS_IOC_SHUTDOWN without a flush of its journal: from one instant on nothing
reaches the device any more, every new call fails with EIO, and the page cache is lost. What was
synced before must be there after the next mount; nothing else needs to be.

Unlike a power cut it leaves processes alive, and a sync that is under way may end well though
its bytes are lost: ext4 cannot turn the extents that fallocate reserved into written ones any
more, and tells nobody. So what a process acknowledges after the cut is void: on a machine
without power it would not have said it.
"""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

SIZE: Final = 96 * 1024 * 1024
COMMAND_SECONDS = 60
UNMOUNT_TRIES = 5  # the kernel may hold a file of a dead process for a moment

_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)
_TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")
_PLACES = os.defpath + ":/usr/sbin:/sbin:" + os.environ.get("PATH", "")


class CannotCut(Exception):
    """This machine does not let us cut the power of a file system. The text says why."""


@dataclass(frozen=True, slots=True)
class LoopDisk:
    """One ext4 image, its loop device and where it is mounted."""

    device: str
    mount: Path

    def power_on(self) -> None:
        """Mount it; ext4 replays its own journal."""
        _run("mount", "-t", "ext4", self.device, str(self.mount))

    def power_off(self) -> None:
        """Unmount it. After a cut nothing is written by this."""
        _unmount(self.mount)

    def armed(self) -> "Switch":
        """Return a switch that cuts at once when pressed: what takes time is done before."""
        return Switch(os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


@dataclass(slots=True)
class Switch:
    """The power switch of a mounted disk. A context: unmounting needs it put down."""

    _descriptor: int

    def cut(self) -> None:
        try:
            fcntl.ioctl(self._descriptor, _SHUTDOWN, _NO_LOG_FLUSH)
        except OSError as error:
            raise CannotCut(f"the shutdown ioctl is refused: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


@contextmanager
def loop_disk() -> Iterator[LoopDisk]:
    """Make a disk and mount it; unmount, detach and remove it whatever happens.

    CannotCut if this machine lacks something for it, or if a first cut loses no unsynced byte.
    """
    _check_tools()
    with tempfile.TemporaryDirectory(prefix="headrace-power-") as made:
        image, mount = Path(made, "image"), Path(made, "mount")
        mount.mkdir()
        with open(image, "wb") as file:
            file.truncate(SIZE)
        try:
            _run("mkfs.ext4", "-q", "-F", str(image))
            device = _run("losetup", "--find", "--show", str(image)).strip()
            disk = LoopDisk(device, mount)
            disk.power_on()
            _check_cut(disk)
            yield disk
        finally:
            with _undisturbed():
                _clear_away(image, mount)


def _clear_away(image: Path, mount: Path) -> None:
    """Go by what the kernel shows: an interrupt may have come before we knew of it."""
    if mount.is_mount():
        _unmount(mount)
    for line in _run("losetup", "--associated", str(image)).splitlines():
        _run("losetup", "--detach", line.partition(":")[0])


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold interrupts back until the block is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unmount(mount: Path) -> None:
    for _ in range(UNMOUNT_TRIES - 1):
        with suppress(CannotCut):
            _run("umount", str(mount))
            return
    _run("umount", str(mount))


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise CannotCut("mounting a file system needs root")
    for tool in _TOOLS:
        if shutil.which(tool, path=_PLACES) is None:
            raise CannotCut(f"{tool} is not installed")
    if not Path("/dev/loop-control").exists():
        raise CannotCut("this kernel has no loop devices")


def _check_cut(disk: LoopDisk) -> None:
    """Cut once with a synced and an unsynced file: a cut that loses nothing proves nothing."""
    with disk.armed() as switch:
        kept = os.open(disk.mount / "kept", os.O_WRONLY | os.O_CREAT)
        os.write(kept, b"synced")
        os.fsync(kept)
        os.close(kept)
        root = os.open(disk.mount, os.O_RDONLY)
        os.fsync(root)
        os.close(root)
        (disk.mount / "lost").write_bytes(b"not synced")
        switch.cut()
    disk.power_off()
    disk.power_on()
    if (disk.mount / "lost").exists():
        raise CannotCut("a file that was never synced survived a trial cut")
    if (disk.mount / "kept").read_bytes() != b"synced":
        raise CannotCut("a synced file did not survive a trial cut")
    (disk.mount / "kept").unlink()


def _run(tool: str, *arguments: str) -> str:
    path = shutil.which(tool, path=_PLACES)
    if path is None:
        raise CannotCut(f"{tool} is not installed")
    with _undisturbed():  # a command that is interrupted may have done its work or not
        ended = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    if ended.returncode != 0:
        reason = ended.stderr.strip().splitlines()
        raise CannotCut(f"{tool} failed: {reason[-1] if reason else ended.returncode}")
    return ended.stdout
