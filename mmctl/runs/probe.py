"""Whether a tracking store answers, found out in seconds and before MLflow is imported.

MLflow asks a database that refuses it ten times (100 s) and waits two minutes for a server that never answers; a run
must not. A store that fails here is said to be down at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sqlite3
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

ANSWER_WITHIN = 3.0
"""Seconds a server has to accept a connection and to answer a first request."""
PORTS = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433}


def check(uri: str) -> None:
    """OSError or sqlite3.Error, whose text says why, if the store at `uri` is down or damaged."""
    if (file := sqlite_file(uri)) is not None:
        _check_file(file)
    elif uri.startswith(("http://", "https://")):
        _check_server(uri)
    else:
        scheme = uri.partition("://")[0].partition("+")[0]
        with contextlib.suppress(ValueError):  # an address MLflow understands and we do not is MLflow's to try
            address = urlsplit(uri)
            if scheme in PORTS and address.hostname and not address.hostname.startswith("/"):
                where = (address.hostname, address.port or PORTS[scheme])
                socket.create_connection(where, ANSWER_WITHIN).close()


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store, None for any other (a server, a database in memory)."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///(?!file:|:memory:)([^?]+)(?:\?.*)?", uri)
    return Path(match[1]).absolute() if match else None


def _check_file(file: Path) -> None:
    """A database that is not there yet, or empty, is made by MLflow; one that cannot be read is damaged."""
    if not file.exists():
        return
    # Whoever holds its lock makes us wait elsewhere; here only the content counts.
    with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", timeout=0.1, uri=True)) as database:
        try:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise


def _check_server(uri: str) -> None:
    # Any answer will do, a refusal too: who may do what is between the server and MLflow.
    request = urllib.request.Request(re.sub(r"//[^/@]*@", "//", uri.rstrip("/")) + "/health", method="GET")
    try:
        urllib.request.urlopen(request, timeout=ANSWER_WITHIN).close()
    except (urllib.error.HTTPError, ssl.SSLError, HTTPException):
        return
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            return
        raise error.reason if isinstance(error.reason, OSError) else OSError(str(error.reason)) from None


def damage(file: Path) -> str | None:
    """What is wrong with a SQLite store, None if nothing is: its pages, and a schema that was never finished."""
    if not file.exists() or not file.stat().st_size:
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", timeout=ANSWER_WITHIN, uri=True)) as base:
            verdict = base.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                return str(verdict).splitlines()[0]
            tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables and (
                "alembic_version" not in tables or not base.execute("SELECT * FROM alembic_version").fetchone()
            ):
                return "its creation was never finished" if "experiments" in tables else None
    except sqlite3.OperationalError as error:
        return None if "locked" in str(error) or "unable to open" in str(error) else str(error)
    except sqlite3.DatabaseError as error:
        return str(error)
    return None


def set_aside(file: Path) -> Path:
    """Give a damaged SQLite store another name, with its journals; returns that name. Nothing is deleted."""
    target = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    for suffix in ("-journal", "-wal", "-shm", ""):
        part = file.with_name(file.name + suffix)
        if part.exists():
            part.rename(target.with_name(target.name + suffix))
    return target
