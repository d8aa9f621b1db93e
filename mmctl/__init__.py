"""mmctl: the reference laboratory for Memory Mosaics. Importing it imports neither torch nor mlflow.

`mmctl.load_runs(folder)` gives runs and their scores as a pandas table (mmctl/runs/table.py).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmctl.runs.table import load_runs

__version__ = "0.1.0"
__all__ = ["__version__", "load_runs"]


def __getattr__(name: str) -> Any:
    if name == "load_runs":
        from mmctl.runs.table import load_runs

        return load_runs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
