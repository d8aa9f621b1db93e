"""A run's folder: the truth about one run. Trackers, tables and reports are made from it.

runs/<name>-<identity8>/seed<k>/
  config.yaml       fully resolved configuration         overrides.txt    what the user typed
  status.json       state, owner, heartbeat, attempt     provenance.json  code, versions, machine, command
  metrics.jsonl     one object a line                    log.txt          everything printed
  checkpoints/      step_N/, best.json                   eval/            <suite>.json
  result.json       written last: finished = this exists and parses
  lock              one writer at a time                 mlflow.json      the run's place in the tracking store
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import checkpoints, files, forms, making, metrics, names, status, stored
from mmctl.runs.lock import Lock, beating, say
from mmctl.runs.redaction import redact

if TYPE_CHECKING:
    from mmctl.config import Config

HEARTBEAT_EVERY = 5.0
"""Seconds between two writes of the heartbeat, however often `heartbeat` is called."""


class RunFolder:
    """One run. Reading needs nothing; writing should happen inside `with run.lock()`."""

    def __init__(self, place: names.Place) -> None:
        self.path, self.name, self.identity, self.seed = place.path, place.name, place.identity, place.seed
        self.label = place.label
        self._lock = Lock(self.path / "lock", self.label)
        self._beat = 0.0

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    # Making and finding

    @classmethod
    def create(
        cls, root: Path, config: Config, overrides: Sequence[str] = (), command: Sequence[str] | None = None
    ) -> RunFolder:
        """A new folder, whole at once or not at all. MmctlError if this identity and seed has one already.

        command: what reproduces this run; by default what this process was started with.
        """
        from mmctl.config import identity

        path = names.folder_of(root, config.name, identity(config), config.seed)
        if not names.inside(root, path.parent):
            raise MmctlError(
                f"{path.parent}: a link out of {root}; a run's folder must lie in it (--runs takes another)"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(path.parent)
            draft = files.temporary_name(path)
            draft.mkdir()
            try:
                making.fill(draft, config, overrides, command)
                making.publish(draft, root, path)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
        except OSError as error:
            raise files.WriteError(f"cannot create run {path}: {error.strerror or error}") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """The run at `path`. UsageError if there is none."""
        path = Path(path).absolute()
        place = names.Place.of(path)
        if place is None or not (path / "config.yaml").is_file():
            raise UsageError(
                f"{path}: not the folder of a run (expected .../<name>-<identity>/seed<k> with a config.yaml)"
            )
        return cls(place)

    @classmethod
    def locate(cls, root: Path, config: Config) -> RunFolder | None:
        """The run of this identity and seed, whatever its name; a finished one first if somebody copied it."""
        from mmctl.config import identity

        return cls.among(p for p in names.places(root, identity(config)) if p.seed == config.seed)

    @classmethod
    def among(cls, places: Iterable[names.Place]) -> RunFolder | None:
        """The one run that has these places (as `names.index` gives them): a finished one first if somebody copied
        it."""
        found = [cls(place) for place in places]
        return next((run for run in found if run.finished), found[0] if found else None)

    @classmethod
    def find(cls, root: Path, text: str) -> RunFolder:
        """The run a person names: see `names.find`."""
        return cls.open(names.find(root, text).path)

    @classmethod
    def all(cls, root: Path) -> Iterator[RunFolder]:
        """Every run under `root`, by name and seed."""
        return (cls(place) for place in names.places(root))

    # Configuration, state, result

    def config_dict(self) -> dict[str, Any]:
        """config.yaml as written. MmctlError in one line if damaged."""
        return stored.config_dict(self.path / "config.yaml")

    def config(self) -> Config:
        """The configuration the run was made with. MmctlError in one line if config.yaml is damaged or was edited."""
        return stored.config(self)

    @contextmanager
    def lock(self, notify: Callable[[str], None] = say) -> Iterator[RunFolder]:
        """Hold the run as its only writer. `lock.Locked` names the owner if somebody else does.

        Taking over a dead owner's lock is said through `notify`.
        """
        names.refuse_links(self.path)
        with self._lock.acquire(notify), beating(self._lock):
            files.remove_leftovers(self.path)
            yield self

    @property
    def busy(self) -> bool:
        """Whether another living process holds the run."""
        return not self._lock.held and self._lock.alive()

    @property
    def status(self) -> dict[str, Any]:
        """status.json; {} if missing or damaged. What is true is `state()`."""
        return status.read(self.path / "status.json") or {}

    def state(self) -> str:
        """One of `status.STATES`."""
        record = status.read(self.path / "status.json")
        started = bool(self.checkpoint_steps()) or self.metrics_path.exists()
        # Held by ourselves it says nothing about who wrote status.json; that record's own owner does.
        return status.state(record, self.finished, started, self.busy)

    def set_state(self, state: str, reason: str | None = None, **more: Any) -> None:
        """Record a new state, durably. `running` makes this process the owner and counts an attempt."""
        record = status.read(self.path / "status.json")
        told = None if reason is None else redact(reason)
        status.write(self.path / "status.json", status.changed(record, state, told, more))
        self._beat = time.monotonic()

    def heartbeat(self, step: int) -> None:
        """A sign of life; call it as often as you like, it writes every `HEARTBEAT_EVERY` seconds."""
        if time.monotonic() - self._beat < HEARTBEAT_EVERY:
            return
        self._beat = time.monotonic()
        record = {**(status.read(self.path / "status.json") or status.changed(None, "running", None, {}))}
        status.write(self.path / "status.json", record | {"heartbeat": time.time(), "step": step}, durable=False)
        self._lock.refresh()

    @property
    def finished(self) -> bool:
        """Whether result.json exists and parses."""
        try:
            files.read_object(self.path / "result.json")
        except MmctlError:
            return False
        return True

    def result(self) -> dict[str, Any]:
        """result.json. MmctlError if the run is not finished."""
        try:
            return files.read_object(self.path / "result.json")
        except MmctlError:
            raise MmctlError(f"run {self.label} is {self.state()}: it has no result yet") from None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """The last thing a run writes: with it the run is finished."""
        files.write_json(self.path / "result.json", dict(result))

    # Metrics

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def append_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One line {"step", "time" (Unix seconds), **values}; NaN and infinities are kept, as strings."""
        metrics.append(self.metrics_path, step, values)

    def metrics(self) -> list[dict[str, Any]]:
        """All rows in order, NaN and infinities as floats; a torn last line is left out."""
        return metrics.read(self.metrics_path)

    def last_metrics(self) -> dict[str, Any]:
        """The last whole row, {} if there is none, without reading the rest."""
        return metrics.last(self.metrics_path)

    def truncate_metrics(self, step: int) -> None:
        """Cut what lies beyond `step`, before resuming from it."""
        metrics.truncate(self.metrics_path, step)

    def copy_metrics(self) -> str | None:
        """All rows as text, for a checkpoint to keep."""
        return metrics.copy(self.metrics_path)

    def restore_metrics(self, text: Any) -> bool:
        """Bring back what `copy_metrics` gave if the file does not begin with it any more; whether it had to be."""
        return metrics.restore(self.metrics_path, text)

    # Checkpoints

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint_steps(self) -> list[int]:
        return checkpoints.steps(self.checkpoints)

    def save_checkpoint(
        self, step: int, payload: Mapping[str, Any], *, keep: int | None = None, best: bool = False
    ) -> Path:
        """payload: {"tensors": {group: {name: tensor}}, "state": {...}}. Keeps `keep` (default operation.keep) and the
        best."""
        from mmctl.runs import checkpoint

        if keep is None:
            keep = int(self.config_dict().get("operation", {}).get("keep", 2))
        if self.metrics_path.exists():  # a checkpoint promises that the metrics up to it are there
            files.fsync_file(self.metrics_path)
        return checkpoint.save(self.checkpoints, step, payload["tensors"], payload["state"], keep=keep, best=best)

    def cut_checkpoints(self, step: int) -> list[int]:
        """Delete those beyond `step`, from which the run goes on because they are damaged; their steps."""
        return checkpoints.cut(self.checkpoints, step)

    def latest_checkpoint(self) -> int | None:
        """The newest step whose files are all there with the right sizes; `load_checkpoint` also checks their
        content."""
        whole = (s for s in reversed(self.checkpoint_steps()) if checkpoints.looks_whole(self.checkpoints, s))
        return next(whole, None)

    def has_checkpoint(self, step: int | None) -> bool:
        """Whether there is one of `step` (None: any) whose files are all there with the right sizes."""
        return self.latest_checkpoint() is not None if step is None else checkpoints.looks_whole(self.checkpoints, step)

    def load_checkpoint(self, step: int | None = None, map_location: str = "cpu") -> dict[str, Any]:
        """{"step", "tensors", "state"} of `step`, or of the newest undamaged checkpoint (stderr says what was passed
        over).

        MmctlError in one line if there is none.
        """
        from mmctl.runs import checkpoint

        loaded = checkpoint.load(self.checkpoints, step, map_location, lambda text: say(f"{self.label}: {text}"))
        return {"step": loaded.step, "tensors": loaded.tensors, "state": loaded.state}

    # Evaluations, provenance, log

    def write_evaluation(self, stem: str, evaluation: Mapping[str, Any]) -> None:
        """eval/<stem>.json."""
        if names.safe_name(stem) != stem:
            raise ValueError(f"{stem!r} is no name for an evaluation")
        (self.path / "eval").mkdir(exist_ok=True)
        files.write_json(self.path / "eval" / f"{stem}.json", dict(evaluation))

    def evaluation(self, stem: str) -> dict[str, Any] | None:
        """None if it was not made; MmctlError if its file is damaged."""
        path = self.path / "eval" / f"{stem}.json"
        return forms.read_evaluation(path) if path.exists() else None

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """All of them by stem, in order of name."""
        return {path.stem: files.read_object(path) for path in sorted((self.path / "eval").glob("[!.]*.json"))}

    def provenance(self) -> dict[str, Any]:
        return files.read_object(self.path / "provenance.json")

    def add_provenance(self, **more: Any) -> None:
        """What is known only once the run starts: device, kernel path."""
        files.write_json(self.path / "provenance.json", self.provenance() | more)

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    def log(self, text: str) -> None:
        """Append to log.txt."""
        with open(self.log_path, "a", encoding="utf-8", errors="backslashreplace") as file:
            text = redact(text)
            file.write(text if text.endswith("\n") else text + "\n")
