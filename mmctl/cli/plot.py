"""`mmctl plot`: one command a figure, from the registry of figures."""

from __future__ import annotations

from mmctl.cli.options import into_a_folder, with_json_paths, with_plugins
from mmctl.cli.registered import group
from mmctl.plots import FIGURES

app = group(
    FIGURES,
    "Draw one figure from runs or from a sweep: PNG, PDF and the CSV of its numbers.",
    into_a_folder,
    with_json_paths,
    with_plugins,
)
