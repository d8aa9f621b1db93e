"""One writer per run, whoever died and whatever became of the pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mmctl.runs.lock import SILENT_AFTER, Lock, Locked, waiting_lock
from mmctl.runs.process import Owner

HOLD = """
import sys, time
from mmctl.runs.lock import Lock
Lock(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        with pytest.raises(Locked, match=f"run x is in use by pid {process.pid} on ") as caught:
            Lock(path, "run x").acquire()
        assert caught.value.owner is not None
        assert caught.value.owner.pid == process.pid
        assert Lock(path).alive()


def test_the_lock_of_a_killed_owner_is_taken_over_and_said(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not Lock(path).alive()
        said: list[str] = []
        with Lock(path, "run x").acquire(said.append) as lock:
            assert lock.owner() == Owner.me()
        assert said == [f"run x: took over the lock of pid {process.pid} on {Owner.me().host}, which is gone"]


def test_a_zombie_owner_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        owner = Lock(path).owner()
        assert owner is not None
        assert owner.gone() is False
        os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not owner.gone() and time.monotonic() < deadline:  # not waited for: it stays a zombie
            time.sleep(0.01)
        assert owner.gone() is True
        Lock(path).acquire(lambda message: None).release()


def test_a_recycled_pid_is_not_its_old_owner(tmp_path: Path) -> None:
    me = Owner.me()
    (tmp_path / "lock").write_text(json.dumps(Owner(me.host, me.pid, me.start - 1000, me.boot).record()))
    said: list[str] = []
    Lock(tmp_path / "lock").acquire(said.append).release()
    assert len(said) == 1


def test_an_earlier_boot_is_gone_and_another_machine_counts_as_alive_until_it_is_silent(tmp_path: Path) -> None:
    path, me = tmp_path / "lock", Owner.me()
    path.write_text(json.dumps(Owner(me.host, 1, 5.0, "00000000-1").record()))
    Lock(path).acquire(lambda message: None).release()
    path.write_text(json.dumps(Owner("elsewhere", 1, 5.0, "00000000-1").record()))
    with pytest.raises(Locked, match="pid 1 on elsewhere"):
        Lock(path).acquire()
    old = time.time() - SILENT_AFTER - 1
    os.utime(path, (old, old))
    Lock(path).acquire(lambda message: None).release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff"])
def test_a_damaged_lock_file_locks_nobody_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    with Lock(tmp_path / "lock").acquire() as lock:
        assert lock.held


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock").acquire()
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        with pytest.raises(Locked):  # the child's copy closing did not free it
            Lock(tmp_path / "lock").acquire()
        lock.release()
        Lock(tmp_path / "lock").acquire().release()  # and does not hold it
    finally:
        os.write(done[1], b"x")
        os.waitpid(child, 0)


def test_waiting_lock_waits_and_gives_up(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as process:
        started = time.monotonic()
        with pytest.raises(Locked), waiting_lock(tmp_path / "lock", timeout=0.2):
            pass
        assert time.monotonic() - started >= 0.2
        process.kill()
        process.wait()
        with waiting_lock(tmp_path / "lock", timeout=5):
            pass
