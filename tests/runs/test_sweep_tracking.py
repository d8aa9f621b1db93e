"""However a sweep's process is left, its parent run in the store is told: no RUNNING stays behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from small_run import small

from mmctl import cli
from mmctl.runs import RunFolder, parents, store
from mmctl.runs.store import StoreError
from mmctl.sweeps import tracking
from mmctl.sweeps.tracking import Terminated, Tracked


@pytest.fixture
def root(store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    store_root.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store_root}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    monkeypatch.setattr(store, "_stores", {})
    return tmp_path / "runs"


@pytest.fixture(autouse=True)
def default_signal() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def plan(*runs: RunFolder, mlflow: bool = True) -> Any:
    """As much of a plan as tracking looks at: the runs it is about."""
    cells = [SimpleNamespace(identity=run.identity, config=small(f"operation.mlflow={mlflow}")) for run in runs]
    return SimpleNamespace(
        name="sweep",
        cells=dict(enumerate(cells)) or {0: SimpleNamespace(config=small(f"operation.mlflow={mlflow}"))},
        profile=SimpleNamespace(name="smoke"),
        matrices=[],
        command=lambda: "mmctl ablate data.text=https://me:s3cret@host/x",
        runs=lambda: [SimpleNamespace(cell=cell, seed=run.seed) for cell, run in zip(cells, runs, strict=True)],
    )


def there(root: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """(status, tags) by name of what is in the store."""
    opened = store.connect(root)
    found = opened.client.search_runs([opened.experiment])
    return {run.info.run_name: (run.info.status, run.data.tags) for run in found}


def killed(tracked: Tracked) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("it came too late")


def failing(tracked: Tracked) -> None:
    raise OSError("disk full")


def leaving(tracked: Tracked) -> None:
    raise typer.Exit(0)


def pressing(tracked: Tracked) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("leave", "how", "status"),
    [
        (killed, Terminated, "KILLED"),
        (pressing, KeyboardInterrupt, "KILLED"),
        (failing, OSError, "FAILED"),
        (leaving, typer.Exit, "FAILED"),
    ],
)
def test_every_way_out_while_the_report_is_written_tells_the_parent_run(
    root: Path, leave: Callable[[Tracked], None], how: type[BaseException], status: str
) -> None:
    def work() -> None:
        with tracking.start(plan(), root, root / "sweeps" / "sweep") as tracked:
            assert there(root)["sweep"][0] == "RUNNING"
            leave(tracked)

    with pytest.raises(how):
        work()
    found, tags = there(root)["sweep"]
    assert found == status
    assert "s3cret" not in str(tags)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_while_the_end_is_sent_leaves_the_end_that_was_meant(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = parents.Parent.send, []

    def send(self: Any, *arguments: Any, **more: Any) -> str:
        calls.append(self._read()["state"])
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *arguments, **more)

    monkeypatch.setattr(parents.Parent, "send", send)
    with pytest.raises(Terminated), tracking.start(plan(), root, root / "sweeps" / "sweep") as tracked:
        tracked.finish("finished", [])
    assert calls == ["running", "finished", "finished"]
    assert there(root)["sweep"][0] == "FINISHED"


def test_a_sweep_that_has_nothing_to_train_leaves_its_parent_run_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / "sweeps" / "sweep"
    with tracking.start(plan(), root, folder) as tracked:
        tracked.finish("finished", [])
    before = (folder / "mlflow.json").stat().st_mtime_ns
    with tracking.start(plan(), root, folder, resting=True):
        pass
    assert (folder / "mlflow.json").stat().st_mtime_ns == before
    with tracking.start(plan(), root, folder, resting=True) as tracked:  # but a report that changed is sent
        tracked.results({"ablations": []})
        tracked.finish("failed", [])
    assert there(root)["sweep"][0] == "FAILED"


def test_a_worker_that_was_killed_does_not_stay_running_when_its_sweep_ends(root: Path) -> None:
    run = RunFolder.create(root, small())
    run.set_state("running", pid=2**22 + 1)
    run.append_metrics(1, {"loss": 1.0})
    with tracking.start(plan(run), root, root / "sweeps" / "sweep") as tracked:
        tracked.finish("failed", [])
    assert there(root)[run.label][0] == "KILLED"


def test_a_sweep_without_mlflow_touches_no_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(root: Path) -> None:
        raise StoreError("nobody asked for it")

    monkeypatch.setattr(parents, "connect", connect)
    with tracking.start(plan(mlflow=False), root, root / "sweeps" / "sweep") as tracked:
        tracked.results({"ablations": []})
        tracked.finish("finished", [])
    assert tracked.where is None
    assert not root.exists()


@pytest.mark.parametrize(("stop", "code"), [(Terminated(), 143), (KeyboardInterrupt(), 130)])
def test_the_exit_code_says_which_signal_it_was(
    monkeypatch: pytest.MonkeyPatch, stop: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(**options: Any) -> None:
        raise stop

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "_register", lambda: None)
    monkeypatch.setattr(cli, "_usable_streams", lambda: None)
    monkeypatch.setattr(sys, "argv", ["mmctl"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == code
    capsys.readouterr()
