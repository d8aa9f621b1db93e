"""EleutherAI's lm-evaluation-harness on a run: `mmctl eval RUN --suite lm-eval --tasks ...` (extra `mmctl[lm-eval]`).

The harness has no place where other packages can announce models, so importing this package is what registers "mmctl"
with it: `python -m mmctl.harness run --model mmctl --model_args run=RUN --tasks ...` is the harness's own command line
with that done.
"""

from __future__ import annotations

from typing import Any

NEEDS = "needs the package lm-eval: pip install 'mmctl[lm-eval]'"


def register() -> None:
    """Make the model "mmctl" known to the harness. MmctlError when the harness is not installed."""
    from mmctl.errors import MmctlError

    try:
        from lm_eval.api.registry import model_registry
    except ImportError as error:
        raise MmctlError(f"lm-eval: {NEEDS} ({error})") from None
    if "mmctl" not in model_registry.keys():  # noqa: SIM118 (a registry, not a dict)
        model_registry.register("mmctl", target="mmctl.harness.adapter:MmctlLM")


def __getattr__(name: str) -> Any:
    if name in ("GROUPS", "measure"):
        from mmctl.harness import measuring

        return getattr(measuring, name)
    raise AttributeError(name)
