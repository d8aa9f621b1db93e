"""One writer per run: a lock file held with flock whose content names the owner."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mmctl.errors import MmctlError, printable
from mmctl.runs.files import WriteError
from mmctl.runs.process import Owner

SILENT_AFTER = 600.0
"""Seconds without a sign of life after which an owner on another machine counts as dead."""
BEAT_EVERY = 30.0
"""Seconds between two signs of life of a lock that is held long."""

_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class Locked(MmctlError):
    """Somebody else writes this run."""

    def __init__(self, message: str, owner: Owner | None) -> None:
        super().__init__(message)
        self.owner = owner


def say(message: str) -> None:
    """One line on stderr."""
    print(printable(message), file=sys.stderr, flush=True)


class Lock:
    """`acquire()` or Locked. The file stays after release: deleting it would let two owners hold two inodes.

    flock ends with its process, so a dead owner's lock is free at once; the content is what says whose it was, and
    what protects a file system shared by machines where flock does not reach (then signs of life decide).
    """

    def __init__(self, path: Path | str, what: str | None = None) -> None:
        self.path = Path(path)
        self.what = what or str(self.path)
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def owner(self) -> Owner | None:
        """Who the file names, dead or alive; None if it names nobody."""
        try:
            with open(self.path, "rb") as file:
                return Owner.of(json.loads(file.read(4096)))
        except (OSError, ValueError, RecursionError):
            return None

    def alive(self) -> bool:
        """Whether the named owner still lives, as far as this machine can know."""
        owner = self.owner()
        if owner is None:
            return False
        gone = owner.gone()
        return self._silence() < SILENT_AFTER if gone is None else not gone

    def _silence(self) -> float:
        try:
            return time.time() - self.path.stat().st_mtime
        except OSError:
            return float("inf")

    def acquire(self, notify: Callable[[str], None] = say) -> Lock:
        """Take the lock or raise Locked naming its owner. A dead owner's lock is taken over, through `notify`."""
        if self.held:
            raise Locked(f"{self.what} is already locked by this process", Owner.me())
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise WriteError(f"cannot write {self.path}: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = self.owner()
                raise Locked(f"{self.what} is in use by {owner or 'another process'}", owner) from None
            owner = self.owner()
            if owner is not None and owner != Owner.me() and self.alive():
                raise Locked(f"{self.what} is in use by {owner}", owner)
            me = json.dumps(Owner.me().record()).encode() + b"\n"
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, me, 0)
        except OSError as error:
            os.close(descriptor)
            raise WriteError(f"cannot lock {self.path}: {error.strerror or error}") from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self)
        if owner is not None and owner != Owner.me():
            notify(f"{self.what}: took over the lock of {owner}, which is gone")
        return self

    def refresh(self) -> None:
        """A sign of life for other machines."""
        if self._descriptor is not None:
            os.utime(self._descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            _held.discard(self)
            try:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def __enter__(self) -> Lock:
        return self if self.held else self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


@contextmanager
def beating(lock: Lock) -> Iterator[None]:
    """Signs of life from a thread of their own: a long evaluation or a slow step must not pass for death elsewhere."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_EVERY):
            with suppress(OSError):
                lock.refresh()

    thread = threading.Thread(target=beat, daemon=True, name="lock-beat")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _forget_in_child() -> None:
    """A forked child must not keep its parent's locks alive: close the copies (this does not unlock the parent's)."""
    for lock in list(_held):
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def waiting_lock(path: Path | str, timeout: float = 60.0) -> Iterator[None]:
    """Short critical section between processes: wait for flock on `path` at most `timeout` seconds, else Locked."""
    lock, deadline, pause = Lock(path), time.monotonic() + timeout, 0.005
    while True:
        try:
            lock.acquire(notify=lambda message: None)
            break
        except Locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(0.2, pause * 1.5)
    try:
        yield
    finally:
        lock.release()
