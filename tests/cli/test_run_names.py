"""What a run can be called: said before it is trained, never changed behind the user's back."""

from __future__ import annotations

from pathlib import Path

import pytest
from inprocess import mmctl

from mmctl.runs.names import safe_name

BAD = {
    "a b": "a-b",
    "exp/1": "exp-1",
    "../x": "x",
    ".hidden": "hidden",
    "größe": "gr-e",
    "x" * 81: "x" * 80,
    "a\nb": "a-b",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", ["option", "override"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["train", "dry-run"])
def test_a_name_that_no_folder_can_have_is_refused_with_the_nearest(
    name: str, form: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("--name", name) if form == "option" else (f"name={name}",)
    done = mmctl("train", "smoke", *words, "--runs", tmp_path, *more)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith('mmctl: name="')
    assert done.err.endswith(f', such as "{BAD[name]}"\n')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*BAD.values(), "lab", "v1.2+long_term=off"])
def test_the_names_it_gives_are_valid_and_kept_as_they_are(name: str) -> None:
    assert safe_name(name) == name
    done = mmctl("train", "smoke", "--name", name, "--dry-run")
    assert done.code == 0
    assert f"\nname: {name}\n" in done.out
