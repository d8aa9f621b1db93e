"""TUTORIAL.md, taken step by step: every command block runs in order, in one shell and a fresh folder.

What is changed to make it small and need no network: runs are cut to a few steps and examples (TOY), and `pip install .`
takes torch and the rest from this environment. The package is installed for real, from a copy of this tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "TUTORIAL.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGED = ("mmctl", "kernels", "ablations", "plots", "pyproject.toml", "README.md", "LICENSE")
TOY = (
    "'data.mixture={recall: 1, facts: 1}' data.batch=4 training.steps=3 training.warmup=0 evaluation.examples=4 "
    "evaluation.minimum_examples=4 'evaluation.lengths=[1]' operation.mlflow=false"
)
NO_NETWORK = "--quiet --no-deps --no-index --no-build-isolation --disable-pip-version-check"

EXPECTED = {
    "pip install .": ["would run:", "mosaic-v2, identity"],
    "mkdir my-idea": [],
    "mmctl train smoke": ["name: smeared", "smear: 0.25"],
    "mmctl ablate smear.yaml --plugin smear.py --dry-run": ["6 runs of 2 cells", "smear/plain", "smear/smeared"],
    "mmctl ablate smear.yaml --plugin smear.py\n": ["smear/recall", "smear/facts", "report: "],
    "ls runs/sweeps": ["report.html", "numbers.csv", "## Verdicts", "2 claims"],
    "sed -i.before": ["changed after the first run (margin)"],
    "--at training.learning_rate": ["as it is:", "training.learning_rate=8e-3:", "4 more runs"],
}
"""What begins or stands in a command block -> what it must print; every block has exactly one."""


@dataclass
class Block:
    language: str
    title: str
    text: str


def blocks() -> list[Block]:
    return [Block(*found) for found in FENCE.findall(TEXT)]


def expected(block: Block) -> list[str]:
    (said,) = [
        said for start, said in EXPECTED.items() if start in block.text and (start[-1] != "\n" or block.text == start)
    ]
    return said


def small(block: Block) -> str:
    """The block's commands as the test runs them."""
    lines = block.text.replace("pip install .", f"pip install {NO_NETWORK} .")
    return re.sub(r"^(mmctl (?:train|ablate) .*)$", rf"\1 {TOY}", lines, flags=re.MULTILINE)


def script(own: list[Block], places: list[Path]) -> str:
    """One shell for all of it; files that the tutorial shows are written where it is by then."""
    libraries = sysconfig.get_path("purelib")
    lines = ["set -e"]
    for number, block in enumerate(own):
        lines.append(f"echo; echo '=== block {number}'")
        if block.title:
            lines.append(f"cp {places[number]} {block.title}")
            continue
        for line in small(block).splitlines():
            lines.append(line)
            if line.startswith("python3 -m venv"):  # what this environment has, after the new one's own
                own_libraries = "$(echo .venv/lib/python*/site-packages)"
                lines.append(
                    f"rm -rf {own_libraries}/setuptools* {own_libraries}/*distutils*"
                )  # Python's may be too old
                lines.append(f"echo {libraries} > {own_libraries}/test.pth")
    return "\n".join(lines) + "\n"


def test_every_block_is_a_command_or_a_file_and_each_command_is_expected_to_say_something() -> None:
    own = blocks()
    assert TEXT.count("```") == 2 * len(own)
    assert {(b.language, bool(b.title)) for b in own} == {("sh", False), ("python", True), ("yaml", True)}
    commands = [block for block in own if not block.title]
    assert len(commands) == len(EXPECTED)
    for block in commands:
        expected(block)
    assert all(name in TEXT for name in ("--at", "--tune", "--status", "manifest.json"))


def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    source = tmp_path / "mmctl"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PACKAGED:
        path = ROOT / name
        shutil.copytree(path, source / name, ignore=ignored) if path.is_dir() else shutil.copy(path, source)
    own = blocks()
    places = [tmp_path / f"block{number}" for number in range(len(own))]
    for block, place in zip(own, places, strict=True):
        place.write_text(block.text, encoding="utf-8")
    (tmp_path / "tutorial.sh").write_text(script(own, places))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MMCTL_", "MLFLOW_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        ["bash", str(tmp_path / "tutorial.sh")],
        cwd=source,
        env={**clean, "PATH": path, "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        timeout=1800,  # of a machine that is busy with much else; alone it takes about 40 s
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    _, *said = re.split(r"^=== block \d+$", done.stdout, flags=re.MULTILINE)
    assert len(said) == len(own)
    for block, output in zip(own, said, strict=True):
        for words in [] if block.title else expected(block):
            assert words in output, f"{block.text}printed:\n{output}"
    assert "Traceback" not in done.stderr
    # The environment's mmctl took no part: the tutorial's own installation ran.
    assert list((source / ".venv" / "lib").glob("python*/site-packages/mmctl/cli/ablate.py"))
    assert list((source / "my-idea" / "runs" / "sweeps").glob("smoke-*/report.html"))


@pytest.mark.parametrize("name", ["smear.py", "smear.yaml"])
def test_files_end_as_files_do(name: str) -> None:
    (block,) = [b for b in blocks() if b.title == name]
    assert block.text.endswith("\n")
    assert max(map(len, block.text.splitlines())) <= 120
