"""What a run would take on this machine, before it is started: device, precision, kernels, memory, disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from mmctl.doctor.machine import Line, told
from mmctl.runs import files
from mmctl.runs.preflight import size


def would_run(config: Any, root: Path) -> tuple[list[Line], dict[str, Any]]:
    """What a run of `config` would take here, as lines and for a program: device, precision, kernels, memory, disk."""
    import torch

    from mmctl import models
    from mmctl.config import identity
    from mmctl.runs import RunFolder, preflight, provenance
    from mmctl.runs.memory import available, estimate, fitting
    from mmctl.training.run import pick_device

    device = torch.device(pick_device(config.operation.device))
    config.training.resolve(str(device), config.model.width)
    with torch.device("meta"):
        model = models.build(config)
    kernels = provenance.kernels(model, device, config.training.precision)
    need, free = estimate(config), available()
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    keep = config.operation.keep + 1
    disk = keep * preflight.checkpoint_bytes(model.parameter_count())
    free_disk = shutil.disk_usage(files.existing(root)).free
    found = RunFolder.locate(root, config)
    values = {
        "identity": identity(config), "seed": config.seed, "model": config.model.name, "device": str(device),
        "precision": config.training.precision, "threads": config.training.threads, "kernels": kernels,
        "parameters": model.parameter_count(), "memory_bytes": need.total, "memory_free": free, "disk_bytes": disk,
        "disk_free": free_disk, "run": None if found is None else {"path": str(found.path), "state": found.state()},
    }  # fmt: skip
    here = f"{found.path} is {found.state()}" if found is not None else "not run here yet"
    lines = [
        Line("run", "ok", f"{config.model.name}, identity {values['identity']}, seed {config.seed}: {here}"),
        Line("device", "ok", f"{device}, {config.training.precision}, {config.training.threads} thread(s)"),
        Line("kernels", "ok", told(kernels) if kernels else "none of ours: torch's own operations"),
    ]
    text = f"about {size(need.total)} ({need.words()})" + ("" if free is None else f", {size(free)} free")
    if free is not None and need.total > free:
        setting = fitting(config, free)
        todo = f"{setting} would fit" if setting else "a smaller model, batch or length would fit"
        lines.append(Line("memory", "fail", text, todo))
    else:
        lines.append(Line("memory", "ok", text))
    text = f"{size(disk)} for {keep} checkpoints (one being written), {size(free_disk)} free"
    lines.append(
        Line("disk", "fail", text, "free some: mmctl runs clean") if disk > free_disk else Line("disk", "ok", text)
    )
    return lines, values
