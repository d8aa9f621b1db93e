"""The figures, one file each. A new figure is one file here and one line in `FIGURES`.

A figure's module has `collect(...)`, which reads runs or a sweep into plain data; `plot(data)`, which turns that data into
a `matplotlib.figure.Figure` and touches nothing else; and `command(...)`, what `mmctl plot <figure>` runs. Modules are
named here as strings and imported when first used, so that `mmctl --help` stays fast.
"""

from __future__ import annotations

FIGURES: dict[str, str] = {
    "attention-distribution": "mmctl.plots.attention_distribution:command",
    "flops-accuracy": "mmctl.plots.flops_accuracy:command",
}
