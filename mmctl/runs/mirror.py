"""The mirror: a thread that copies a run's folder into the tracking store while it trains. It never stops training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mmctl.errors import MmctlError
from mmctl.runs.folder import RunFolder
from mmctl.runs.lock import say
from mmctl.runs.parents import parents
from mmctl.runs.store import StoreError, connect, forget
from mmctl.runs.upload import Upload, remember

FLUSH_EVERY = 5.0
"""Seconds between two copies; one copy is one request for about 900 numbers."""
LONGEST_PAUSE = 120.0
"""Seconds between two attempts while the store is down (doubling from FLUSH_EVERY)."""
FINISH_TIMEOUT = 60.0
"""Seconds a finished run waits for its last copy; a new database takes about 8 of them."""


class Mirror:
    """Follows one run. No method raises; what is wrong is said once on stderr, and `mmctl runs sync` can catch up."""

    def __init__(self, run: RunFolder, parent_run_id: str | None = None, tags: Mapping[str, str] | None = None) -> None:
        self.run, self.parent_run_id, self.tags = run, parent_run_id, tags
        self._upload: Upload | None = None
        self._ending: tuple[str, str | None] | None = None
        self._extra: list[Path] = []
        self._wake = threading.Event()
        self._failing = False
        self._complete = False
        self._root = run.path.parents[1]
        self._thread = threading.Thread(target=self._follow, name="mlflow-mirror", daemon=True)

    @classmethod
    def start(cls, run: RunFolder, parent_run_id: str | None = None, tags: Mapping[str, str] | None = None) -> Mirror:
        """Begin to follow `run`, as a child of `parent_run_id`. Returns at once: mlflow is imported by the thread."""
        mirror = cls(run, parent_run_id, tags)
        mirror._thread.start()
        return mirror

    def artifacts(self, paths: Iterable[Path]) -> None:
        """Files to send at the end, beside the run's configuration, provenance, evaluations and result."""
        self._extra += [Path(p) for p in paths]

    def finish(self, state: str, reason: str | None = None, timeout: float = FINISH_TIMEOUT) -> bool:
        """Send the rest and the final state, waiting at most `timeout` seconds; whether all of it arrived."""
        self._ending = (state, reason)
        self._wake.set()
        self._thread.join(timeout)
        if not self._complete and not self._failing:
            self._failing = True
            say(f'tracking store: not done after {timeout:g} s; "mmctl runs sync" sends the rest of {self.run.label}')
        return self._complete

    def _follow(self) -> None:
        pause = FLUSH_EVERY
        while not self._complete:
            ending = self._ending
            try:
                self._copy(ending)
                self._complete = ending is not None
                if self._failing:
                    say(f"tracking store: back again, {self.run.label} is up to date there")
                self._failing, pause = False, FLUSH_EVERY
            except Exception as error:  # whatever it is, training goes on
                self._trouble(error)
                pause = min(LONGEST_PAUSE, pause * 2)
                if ending is not None:
                    return
            if self._ending is None:
                self._wake.wait(pause)

    def _copy(self, ending: tuple[str, str | None] | None) -> None:
        if self._upload is None:
            remember(self.run, self.parent_run_id, self.tags)
            upload = Upload(connect(self._root), self.run, self.parent_run_id, self.tags)
            upload.attach()
            self._upload = upload
        if ending is None:
            self._upload.metrics()
        else:
            self._upload.artifacts(self._extra)
            self._upload.close(*ending)

    def _trouble(self, error: Exception) -> None:
        if self._upload is not None:
            forget(self._upload.store)
            self._upload = None  # attach anew: the store may be another one by then
        if not self._failing:
            text = str(error) if isinstance(error, MmctlError) else f"tracking store: {type(error).__name__}: {error}"
            say(f'{text.splitlines()[0]}; training goes on, "mmctl runs sync" catches up')
        self._failing = True


@dataclass
class Synced:
    """What `sync` did: labels of runs brought up to date, and those passed over with the reason."""

    runs: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def sync(root: Path, progress: Callable[[str], None] = lambda label: None) -> Synced:
    """Bring the store up to the local folders; doing it twice changes nothing. StoreError if the store is down.

    Runs somebody is writing are passed over: their own process mirrors them.
    """
    done = Synced()
    runs = list(RunFolder.all(root))
    recorded = list(parents(root))
    if not runs and not recorded:
        return done
    store = connect(root)
    for parent in recorded:
        parent.send(store)
        done.parents.append(parent.name)
    for run in runs:
        progress(run.label)
        try:
            with run.lock(notify=lambda message: None):
                state = run.state()
                if state == "planned":
                    done.skipped[run.label] = "not started yet"
                    continue
                upload = Upload(store, run)
                upload.attach()
                upload.close(state, run.status.get("reason"))
                done.runs.append(run.label)
        except StoreError:
            raise
        except MmctlError as error:
            done.skipped[run.label] = str(error)
    return done
