"""The figures, one file each. A new figure is one file here and one line in `FIGURES`.

A figure's module has `collect(...)`, which reads runs or a sweep into plain data; `plot(data)`, which turns that data
into a `matplotlib.figure.Figure` and touches nothing else; `draw_sweep(sweep, directory)`, which does both and saves;
`command(...)`, what `mmctl plot <figure>` runs; and, where it does not depend on all results, `shows(results)`. Modules
are named here as strings and imported when first used, so that `mmctl --help` stays fast.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from mmctl.errors import UsageError, nearest

FIGURES: dict[str, str] = {
    "attention-distribution": "mmctl.plots.attention_distribution",
    "flops-accuracy": "mmctl.plots.flops_accuracy",
    "overview": "mmctl.plots.overview",
    "kernel-speed": "mmctl.plots.kernel_speed",
    "effects": "mmctl.plots.effects",
    "extrapolation": "mmctl.plots.extrapolation",
    "bandwidth": "mmctl.plots.bandwidth",
    "loss": "mmctl.plots.loss",
    "shots": "mmctl.plots.shots",
    "fine-tuning": "mmctl.plots.fine_tuning",
    "depth": "mmctl.plots.depth",
    "forget": "mmctl.plots.forget",
    "forget-state": "mmctl.plots.forget_state",
}


def figure(name: str) -> ModuleType:
    """The module of a registered figure. UsageError with the nearest name when there is none."""
    if name not in FIGURES:
        raise UsageError(f'figure "{name}": no such figure{nearest(name, FIGURES, "figures")}')
    return importlib.import_module(FIGURES[name])
