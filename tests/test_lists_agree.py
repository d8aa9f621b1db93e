"""Lists that are kept in several places and must agree: registries, the README, pyproject, the matching table."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOVED = {"mmctl.kernels": "kernels", "mmctl.ablations": "ablations", "mmctl.plots": "plots"}


def names(registry: str) -> list[str]:
    from mmctl.bench import BENCHMARKS
    from mmctl.config import presets
    from mmctl.data import BUILT_IN
    from mmctl.evaluation.changes import CHANGES
    from mmctl.models import MODELS
    from mmctl.plots import FIGURES
    from mmctl.sweeps.launchers import LAUNCHERS
    from mmctl.sweeps.matrix import shipped
    from mmctl.sweeps.profiles import PROFILES

    registries = {
        "models": list(MODELS),
        "tasks": list(BUILT_IN),
        "figures": list(FIGURES),
        "benchmarks": list(BENCHMARKS),
        "launchers": list(LAUNCHERS),
        "presets": presets(),
        "profiles": list(PROFILES),
        "ablations": list(shipped()),
        "changes": list(CHANGES),
    }
    return registries[registry]


@pytest.mark.parametrize(
    "registry", ["models", "tasks", "figures", "benchmarks", "launchers", "presets", "profiles", "ablations", "changes"]
)
def test_readme_names_every_registered_one(registry: str) -> None:
    assert [name for name in names(registry) if not re.search(rf"(?<![\w-]){name}(?![\w-])", README)] == []


def test_readme_names_every_command() -> None:
    import typer

    from mmctl.cli import _register, app

    _register()
    command = typer.main.get_command(app)
    listed = command.list_commands(None)  # type: ignore[attr-defined,arg-type]
    assert [name for name in listed if f"mmctl {name}" not in README] == []


def test_every_path_of_the_readme_is_there() -> None:
    paths = re.findall(r"`((?:mmctl|kernels|plots|ablations|tests)/[\w./]*)`", README)
    tree = re.search(r"## Where things are\n\n```\n(.*?)```", README, re.DOTALL)
    assert tree is not None
    folders = re.findall(r"^((?:mmctl|kernels|plots|ablations|tests|runs)/[\w./]*)", tree[1], re.MULTILINE)
    assert len(folders) > 15
    made_by_the_walk = {"mmctl/models/normed.py"}
    assert [path for path in (*paths, *folders) if not (ROOT / path).exists() and path not in made_by_the_walk] == []


def test_readme_tree_has_every_package() -> None:
    tree = README.partition("## Where things are")[2].partition("## Adding to it")[0]
    packages = [folder.parent for folder in (ROOT / "mmctl").glob("*/__init__.py")]
    assert [p.name for p in packages if f"mmctl/{p.name}/" not in tree and f" {p.name}/" not in tree] == []


def test_pyproject_lists_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    found = [p.parent.relative_to(ROOT) for p in (ROOT / "mmctl").rglob("__init__.py")]
    wanted = {".".join(folder.parts) for folder in found} | set(MOVED)
    assert sorted(listed) == sorted(wanted)
    assert listed == sorted(listed)


def test_reports_read_results_and_nothing_that_makes_results_reads_reports() -> None:
    from mmctl import sweeps
    from mmctl.sweeps import reporting

    folder = ROOT / "mmctl/sweeps"
    importing = {
        p.name for p in folder.glob("*.py") if "import" in p.read_text() and "sweeps.reporting" in p.read_text()
    }
    assert importing <= {"session.py", "tuning_session.py", "sensitivity_session.py"}
    for package, held in ((folder / "reporting", reporting), (folder, sweeps)):
        modules = {p.stem for p in package.glob("*.py")} - {"__init__"}
        assert {name for name in modules if not re.search(rf"\b{name}\b", held.__doc__ or "")} == set()


def test_every_model_can_be_matched() -> None:
    from dataclasses import fields

    from mmctl.models import MODELS, config_class

    for model in MODELS:
        keys = config_class(model).matched_by
        assert keys, model
        assert {key.removeprefix("model.") for key in keys} <= {f.name for f in fields(config_class(model))}


def test_states_are_the_same_wherever_they_are_listed() -> None:
    from mmctl.runs.status import STATES
    from mmctl.runs.upload import STATUS
    from mmctl.sweeps.progress import EVERY_STATE

    assert set(EVERY_STATE) == set(STATUS) == set(STATES)
