"""Six sweeps started in the same second on a store that does not exist yet (runner.md, section 4: 17 of 18 starts
failed)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from fake_runs import SMALL

HERE = Path(__file__).parent

SIX = """
import os, sys, traceback
import mlflow, torch
from pathlib import Path
from mmctl.cli import ablate
from mmctl.sweeps import estimates, live, preflight, session, tracking
from mmctl.sweeps.reporting import finish
from mmctl.sweeps.launchers import LAUNCHERS

LAUNCHERS["local"] = "fake_launcher:FakeLauncher"
root, own, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
gate, opened = os.pipe()
children = []
for number in range(6):
    child = os.fork()
    if not child:
        code = 99
        try:
            os.close(opened)
            os.read(gate, 1)
            # Three sweeps, each of them twice.
            ablate.ablate([own, *words], seeds=f"{number % 3},{number % 3 + 1}", jobs=1, runs=root)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    children.append(child)
os.close(opened)  # all at once
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print("codes", *codes)
"""


def test_six_sweeps_of_the_same_second_on_a_fresh_store_all_succeed(fakes, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("name: own\nquestion: q\nbaseline: {}\naxes: {data.batch: [16, 8]}\n")
    words = [w for w in SMALL if not w.startswith("operation.mlflow")]
    root = tmp_path / "runs"
    done = subprocess.run(
        [sys.executable, "-c", SIX, str(root), str(own), *words],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.splitlines()[-1] == "codes 0 0 0 0 0 0", done.stderr[-3000:]
    # Seeds 0 to 3 of two cells, each trained by whichever sweep came first.
    assert Counter(fakes.calls()) == {
        f"train {cell}/seed{s}": 1 for cell in ("mosaic-v2", "own-batch-8") for s in range(4)
    }
    assert len(list(root.glob("*/seed*/result.json"))) == 8
    sweeps = sorted((root / "sweeps").iterdir())
    assert len(sweeps) == 3
    assert all((sweep / "report.md").is_file() for sweep in sweeps)

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    found = Counter((run.info.run_name, run.info.status) for run in client.search_runs(experiments))
    trained = [f"{path.parent.parent.name}/{path.parent.name}" for path in root.glob("*/seed*/result.json")]
    assert found == {(name, "FINISHED"): 1 for name in [*(sweep.name for sweep in sweeps), *trained]}
