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
from mmctl.runs.lock import waiting_lock
from mmctl.runs.provenance import redact_urls

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "mmctl"
INITIALISE_TIMEOUT = 120.0
"""Seconds to wait for another process that is creating the database (about 6 s of work)."""

_stores: dict[tuple[int, str], Store] = {}


class StoreError(MmctlError):
    """The tracking store cannot be used; one line, without credentials."""


@dataclass
class Store:
    """An open store and the experiment our runs belong to."""

    uri: str
    client: MlflowClient
    experiment: str

    @property
    def shown(self) -> str:
        """Its address without credentials."""
        return redact_urls(self.uri)


def tracking_uri(root: Path) -> str:
    """MLFLOW_TRACKING_URI, else the SQLite file under `root`. StoreError for MLflow's file store, which is closed."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not given:
        return f"sqlite:///{root.absolute() / 'mlflow.db'}"
    if "://" not in given or given.startswith("file:"):
        raise StoreError(f"MLFLOW_TRACKING_URI={given}: MLflow's file store is closed; use sqlite:///FILE or a server")
    return given


def quiet_environment() -> None:
    """Before mlflow is imported: no telemetry, short timeouts, and no run id that would make our runs its children.

    What the user set stays, except MLFLOW_RUN_ID.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is for results
    os.environ.pop("MLFLOW_RUN_ID", None)
    for name in ("alembic", "mlflow", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)


def connect(root: Path) -> Store:
    """The store for runs under `root`, initialised if it is new; one connection a process. StoreError in one line."""
    uri = tracking_uri(root)
    key = (os.getpid(), uri)
    if key not in _stores:
        quiet_environment()
        with explained(uri):
            root.mkdir(parents=True, exist_ok=True)
            # Processes that create the tables of one database at once break it: one at a time, whoever comes first.
            with waiting_lock(_lock_path(root, uri), INITIALISE_TIMEOUT):
                _stores[key] = _open(root, uri)
    return _stores[key]


def _lock_path(root: Path, uri: str) -> Path:
    file = _sqlite_file(uri)
    return file.with_name(f".{file.name}.lock") if file and file.parent.is_dir() else root / ".mlflow.lock"


def _sqlite_file(uri: str) -> Path | None:
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return Path(match[1]).absolute() if match else None


def _open(root: Path, uri: str) -> Store:
    from mlflow import MlflowClient

    quiet_environment()  # importing mlflow sets its own log levels
    client = MlflowClient(uri, uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage != "active":
        raise StoreError(
            f'{redact_urls(uri)}: experiment "{name}" was deleted there; restore it or set MLFLOW_EXPERIMENT_NAME'
        )
    if found is None:
        # A server decides where artifacts go; a bare database would send them to ./mlruns of whoever asks.
        bare = not uri.startswith(("http://", "https://", "databricks", "uc:"))
        place = str(root.absolute() / "mlflow-artifacts") if bare else None
        return Store(uri, client, client.create_experiment(name, artifact_location=place))
    return Store(uri, client, found.experiment_id)


def forget(store: Store) -> None:
    """Connect anew next time."""
    _stores.pop((os.getpid(), store.uri), None)


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """Whatever MLflow, SQLAlchemy or the network raise, as one StoreError line; what is wrong with a run stays itself."""
    try:
        yield
    except MmctlError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        raise StoreError(f"tracking store {redact_urls(uri)}: {redact_urls(_shortest(text))}") from error


def _shortest(text: str) -> str:
    """The line of a long error that says why."""
    if cause := re.search(
        r"(Connection refused|timed out|Name or service not known|no such table: \w+|database is locked)", text
    ):
        return cause[1]
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
    """The newest run of the experiment with this tag, or None."""
    found = store.client.search_runs([store.experiment], f"tags.`{tag}` = '{escape(value)}'", max_results=1)
    return found[0] if found else None


def milliseconds(seconds: Any) -> int | None:
    """Unix seconds as MLflow's milliseconds; None stays None."""
    return None if seconds is None else int(float(seconds) * 1000)


def finite(value: Any) -> bool:
    """Whether `value` is a number MLflow can hold: it stores infinity as 1.8e308."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
