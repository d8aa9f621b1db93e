"""The mirror: a thread that copies a run's folder into the tracking store while it trains. It never stops training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mmctl.errors import MmctlError
from mmctl.runs import probe
from mmctl.runs.folder import RunFolder
from mmctl.runs.lock import say
from mmctl.runs.notes import remember, told
from mmctl.runs.parents import parents
from mmctl.runs.redaction import redact
from mmctl.runs.store import Store, StoreError, connect, explained, forget, tracking_uri
from mmctl.runs.system import Sampler
from mmctl.runs.upload import Upload

FLUSH_EVERY = 5.0
"""Seconds between two copies; one copy is one request for about 900 numbers."""
SHARE = 0.01
"""Part of a run's time that copying may take. A copy while the run goes on is one request, and the next one waits until
the CPU time of this one is no more than that; what does not fit is sent when the run has ended."""
LONGEST_PAUSE = 120.0
"""Seconds between two attempts while the store is down (doubling from FLUSH_EVERY)."""
FINISH_TIMEOUT = 60.0
"""Seconds a finished run waits for its last copy; a new database takes about 8 of them."""
LAST_SECONDS = 3.0
"""What is left of them after a signal: the store should still hear how the run ended."""


class Mirror:
    """Follows one run. No method raises; what is wrong is said once on stderr, and `mmctl runs sync` can catch up."""

    def __init__(
        self,
        run: RunFolder,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        system_metrics: bool = False,
    ) -> None:
        self.run, self.parent_run_id, self.tags = run, parent_run_id, tags
        self._upload: Upload | None = None
        self._ending: tuple[str, str | None] | None = None
        self._extra: list[Path] = []
        self._wake = threading.Event()
        self._failing = False
        self._complete = False
        self._root = run.path.parents[1]
        self._sampler = Sampler(run.path) if system_metrics else None
        self._thread = threading.Thread(target=self._follow, name="mlflow-mirror", daemon=True)

    @classmethod
    def start(
        cls,
        run: RunFolder,
        parent_run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        system_metrics: bool = False,
    ) -> Mirror:
        """Begin to follow `run`, as a child of `parent_run_id`. Returns at once: mlflow is imported by the thread."""
        mirror = cls(run, parent_run_id, tags, system_metrics)
        mirror._thread.start()
        return mirror

    def artifacts(self, paths: Iterable[Path]) -> None:
        """Files under the folder of runs to send at the end, beside the run's configuration, evaluations and result."""
        self._extra += [Path(p) for p in paths]

    def finish(self, state: str, reason: str | None = None, timeout: float = FINISH_TIMEOUT) -> bool:
        """Send the rest and the final state, waiting at most `timeout` seconds; whether all of it arrived.

        A signal that comes meanwhile is raised again once `LAST_SECONDS` more were given to the copy.
        """
        if self._sampler is not None:
            self._sampler.stop()
        self._ending = (state, reason)
        self._wake.set()
        deadline, stopped = time.monotonic() + timeout, None
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._thread.join(max(0.0, deadline - time.monotonic()))
            except KeyboardInterrupt as signalled:
                if stopped is not None:
                    raise
                stopped, deadline = signalled, min(deadline, time.monotonic() + LAST_SECONDS)
        if not self._complete and not self._failing:
            self._failing = True
            waited = "when the signal came" if stopped else f"after {timeout:g} s"
            say(f'tracking store: not done {waited}; "mmctl runs sync" sends the rest of {self.run.label}')
        if stopped is not None:
            raise stopped
        return self._complete

    def _follow(self) -> None:
        pause = FLUSH_EVERY
        while not self._complete:
            ending = self._ending
            try:
                attached, began = self._upload is not None, time.thread_time()
                self._copy(ending)
                self._complete = ending is not None
                if self._failing:
                    say(f"tracking store: back again, {self.run.label} goes on there")
                # The first copy imports and opens; that is paid once, whatever the pauses.
                cost = time.thread_time() - began if attached else 0.0
                self._failing, pause = False, max(FLUSH_EVERY, cost / SHARE)
            except Exception as error:  # whatever it is, training goes on
                self._trouble(error)
                pause = min(LONGEST_PAUSE, max(FLUSH_EVERY, pause) * 2)
                if ending is not None:
                    return
            if self._ending is None:
                self._wake.wait(pause)

    def _copy(self, ending: tuple[str, str | None] | None) -> None:
        if self._upload is not None and self._upload.store.replaced:
            say(
                f"tracking store {self._upload.store.shown}: was deleted or replaced; {self.run.label} is sent there anew"
            )
            self._upload = None
        if self._upload is None:
            remember(self.run, self.parent_run_id, self.tags)
            upload = Upload(connect(self._root), self.run, self.parent_run_id, self.tags)
            upload.attach()
            self._upload = upload
        if ending is None:
            self._upload.metrics(one_batch=True)
        else:
            self._upload.artifacts(self._extra)
            self._upload.close(*ending)

    def _trouble(self, error: Exception) -> None:
        if self._upload is not None:
            forget(self._upload.store)
            self._upload = None  # attach anew: the store may be another one by then
        if not self._failing:
            text = str(error) if isinstance(error, MmctlError) else f"tracking store: {type(error).__name__}: {error}"
            say(f'{redact(text.splitlines()[0])}; training goes on, "mmctl runs sync" catches up')
        self._failing = True


@dataclass
class Synced:
    """What `sync` did: labels of runs brought up to date, and those passed over with the reason."""

    runs: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def sync(root: Path, progress: Callable[[str], None] = lambda label: None) -> Synced:
    """Bring the store up to the local folders; doing it twice changes nothing. StoreError if the store is down.

    Runs somebody is writing are passed over: their own process mirrors them. A SQLite store that is damaged is set
    aside under another name, and made again.
    """
    done = Synced()
    runs = list(RunFolder.all(root))
    recorded = list(parents(root))
    if not runs and not recorded:
        return done
    file = probe.sqlite_file(tracking_uri(root))
    if file is not None and (problem := probe.damage(file)):
        progress(f"{file}: {problem}; set aside as {probe.set_aside(file).name} and made again")
    store = connect(root)
    for parent in recorded:
        parent.send(store, mend=True)
        done.parents.append(parent.name)
    for run in runs:
        progress(run.label)
        if (reason := _send(store, run, mend=True)) is None:
            done.runs.append(run.label)
        else:
            done.skipped[run.label] = reason
    return done


def catch_up(root: Path, runs: Iterable[RunFolder]) -> None:
    """Send what the processes of these runs could not: their store was down when they ended, or they were killed.

    Costs a look at two small files for a run that is complete. StoreError if the store is (still) down.
    """
    store = None
    for run in runs:
        state = run.state()
        if state in ("planned", "running") or told(run, state):
            continue
        store = store or connect(root)
        _send(store, run)


def _send(store: Store, run: RunFolder, mend: bool = False) -> str | None:
    """Bring one run up to date; why it was passed over, None if it was not. StoreError if the store is down."""
    try:
        with run.lock(notify=lambda message: None):
            state = run.state()
            if state == "planned":
                return "not started yet"
            upload = Upload(store, run)
            upload.attach()
            if mend:
                upload.mend()
            upload.close(state, run.status.get("reason"))
    except StoreError as error:
        with explained(store.uri):  # is it the store, or this run's content that it will not take?
            store.client.get_experiment(store.experiment)
        return str(error)
    except MmctlError as error:
        return str(error)
    return None
