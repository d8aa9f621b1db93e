"""The real command and the real worker, in forks of a process that has already imported torch and mlflow.

`mmctl ablate` starts its workers as `python -m mmctl.sweeps.worker`, which costs seconds of importing each: a campaign
of hundreds of kills could not be afforded. Here the parent runs `mmctl.cli.main()` and each worker
`mmctl.sweeps.worker.main()` with the same arguments, environment, session, log and socket, as processes of their own:
only exec and the imports are left out. A worker is the parent's child, as always, although a nursery that was forked
before the parent had any thread or database connection makes it: the parent is the reaper of its descendants, and the
process in between ends at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SUBREAPER = 36
PATIENCE = 10.0
"""Seconds a worker waits to become its parent's child."""


def forked(work: Callable[[], Any], log: Path | None = None) -> int:
    """Run `work` in a fork that ends with its exit code, never returning into the caller's stack; its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code: Any = 1
    try:
        if log is not None:
            _redirect(log)
        code = work()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
    raise AssertionError("unreachable")


def _redirect(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def command(
    words: Sequence[str], log: Path, prepare_parent: Callable[[], None], prepare_worker: Callable[[], None]
) -> int:
    """`mmctl WORDS` in a fork, with warm workers; its pid. `prepare_*` run first in the processes of each kind."""

    def work() -> None:
        nursery = Nursery(prepare_worker)
        from mmctl.sweeps.launchers import local

        local.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
            Popen=nursery.popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
        )
        prepare_parent()
        sys.argv = ["mmctl", *words]
        from mmctl.cli import main

        main()

    return forked(work, log)


class Nursery:
    """Makes worker processes for the process that makes it."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0):
            raise OSError("the kernel knows no subreaper")
        parent = os.getpid()
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def serve() -> int:
            self.channel.close()
            while True:
                try:
                    message, descriptors, _, _ = socket.recv_fds(theirs, 1 << 18, 2)
                except ConnectionResetError:  # the parent was killed while it asked
                    return 0
                if not message:
                    return 0
                out, into = os.pipe()

                def between(message: bytes = message, descriptors: list[int] = descriptors, into: int = into) -> int:
                    pid = forked(lambda: _worker(json.loads(message), descriptors, parent, prepare))
                    os.write(into, str(pid).encode())
                    return 0

                first = forked(between)
                os.close(into)
                made = os.read(out, 32)
                os.close(out)
                os.waitpid(first, 0)  # only then is the worker the parent's child
                for descriptor in descriptors:
                    os.close(descriptor)
                with contextlib.suppress(OSError):
                    theirs.send(made)

        self.pid = forked(serve)
        theirs.close()

    def popen(self, arguments: Sequence[str], *, stdout: Any, pass_fds: Sequence[int], env: dict[str, str], **_: Any):
        message = {"arguments": list(arguments), "env": env}
        socket.send_fds(self.channel, [json.dumps(message).encode()], [pass_fds[0], stdout.fileno()])
        made = self.channel.recv(32)
        if not made:
            raise OSError("the nursery is gone")
        return Forked(int(made))


def _worker(message: dict[str, Any], descriptors: list[int], parent: int, prepare: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE
    while os.getppid() != parent:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.001)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (descriptors[1], 1), (descriptors[1], 2)):
        os.dup2(descriptor, target)
    os.close(descriptors[1])
    os.environ.clear()
    os.environ.update(message["env"])
    _, _, module, _, *rest = message["arguments"]
    assert module == "mmctl.sweeps.worker"
    prepare()
    from mmctl.sweeps import worker

    worker.main([str(descriptors[0]), *rest])


class Forked:
    """What the launcher uses of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
