"""RULER's 13 tasks read back as text: what is hidden is there, once, and the prompt is the published one."""

from __future__ import annotations

import collections
import json
import random
import re
from pathlib import Path

import pytest

from mmctl.errors import UsageError
from mmctl.ruler import RULER, Sample, Sources, samples, wanted
from mmctl.ruler.haystack import Haystack, sentences
from mmctl.ruler.questions import read
from mmctl.ruler.scoring import cleaned, score

NEEDLE = r"One of the special magic (\w+) for (\S+) is: (\S+)\."


def words(text: str) -> int:
    """A tokenizer for the tests: words and marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def drawn(
    name: str, length: int = 1500, number: int = 6, sources: Sources | None = None, seed: int = 1
) -> list[Sample]:
    return list(samples(RULER[name], length, words, number, seed, sources or Sources()))


@pytest.mark.parametrize("name", RULER)
@pytest.mark.parametrize("length", [1500, 5000])
def test_prompts_fill_the_length_and_repeat_with_the_seed(name: str, length: int) -> None:
    task = RULER[name]
    found = drawn(name, length, 4)
    for sample in found:
        assert sample.tokens == words(sample.prompt)
        assert sample.tokens + task.generate <= length
        assert 0 <= sample.depth <= 1
    assert max(s.tokens for s in found) + task.generate > 0.85 * length
    assert found == drawn(name, length, 4)
    assert found[:2] == drawn(name, length, 2)  # more samples do not change the first
    assert found[0].prompt != drawn(name, length, 1, seed=2)[0].prompt
    assert len({s.prompt for s in found}) == 4


@pytest.mark.parametrize(
    ("name", "kind", "key", "value", "keys", "values"),
    [
        ("niah_single_1", "numbers", r"[a-z' -]+-[a-z' -]+", r"\d{7}", 1, 1),
        ("niah_single_2", "numbers", r"[a-z' -]+-[a-z' -]+", r"\d{7}", 1, 1),
        ("niah_single_3", "uuids", r"[a-z' -]+-[a-z' -]+", r"[0-9a-f]{8}-[0-9a-f-]{27}", 1, 1),
        ("niah_multikey_1", "numbers", r"[a-z' -]+-[a-z' -]+", r"\d{7}", 4, 1),
        ("niah_multivalue", "numbers", r"[a-z' -]+-[a-z' -]+", r"\d{7}", 1, 4),
        ("niah_multiquery", "numbers", r"[a-z' -]+-[a-z' -]+", r"\d{7}", 4, 1),
    ],
)
def test_needles_are_hidden_once_and_asked_for(
    name: str, kind: str, key: str, value: str, keys: int, values: int
) -> None:
    for sample in drawn(name):
        hidden = re.findall(rf"One of the special magic {kind} for ({key}) is: ({value})\.", sample.prompt)
        assert len(hidden) == keys * values
        table = collections.defaultdict(list)
        for k, v in hidden:
            table[k].append(v)
        assert len(table) == keys
        asked = re.search(r"special magic \w+ for (.+) mentioned in the provided text\?", sample.prompt)
        assert asked
        queried = re.split(r", and |, ", asked[1])
        assert len(queried) == (4 if name == "niah_multiquery" else 1)
        assert sorted(v for q in queried for v in table[q]) == sorted(sample.references)
        assert sample.prompt[round(sample.depth * len(sample.prompt)) :].startswith(sample.references[0])


def test_the_prompt_of_one_needle_is_the_published_text() -> None:
    sample = drawn("niah_single_1", 400, 1)[0]
    first, *lines, last = sample.prompt.split("\n")
    assert first == (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards."
    )
    grass = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    rest = [line for line in lines if line != grass]
    assert len(rest) == 1
    assert (match := re.fullmatch(r"One of the special magic numbers for (.+) is: (\d{7})\.", rest[0]))
    assert last == (
        f"What is the special magic number for {match[1]} mentioned in the provided text?"
        f" The special magic number for {match[1]} mentioned in the provided text is"
    )
    assert sample.references == [match[2]]
    assert len(lines) - 1 == sample.size


@pytest.mark.parametrize("name", ["niah_multikey_2", "niah_multikey_3"])
def test_a_haystack_of_needles_holds_nothing_else(name: str) -> None:
    sample = drawn(name)[0]
    lines = sample.prompt.split("\n")[1:-1]
    assert len(lines) == sample.size + 1
    assert all(line.startswith("One of the special magic") for line in lines)
    query = re.search(r"for (\S.*) mentioned in the provided text\?", sample.prompt)
    assert query
    assert [line for line in lines if f" for {query[1]} is: " in line] == [
        next(line for line in lines if line.endswith(f"is: {sample.references[0]}."))
    ]


def test_essay_needles_stand_between_whole_sentences() -> None:
    for sample in drawn("niah_multikey_1", 2000):
        context = sample.prompt.split("\n")[1]
        for found in re.finditer("One of the special magic", context):
            at, rest = found.start(), re.sub(NEEDLE + " ?", "", context[found.start() :])
            assert at == 0 or context[at - 2] in ".!?\"')" or not rest  # at the very end the essay is cut off
        without = re.sub(NEEDLE + " ?", "", context).strip()
        assert without == Haystack().words(sample.size)


def test_variables_form_one_chain_behind_a_solved_example() -> None:
    for sample in drawn("vt", 2100):
        problems = re.findall(r"Memorize and track.*?they are: ", sample.prompt, re.DOTALL)
        assert len(problems) == 2
        for problem, letters in zip(problems, (3, 5), strict=True):
            value = re.search(r"assigned the value (\d{5}) in the text", problem)
            assert value
            chain = re.findall(r"VAR ([A-Z]+) = (?:VAR )?([A-Z0-9]+) ?$", problem, re.MULTILINE)
            assert len(chain) == 5
            assert chain[0][1] == value[1]
            assert [later[1] for later in chain[1:]] == [earlier[0] for earlier in chain[:-1]]  # in order
            assert {len(name) for name, _ in chain} == {letters}
        assert sample.references == [name for name, _ in chain]
        answer = sample.prompt[len(problems[0]) :].split("\n")[0].split()
        assert answer == re.findall(r"VAR ([A-Z]{3}) =", problems[0])
    assert len(re.findall("Memorize and track", drawn("vt", 600, 1)[0].prompt)) == 1  # no room for the example


@pytest.mark.parametrize(("length", "often", "seldom"), [(1500, 6, 1), (6000, 30, 3)])
def test_common_words_are_common(length: int, often: int, seldom: int) -> None:
    sample = drawn("cwe", length, 2)[-1]
    lists = re.findall(r"often\.\n(.*)\nQuestion", sample.prompt)
    assert len(lists) == 2
    counts = collections.Counter(re.findall(r"\d+\. (.+?)(?= \d+\. |$)", lists[1]))
    assert len(counts) == sample.size
    assert sorted(w for w, c in counts.items() if c == often) == sorted(sample.references)
    assert {c for c in counts.values()} == {often, seldom}
    assert len(sample.references) == 10


def test_frequent_words_follow_zipf_and_the_dots_are_noise() -> None:
    sample = drawn("fwe", 5000, 1)[0]
    context = sample.prompt.split("coded words. ", 1)[1].split("\nQuestion")[0]
    counts = collections.Counter(context.split(" "))
    (dots, most), *rest = counts.most_common(4)
    assert dots == "..."
    assert [w for w, _ in rest] == sample.references
    for rank, (_, count) in enumerate(rest, start=2):
        assert count == pytest.approx(most / rank**2, abs=1.01)
    assert all(re.fullmatch("[a-z]{6}", w) for w in counts if w != "...")


def test_questions_stand_in_the_published_skeleton() -> None:
    ask = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    for name in ("qa_1", "qa_2"):
        for sample in drawn(name, 800, 4):
            head, tail = sample.prompt.split("\n\nThe following are given documents.\n\n")
            assert head == ask
            blocks = tail.split("\n\n")
            assert blocks[-2] == ask
            assert re.fullmatch(r"Question: .*\? Answer:", blocks[-1])
            assert [b.split("\n")[0] for b in blocks[:-2]] == [f"Document {i}:" for i in range(1, sample.size + 1)]
            assert any(sample.references[0] in b for b in blocks[:-2])


def place(sample: Sample) -> int:
    """Number of the document that is asked about."""
    who = re.search(r"Question: \w+ does (?:the best friend of )?(\w+) ", sample.prompt)
    assert who
    found = re.search(rf"Document (\d+):\n(?:The best friend of )?{who[1]} ", sample.prompt)
    assert found
    return int(found[1])


def test_the_published_shuffle_pins_the_gold_document_and_the_options_do_not() -> None:
    by = {p: [place(s) for s in drawn("qa_1", 900, 12, Sources(position=p))] for p in ("ruler", "uniform", "sweep")}
    assert len(set(by["ruler"])) == 1
    n = drawn("qa_1", 900, 1)[0].size
    order = list(range(n))
    random.Random(42).shuffle(order)
    assert by["ruler"][0] == order.index(0) + 1
    assert by["sweep"] == [i % n + 1 for i in range(12)]
    assert len(set(by["uniform"])) > 2


SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": f"Text {i} tells of thing {i}.",
                    "qas": [
                        {"question": f"What of {i}?", "answers": [{"text": f"thing {i}"}, {"text": "a thing"}]},
                        {"question": "Never?", "answers": [], "is_impossible": True},
                    ],
                }
                for i in (first, first + 1, first + 2)
            ]
        }
        for first in (0, 10, 20)
    ]
}


def test_questions_from_a_squad_file_take_distractors_from_the_same_article_first(tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD))
    source = read(path)
    assert len(source.questions) == 9
    sources = Sources(questions={"qa_1": source})
    sample = next(iter(samples(RULER["qa_1"], 100 + 32, words, 1, 0, sources)))
    numbers = [int(i) for i in re.findall(r"Text (\d+) tells", sample.prompt)]
    assert 2 <= len(numbers) == sample.size
    asked = int(re.search(r"What of (\d+)\?", sample.prompt)[1])  # type: ignore[index]
    assert asked in numbers
    assert all(n // 10 == asked // 10 for n in numbers) or len(numbers) > 3
    assert sample.references == [f"thing {asked}", "a thing"]


def test_a_file_of_few_documents_fills_any_length(tmp_path: Path) -> None:
    """It went on for ever: no number of documents was enough."""
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": SQUAD["data"][:1]}))
    found = list(samples(RULER["qa_1"], 1000, words, 3, 0, Sources(questions={"qa_1": read(path)})))
    assert all(s.tokens + 32 > 950 for s in found)
    assert found[0].size > 20


def test_questions_from_a_hotpot_file(tmp_path: Path) -> None:
    rows = [
        {
            "question": f"Q{i}?",
            "answer": f"A{i}",
            "supporting_facts": [[f"T{i}b", 0]],
            "context": [[f"T{i}{letter}", [f"One {letter}.", " Two."]] for letter in "abc"],
        }
        for i in range(5)
    ]
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps(rows))
    source = read(path)
    assert source.documents[source.questions[2].gold[0]] == "T2b\nOne b. Two."
    assert source.questions[2].answers == ("A2",)
    sample = drawn("qa_2", 200, 3, Sources(questions={"qa_2": source}))[2]
    assert "Question: Q2? Answer:" in sample.prompt


@pytest.mark.parametrize(
    ("content", "words_of_error"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"data": 5}', "expected SQuAD"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "expected SQuAD"),
        ('{"data": []}', "no question"),
        ("[1]", "expected SQuAD"),
        ("[]", "no question"),
    ],
)
def test_a_bad_questions_file_is_one_line(tmp_path: Path, content: str, words_of_error: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=words_of_error) as error:
        read(path)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none.json")


def test_haystack_files(tmp_path: Path) -> None:
    essay = tmp_path / "essays.json"
    essay.write_text(json.dumps({"text": "One two  three.\nFour five. Six!"}))
    assert Haystack(essay).words(8) == "One two three. Four five. Six! One two"
    assert sentences("One two. Three! Four e.g. five? Six") == ["One two.", "Three!", "Four e.g. five?", "Six"]
    for name, content in (("a.json", b'{"no": 1}'), ("b.txt", b"  "), ("c.txt", b"\xff\xfe\x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=name):
            Haystack(tmp_path / name).words(3)


def test_scores_are_the_published_ones() -> None:
    assert score("The answer is 123 and\x00 456.", ["123", "789"], any_match=False) == 0.5
    assert score("The answer is 123", ["123", "789"], any_match=True) == 1
    assert score("PARIS!", ["Paris"], any_match=True) == 1
    assert cleaned("  a\x01b \n") == "a\nb"


def test_what_does_not_fit_or_exist_is_said() -> None:
    with pytest.raises(UsageError, match=r"length 100: RULER's cwe needs at least \d+ tokens"):
        drawn("cwe", 100)
    with pytest.raises(UsageError, match=r"niah_single_4.*niah_single_"):
        wanted(["niah_single_4"])
    assert len(wanted([])) == 13
