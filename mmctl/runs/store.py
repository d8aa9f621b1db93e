"""The MLflow tracking store: where it is, and a connection that many processes can open at once.

Local folders are the truth; a store is their mirror. By default `sqlite:///<runs>/mlflow.db` with artifacts in
`<runs>/mlflow-artifacts`; MLFLOW_TRACKING_URI (a server, PostgreSQL, another SQLite file) is respected. MLflow's fluent
interface is not used: its global active run makes a child out of whatever the environment says.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError
from mmctl.runs import probe
from mmctl.runs.lock import waiting_lock
from mmctl.runs.redaction import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "mmctl"
INITIALISE_TIMEOUT = 120.0
"""Seconds to wait for another process that is creating the database (about 6 s of work)."""

_stores: dict[tuple[int, str], Store] = {}
_opened: dict[str, int] = {}
"""How often each SQLite store was opened here: see `_spelling`."""


class StoreError(MmctlError):
    """The tracking store cannot be used; one line, without credentials."""


@dataclass
class Store:
    """An open store and the experiment our runs belong to."""

    uri: str
    client: MlflowClient
    experiment: str
    file: tuple[int, int] | None = None
    """Device and inode of a SQLite store: what is written to a deleted file is lost without any error."""

    @property
    def shown(self) -> str:
        """Its address without credentials."""
        return redact(self.uri)

    @property
    def replaced(self) -> bool:
        """Whether the SQLite file this store was opened on is no longer the one of that name."""
        return self.file is not None and self.file != _inode(self.uri)


def tracking_uri(root: Path) -> str:
    """MLFLOW_TRACKING_URI, else the SQLite file under `root`. StoreError for MLflow's file store, which is closed."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not given:
        return f"sqlite:///{root.absolute() / 'mlflow.db'}"
    if "://" not in given or given.startswith("file:"):
        shown = redact(re.sub(r"^[^/@]+@", "***@", given))
        raise StoreError(f"MLFLOW_TRACKING_URI={shown}: MLflow's file store is closed; use sqlite:///FILE or a server")
    return given


def quiet_environment() -> None:
    """Before mlflow is imported: no telemetry, short timeouts, and no run id that would make our runs its children.

    What the user set stays, except MLFLOW_RUN_ID.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # A request that is sent again blindly may make a run twice; the mirror tries again by looking first.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is for results
    os.environ.pop("MLFLOW_RUN_ID", None)
    for name in ("alembic", "mlflow", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # MLflow logs the traceback of what it also raises


def connect(root: Path) -> Store:
    """The store for runs under `root`, initialised if it is new; one connection a process. StoreError in one line."""
    uri = tracking_uri(root)
    key = (os.getpid(), uri)
    if key in _stores and _stores[key].replaced:
        del _stores[key]
    if key not in _stores:
        quiet_environment()
        with explained(uri):
            probe.check(uri)
            root.mkdir(parents=True, exist_ok=True)
            # Processes that create the tables of one database at once break it: one at a time, whoever comes first.
            with waiting_lock(_lock_path(root, uri), INITIALISE_TIMEOUT):
                _stores[key] = _open(root, uri)
    return _stores[key]


def _lock_path(root: Path, uri: str) -> Path:
    file = probe.sqlite_file(uri)
    return file.with_name(f".{file.name}.lock") if file and file.parent.is_dir() else root / ".mlflow.lock"


def _inode(uri: str) -> tuple[int, int] | None:
    file = probe.sqlite_file(uri)
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def _spelling(uri: str) -> str:
    """`uri`, written in another way at each opening: MLflow keeps one connection for each text, also to a deleted
    file."""
    if (file := probe.sqlite_file(uri)) is None:
        return uri
    times = _opened[uri] = _opened.get(uri, -1) + 1
    return uri.replace(str(file), f"{file.parent}/{'./' * times}{file.name}", 1)


def _open(root: Path, uri: str) -> Store:
    from mlflow import MlflowClient

    quiet_environment()  # importing mlflow sets its own log levels
    spelled = _spelling(uri)
    client = MlflowClient(spelled, spelled)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage != "active":
        raise StoreError(
            f'{redact(uri)}: experiment "{name}" was deleted there; restore it or set MLFLOW_EXPERIMENT_NAME'
        )
    if found is None:
        # A server decides where artifacts go; a bare database would send them to ./mlruns of whoever asks.
        bare = not uri.startswith(("http://", "https://", "databricks", "uc:"))
        place = str(root.absolute() / "mlflow-artifacts") if bare else None
        return Store(uri, client, client.create_experiment(name, artifact_location=place), _inode(uri))
    return Store(uri, client, found.experiment_id, _inode(uri))


def forget(store: Store) -> None:
    """Connect anew next time."""
    _stores.pop((os.getpid(), store.uri), None)


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """Whatever MLflow, SQLAlchemy or the network raise, as one StoreError line; what is wrong with a run stays
    itself."""
    try:
        yield
    except MmctlError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        raise StoreError(f"tracking store {redact(uri)}: {redact(_shortest(text))}") from error


def _shortest(text: str) -> str:
    """The part of a long error that says why."""
    if cause := re.search(
        r"(Connection refused|[Tt]imed out|Name or service not known|no such table: \w+|database is locked"
        r"|attempt to write a readonly database|file is not a database|database disk image is malformed"
        r"|unable to open database file|database or disk is full|disk I/O error|password authentication failed"
        r"|remaining connection slots are reserved|too many clients already)",
        text,
    ):
        return cause[1]
    if missing := re.search(r"No module named '(psycopg\w*)'", text):
        return f"needs the package {missing[1]}; or install psycopg2-binary and write postgresql+psycopg2://..."
    line = text.splitlines()[0]
    return line if len(line) <= 300 else line[:300] + "..."


def clean_key(key: str) -> str:
    """`key` as MLflow takes it (letters, digits, `_-. :/`): recall/accuracy@8x -> recall/accuracy_at_8x."""
    key = key.replace("@", "_at_").replace("+", " with ").replace("=", "-")
    key = re.sub(r"[^A-Za-z0-9_\-. :/]", "_", key)
    parts = [part.strip() for part in key.split("/")]
    return "/".join(part for part in parts if part.strip("."))[:250] or "_"


def escape(value: str) -> str:
    """For the inside of a quoted filter string."""
    return value.replace("\\", "").replace("'", "")


def run_by_tag(store: Store, tag: str, value: str) -> Any | None:
    """The run of the experiment with this tag, or None.

    A request to make a run that was answered too late may have made it twice; then all but the one with most in it,
    the first by id among equals, are deleted there.
    """
    found = store.client.search_runs([store.experiment], f"tags.`{tag}` = '{escape(value)}'", max_results=20)
    ordered: list[Any] = sorted(found, key=lambda run: (-len(run.data.metrics), run.info.run_id))
    for copy in ordered[1:]:
        store.client.delete_run(copy.info.run_id)
    return ordered[0] if ordered else None


def files_there(store: Store, run_id: str, place: str | None = None) -> dict[str, int]:
    """Size in bytes of every artifact of a run by its path there."""
    found: dict[str, int] = {}
    for entry in store.client.list_artifacts(run_id, place):
        found |= files_there(store, run_id, entry.path) if entry.is_dir else {entry.path: entry.file_size or 0}
    return found


def milliseconds(seconds: Any) -> int | None:
    """Unix seconds as MLflow's milliseconds; None stays None."""
    return None if seconds is None else int(float(seconds) * 1000)


def finite(value: Any) -> bool:
    """Whether `value` is a number MLflow can hold: it stores infinity as 1.8e308."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
