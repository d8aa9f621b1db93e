"""What needs files of the user's own gives the words to type, whichever command asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from inprocess import mmctl

from mmctl.sweeps import matrix

ASKING = {
    "ablate": ("ablate", "intents", "--dry-run"),
    "ablate with another": ("ablate", "intents", "--only", "intents/mosaic", "--dry-run"),
    "train": ("train", "intents", "--dry-run"),
    "inspect": ("data", "inspect", "intents"),
    "doctor": ("doctor", "intents"),
}


@pytest.mark.parametrize("asked", ASKING)
def test_without_files_the_error_gives_the_words_that_the_ablation_shows(asked: str, tmp_path: Path) -> None:
    header = Path(matrix.shipped()["intents"]).read_text(encoding="utf-8").partition("\nname:")[0]
    line = next(line for line in header.splitlines() if "mmctl ablate intents" in line)
    words = line.rpartition("ablate intents ")[2]
    assert words == "data.tasks.intents.train=clinc150=FOLDER data.tasks.intents.test=banking77=FOLDER"
    runs = () if "inspect" in asked else ("--runs", tmp_path)
    done = mmctl(*ASKING[asked], *runs)
    said = done.err + done.out
    assert words in said
    assert "Traceback" not in said
    if asked != "doctor":  # which goes on to what else it finds
        assert done.code == 2
        assert len(done.err.splitlines()) == 1
    if "ablate" in asked:
        assert done.err.startswith("mmctl: intents/mosaic: ")
