"""A real MLflow server on a real PostgreSQL, both in a temporary folder, and a gate before it that can be shut."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl, None where PostgreSQL is not installed."""
    for found in (shutil.which("pg_ctl"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), reverse=True)):
        folder = Path(found).resolve().parent if found else None
        if folder and (folder / "initdb").is_file():
            return folder
    return None


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """The address of a fresh database. Skips, saying why, where PostgreSQL or its driver is missing."""
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install psycopg2-binary)")
    folder = binaries()
    if folder is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    # Not pytest's own folder: PostgreSQL refuses to run as root, and nobody else may enter that one.
    place = Path(tempfile.mkdtemp(prefix="mmctl-pg-"))
    port, who = free_port(), {}
    if os.geteuid() == 0:
        who = {"user": "nobody", "group": os.stat("/").st_gid, "extra_groups": []}
        shutil.chown(place, "nobody")
    options = {"check": True, "stdin": subprocess.DEVNULL, "cwd": place, "timeout": 60, **who}
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = [folder / "pg_ctl", "-D", place / "data", "-w", "-l", place / "log"]
    flags = f"-p {port} -k {place} -c listen_addresses=127.0.0.1 -c fsync=off"
    try:
        subprocess.run(
            [folder / "initdb", "-D", place / "data", "-A", "trust", "-U", "mmctl", "-E", "UTF8", "--locale=C", "-N"],
            **options,
            **silent,
        )
        subprocess.run([*start, "-o", flags, "start"], **options, **silent)
        try:
            yield f"postgresql+psycopg2://mmctl:s3cret-word@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([folder / "pg_ctl", "-D", place / "data", "-m", "immediate", "stop"], **options, **silent)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def mlflow_server(database: str, folder: Path) -> Iterator[str]:
    """The address of `mlflow server` on a database, keeping artifacts in `folder`."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database, "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--artifacts-destination", str(folder)]
    with open(folder / "server.log", "wb") as log:
        # Its own session: uvicorn has children, which must not outlive the test.
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail((folder / "server.log").read_text())
                time.sleep(0.1)
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Gate:
    """Passes bytes between a port of its own and the server's; `shut` refuses, `hang` accepts and never answers."""

    def __init__(self, target: int) -> None:
        self.target, self.port, self.mode = target, free_port(), "shut"
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, mode: str) -> None:
        """shut | pass | hang; connections that are open are cut, or left hanging."""
        self.mode = mode
        if mode != "hang":
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._open = []
        if mode == "shut" and self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        elif mode != "shut" and self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._open.append(client)
                if self.mode == "pass":
                    server = socket.create_connection(("127.0.0.1", self.target))
                    self._open.append(server)
                    for pair in ((client, server), (server, client)):
                        threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.mode == "hang":
                    return  # swallowed: the other side waits
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
