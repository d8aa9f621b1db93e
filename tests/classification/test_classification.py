"""In-context classification: files read or refused in a line, prompts as published, scores from a model that cheats."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.classification import Examples, datasets, measure, prompt, read
from mmctl.classification.prompts import PROMPTS, Prompt, answer, decided, demonstrations, label_names
from mmctl.data.tokenizers import Bytes
from mmctl.errors import MmctlError, UsageError


def tiny(name: str = "banking77") -> Examples:
    train = [(f"text {i} of {label}", label) for label in ("lost_card", "new_pin", "top_up") for i in range(4)]
    test = [(f"asked {i} of {label}", label) for label in ("lost_card", "new_pin", "top_up") for i in range(3)]
    return Examples(name, train, test, "")


def test_the_published_files_are_read(shared: Path) -> None:
    if not (shared / "data" / "banking77").is_dir():
        pytest.skip("the shared data sets are not there")
    banking = read(f"banking77={shared / 'data' / 'banking77'}")
    assert (len(banking.classes), len(banking.train), len(banking.test)) == (77, 10_003, 3_080)
    clinc = read(f"clinc150={shared / 'data' / 'clinc150'}")
    assert (len(clinc.classes), len(clinc.train), len(clinc.test)) == (150, 15_000, 4_500)


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_goemotions_and_tacred_files(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "go",
        {
            "emotions.txt": "joy\nfear\n",
            "train.tsv": "so nice\t0\ta\nboth\t0,1\tb\nhelp\t1\tc\n",
            "test.tsv": "yes\t0\td\n",
        },
    )
    go = read(f"goemotions={folder}")
    assert go.train == [("so nice", "joy"), ("help", "fear")]
    row = {
        "token": ["Ann", "works", "for", "Acme", "Corp", "."],
        "subj_start": 0,
        "subj_end": 0,
        "obj_start": 3,
        "obj_end": 4,
    }
    rows = [row | {"relation": "per:employee_of"}, row | {"relation": "no_relation"}]
    folder = write(tmp_path / "ta", {f"{s}.json": json.dumps(rows) for s in ("train", "test")})
    tacred = read(f"tacred={folder}")
    assert tacred.train == [("Ann works for Acme Corp .\tAnn\tAcme Corp", "per:employee_of")]
    made = prompt(tacred, [], {}, Prompt("return", "fixed", "semantic"), tacred.test[0][0], 0)
    assert made.endswith("sentence: Ann works for Acme Corp .\nthe relation between Ann and Acme Corp is:")


GOOD_CSV = "text,category\nhi,a\n"


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("banking77", {}, "expected train.csv"),
        ("banking77", {"train.csv": "text,label\nhi,a\n", "test.csv": GOOD_CSV}, 'no column "category"'),
        ("banking77", {"train.csv": GOOD_CSV, "test.csv": "text,category\nhi,b\n"}, 'class "b" has no training'),
        ("banking77", {"train.csv": "text,category\n", "test.csv": GOOD_CSV}, "text"),
        ("banking77", {"train.csv": "text,category\nhi\n", "test.csv": GOOD_CSV}, "row 2 is incomplete"),
        ("banking77", {"train.csv": b"\xff\xfe\x00", "test.csv": GOOD_CSV}, "is not UTF-8"),
        ("banking77", {"train.csv": "text,category\n" + "x" * 2_000_000 + ",a\n", "test.csv": GOOD_CSV}, "is not CSV"),
        ("clinc150", {"data_full.json": "[1]"}, 'list "train"'),
        ("clinc150", {"data_full.json": "{"}, "is not JSON"),
        ("clinc150", {"data_full.json": '{"train": [["a"]], "test": []}'}, 'list "train"'),
        ("goemotions", {"emotions.txt": "joy", "train.tsv": "a\t5\tb\n", "test.tsv": ""}, "emotion 5"),
        ("goemotions", {"emotions.txt": "joy", "train.tsv": "a 0\n", "test.tsv": ""}, "row 1"),
        ("tacred", {"train.json": '[{"token": ["a"]}]', "test.json": "[]"}, "example 1"),
        ("tacred", {"train.json": "{}", "test.json": "[]"}, "example 1|no training"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, files: dict[str, str | bytes], words: str) -> None:
    folder = write(tmp_path / "data", files)
    with pytest.raises(UsageError, match=words) as error:
        read(f"{name}={folder}")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_ones_own_queries_are_two_csv_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"train.csv": GOOD_CSV, "test.csv": GOOD_CSV})
    found = read(f"own={folder}")
    assert (found.name, found.train) == ("own", [("hi", "a")])
    assert prompt(found, [], {}, Prompt("return", "fixed", "semantic"), "x", 0).endswith(
        "service query: x\nintent category:"
    )
    with pytest.raises(UsageError, match=r"expected the folder with train\.csv and test\.csv of banking77"):
        read(f"banking77={folder / 'train.csv'}")  # what is shown must not be what is asked


def test_names_and_forms_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="banking77"):
        read(f"bankng77={tmp_path}")
    with pytest.raises(UsageError, match="expected banking77=PATH"):
        read("banking77")
    with pytest.raises(
        UsageError, match=r"none: no such folder or file; expected train\.csv and test\.csv of banking77"
    ):
        read(f"banking77={tmp_path / 'none'}")
    with pytest.raises(UsageError, match=r"expected train\.csv of banking77 in it"):
        read(f"banking77={tmp_path}")


def test_hugging_face_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Split(list):  # type: ignore[type-arg]
        column_names = ("text", "label")
        features = {"label": types.SimpleNamespace(names=["a", "b"])}

    rows = Split([{"text": "hi", "label": 0}, {"text": "ho", "label": 1}])
    made = types.SimpleNamespace(load_dataset=lambda name: {"train": rows, "test": rows})
    monkeypatch.setitem(sys.modules, "datasets", made)
    assert read("banking77=hf:some/name").train == [("hi", "a"), ("ho", "b")]
    made.load_dataset = lambda name: {"train": rows}
    with pytest.raises(UsageError, match='no split "test"'):
        read("banking77=hf:some/name")

    def fails(name: str) -> Any:
        raise OSError("no network\nlong story")

    made.load_dataset = fails
    with pytest.raises(MmctlError, match=r"cannot be loaded \(no network\)$"):
        read("banking77=hf:some/name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MmctlError, match="pip install datasets"):
        datasets._hugging_face("banking77", "x")


def test_the_prompt_is_the_published_text() -> None:
    rounds = [[("where is it", "lost_card"), ("change  pin", "new_pin")]]
    names = {"lost_card": "lost_card", "new_pin": "new_pin"}
    made = prompt(tiny(), rounds, names, Prompt("return", "fixed", "semantic"), "help", 0)
    assert made == (
        "Given a customer service query, please predict the intent of the query. The predict answer must come from the "
        "demonstration examples with the exact format. The examples are as follows: \n"
        "service query: where is it\nintent category: lost_card\n"
        "service query: change pin\nintent category: new_pin\n"
        "service query: help\nintent category:"
    )
    spaced = prompt(tiny(), rounds, names, Prompt("space", "fixed", "semantic"), "help", 0)
    assert spaced.endswith("service query: change pin intent category: new_pin service query: help intent category:")


def test_shots_orders_and_labels() -> None:
    data = tiny()
    rounds = demonstrations(data, data.classes, 6, 0)
    assert [len(r) for r in rounds] == [3, 3, 3, 3, 0, 0]  # four examples of a class exist
    assert rounds[:2] == demonstrations(data, data.classes, 2, 0)  # more shots keep the earlier ones
    assert len({text for r in rounds for text, _ in r}) == 12
    names = label_names(data, data.classes, "anonymous", 0)
    assert sorted(names.values()) == ["class_00", "class_01", "class_02"]
    fixed, shuffled = (
        prompt(data, rounds, names, Prompt("return", o, "anonymous"), "x", 0) for o in ("fixed", "shuffled")
    )
    order = re.findall("class_0[0-2]", fixed)
    assert order[:3] * 4 == order
    other = re.findall("class_0[0-2]", shuffled)
    assert sorted(other) == sorted(order)
    assert other != order
    assert len(PROMPTS) == 8


def test_answers_are_cleaned_as_published() -> None:
    assert answer("banking77", " Lost_Card\nservice query: x") == "lost_card"
    assert answer("banking77", " lost_card service query: x") == "lost_card"
    assert answer("goemotions", "") == ""


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(
            ["card", "card_lost", "Σας", "ΣΑΣ ", "top up", " ", "service query", "Service", "ser", "x", "_"]
        ),
        max_size=6,
    ),
    name=st.sampled_from(["banking77", "tacred"]),
)
def test_an_answer_is_settled_only_when_nothing_can_change_whether_it_is_right(pieces: list[str], name: str) -> None:
    """Letter by letter, as a model gives them: stopped as soon as it is settled, the answer is right, or valid, where
    the whole text's would be."""
    valid = ["card", "card_lost", "Σας", "top up"]
    whole = "".join(pieces)
    settled = decided(name, valid)
    short = next((whole[:n] for n in range(1, len(whole)) if settled(whole[:n])), whole)
    known = {label.lower() for label in valid}
    got, expected = answer(name, short), answer(name, whole)
    assert got == expected or not {got, expected} & known


def test_what_is_wrong_is_not_finished() -> None:
    settled = decided("banking77", ["lost_card"])
    assert [settled(t) for t in (" lost", " lost_card", " lost_card ser")] == [False] * 3
    assert [settled(t) for t in (" lots", " lost_cardx", "zz", " lost_card service query")] == [True] * 4


def test_scores_are_those_of_whole_prompts_answered_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has learned to give some class or other, right or wrong: answers from the shared beginning, cut short
    where settled, score as those of each prompt read anew and continued to its end."""
    from mmctl import generation

    data = tiny()
    model = Parrot(
        "of lost_card\nintent category: lost_card\nof new_pin\nintent category: new_pins\nintent category: q w e"
    )
    fast = measure(model, Bytes(), data, [1, 3], number=9, batch=4)["scores"]
    used: list[int] = []

    def plain(*arguments: Any, beginning: Any, enough: Any, **options: Any) -> Any:
        used.append(len(beginning.tokens))
        return original(*arguments, **options)

    original = generation.generate
    monkeypatch.setattr("mmctl.generation.generate", plain)
    assert measure(model, Bytes(), data, [1, 3], number=9, batch=4)["scores"] == fast
    assert min(used) > 150
    assert len({score["value"] for score in fast.values()}) > 1  # some answers are right, some wrong


class Parrot:
    """Continues what it reads as the longest match in what it has once read; no class is always right."""

    def __init__(self, text: str) -> None:
        self.read = Bytes().encode(text)
        self.embedding = types.SimpleNamespace(weight=torch.zeros(1))
        self.after: dict[tuple[int, ...], int] = {}
        for order in range(1, 16):
            for end in range(order, len(self.read)):
                self.after.setdefault(tuple(self.read[end - order : end]), self.read[end])

    def init_cache(self, batch: int, capacity: int = 0) -> Any:
        cache = types.SimpleNamespace(rows=[[] for _ in range(batch)])
        cache.select = types.MethodType(select, cache)
        return cache

    def prefill(self, tokens: Any, cache: Any, documents: Any = None) -> Any:
        logits = torch.zeros(len(tokens), 256)
        for row, (held, new) in enumerate(zip(cache.rows, tokens.tolist(), strict=True)):
            held += new
            known = (self.after.get(tuple(held[-order:])) for order in range(15, 0, -1))
            logits[row, next((k for k in known if k is not None), 10)] = 1
        return logits

    def step(self, tokens: Any, cache: Any) -> Any:
        return self.prefill(tokens, cache)[:, None]


def select(cache: Any, rows: Any) -> None:
    cache.rows = [list(cache.rows[row]) for row in rows.tolist()]


def test_scores_of_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that reads the question, but only where parts end in line breaks: mean 0.5, best 1."""
    seen: list[str] = []

    def oracle(model: Any, tokenizer: Bytes, prompts: list[list[int]], **_: Any) -> list[Any]:
        made = []
        for tokens in prompts:
            text = tokenizer.decode(tokens)
            seen.append(text)
            asked = re.search(r"asked \d of (\w+)\nintent category:$", text)
            shown = dict(re.findall(r"text \d of (\w+)\nintent category: (\w+)\n", text))
            made.append(types.SimpleNamespace(text=f" {shown[asked[1]]}" if asked else " none"))
        return made

    monkeypatch.setattr("mmctl.generation.generate", oracle)
    monkeypatch.setattr("mmctl.generation.read_beginning", lambda model, tokens, room: tokens)
    result = measure(None, Bytes(), tiny(), [1, 2], number=9)
    scores = result["scores"]
    for kind in ("semantic", "anonymous"):
        for shots in (1, 2):
            assert scores[f"banking77-{kind}/accuracy-return-fixed@{shots}"]["value"] == 1
            assert scores[f"banking77-{kind}/accuracy-space-shuffled@{shots}"]["value"] == 0
            assert scores[f"banking77-{kind}/accuracy-mean@{shots}"]["value"] == 0.5
            assert scores[f"banking77-{kind}/accuracy-best@{shots}"] == {"value": 1.0, "n": 9, "interval": None}
    assert result["settings"]["longest_prompt"] == max(map(len, seen))
    assert result["tasks"]["banking77"]["chance"] == pytest.approx(1 / 3)
    assert len(seen) == 2 * 8 * 9
    assert measure(None, Bytes(), tiny(), [1], classes=2, number=4)["settings"]["classes"] == 2
    with pytest.raises(UsageError, match="--classes 4"):
        measure(None, Bytes(), tiny(), [1], classes=4)
