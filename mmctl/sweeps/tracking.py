"""The sweep in MLflow: one parent run, whose children are the runs it trained; its scores, report and figures.

The parent process makes the store and the parent run before any worker starts, so that no two processes create the
database at once. MLflow being down is said once and stops nothing.
"""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError, first_line
from mmctl.sweeps.plan import Plan

if TYPE_CHECKING:
    from mmctl.runs.parents import Parent


class Terminated(KeyboardInterrupt):
    """SIGTERM, while a sweep is not looking for signals itself: as Ctrl-C, but for the exit code."""

    signal = signal.SIGTERM


class Tracked:
    """A context in which, however it is left, the parent run is told how the sweep ended.

    SIGTERM raises Terminated inside it: while the report is written, nobody else would tell the parent run.
    `parent_run_id` and `where` are None where the sweep is not tracked (operation.mlflow=false).
    """

    def __init__(
        self, plan: Plan, root: Path, make: Callable[[], Parent] | None = None, where: str | None = None
    ) -> None:
        self._plan, self._root, self._make = plan, root, make
        self._parent: Parent | None = None
        self._state: str | None = None
        self._told = True
        self._before: Any = None
        self.where = where
        """How to see the runs: a command, or the server's address."""
        self.parent_run_id: str | None = None

    def begin(self) -> Tracked:
        """Make the parent run, or set the one there was running."""
        if self._make is not None:
            self._parent = self._make()
            self.parent_run_id, self._told = self._parent.run_id, False
        return self

    def __enter__(self) -> Tracked:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, _terminate)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut short what the first one asks for
        try:
            if not self._told:
                interrupted = isinstance(error, KeyboardInterrupt)
                self.finish(self._state or ("interrupted" if interrupted else "failed"), [])
        finally:
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)

    def results(self, results: Mapping[str, Any]) -> None:
        """Means of every arm, and every claim's difference, as metrics of the parent run; sent by `finish`."""
        if self._parent is None:
            self.begin()
        if self._parent is not None:
            self._parent.metrics(dict(_metrics(results)), send=False)

    def finish(self, state: str, files: Iterable[Path]) -> None:
        """Send the results, `files` and the state (finished, failed, interrupted), and what runs could not send."""
        if self._parent is None:
            self.begin()
        if self._parent is None:
            return
        self._state = state
        self._parent.artifacts(files, send=False)
        self._parent.finish(state)
        self._told = True
        try:
            self._catch_up()
        except MmctlError as error:
            print(
                f"mmctl: MLflow lacks some of these runs: {first_line(error)}; mmctl runs sync sends them",
                file=sys.stderr,
            )

    def _catch_up(self) -> None:
        from mmctl.runs import RunFolder, names
        from mmctl.runs.mirror import catch_up

        places = names.index(self._root)
        found = [places.get((run.cell.identity, run.seed), []) for run in self._plan.runs()]
        catch_up(self._root, [RunFolder(place) for group in found for place in group])


def _terminate(number: int, _: Any) -> None:
    raise Terminated


def start(plan: Plan, root: Path, folder: Path, resting: bool = False) -> Tracked:
    """Make or find the store and this sweep's parent run; a sweep that is `resting` has nothing to train, and its
    parent run stays as it is until there is something to tell it."""
    if not all(cell.config.operation.mlflow for cell in plan.cells.values()):
        return Tracked(plan, root)
    from mmctl.runs.parents import parent_run
    from mmctl.runs.redaction import redact
    from mmctl.runs.store import StoreError, tracking_uri

    tags = {
        "mmctl.sweep": plan.name,
        "mmctl.profile": plan.profile.name,
        "mmctl.ablations": " ".join(m.name for m in plan.matrices),
        "mmctl.command": plan.command(),
    }
    try:
        uri = redact(tracking_uri(root))
        server = uri.startswith(("http://", "https://"))
        where = uri if server else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
    except StoreError:  # the parent run says so
        where = None
    tracked = Tracked(plan, root, lambda: parent_run(root, plan.name, tags, folder), where)
    return tracked if resting else tracked.begin()


def _metrics(results: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for ablation in results["ablations"]:
        for arm in ablation["arms"]:
            for metric, summary in arm["scores"].items():
                if "@" not in metric or metric.partition("@")[0].endswith(("/accuracy", "/loss", "last-quarter")):
                    yield f"{ablation['name']}/{arm['name']}/{metric}", summary["mean"]
        for claim in ablation["claims"]:
            if claim["difference"] is not None:
                yield f"{ablation['name']}/claims/{claim['id']}", claim["difference"]["mean"]
