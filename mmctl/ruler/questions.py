"""qa_1 and qa_2: a question about one of many documents, from a SQuAD- or HotpotQA-format file or made up."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmctl.data.docs_qa import ATTRIBUTES, NAMES, RULER_SEED
from mmctl.errors import UsageError
from mmctl.ruler.prompts import DOCUMENT, QUESTION

LARGEST = 1 << 29
MADE_UP = 2000
"""Made-up people."""


@dataclass(frozen=True)
class Question:
    """A question, its accepted answers, the documents that hold the answer (first) and those to be mixed in first."""

    query: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True)
class Questions:
    """Documents and the questions about them."""

    name: str
    documents: tuple[str, ...]
    questions: tuple[Question, ...]


def build(rng: random.Random, size: int, index: int, source: Questions, position: str) -> tuple[str, list[str], int]:
    """The prompt of question `index` among `size` documents, its answers, and where its first document stands.

    Distractors: first documents near the gold one (the same article), then any others, as published.
    """
    question = source.questions[index % len(source.questions)]
    chosen = list(question.gold)
    near = [d for d in question.near if d not in chosen]
    missing = max(0, size - len(chosen))
    if missing <= len(near):
        chosen += rng.sample(near, missing)
    else:
        taken = {*chosen, *near}
        others = [d for d in range(len(source.documents)) if d not in taken]
        chosen += near + rng.sample(others, min(len(others), missing - len(near)))
    while len(chosen) < size:  # a file with fewer documents is gone through again, as published
        chosen += range(min(size - len(chosen), len(source.documents)))
    first = chosen[0]
    if position == "ruler":
        random.Random(RULER_SEED).shuffle(chosen)
    else:
        rest = chosen[1:]
        rng.shuffle(rest)
        place = rng.randrange(len(chosen)) if position == "uniform" else index % len(chosen)
        chosen = [*rest[:place], first, *rest[place:]]
    blocks = [DOCUMENT.format(number=i, text=source.documents[d]) for i, d in enumerate(chosen, start=1)]
    prompt = QUESTION.format(context="\n\n".join(blocks), query=question.query)
    return prompt, list(question.answers), prompt.index(blocks[chosen.index(first)])


def made_up(two_hops: bool = False) -> Questions:
    """People who do not exist: where they live, what they do. With `two_hops`, the question goes over a friend of
    theirs."""
    rng = random.Random(f"made-up/{two_hops}")
    names = rng.sample(NAMES, MADE_UP)
    facts = [[rng.choice(values) for _, _, values in ATTRIBUTES] for _ in names]
    texts, found = [], []
    for i, name in enumerate(names):
        friend = (i + 1) % len(names)
        said = [sentence.format(name, value) for (sentence, _, _), value in zip(ATTRIBUTES, facts[i], strict=True)]
        if two_hops:
            said.insert(0, f"The best friend of {name} is {names[friend]}.")
        texts.append(" ".join(said))
        about = i % len(ATTRIBUTES)
        who = f"the best friend of {name}" if two_hops else name
        gold = (i, friend) if two_hops else (i,)
        answer = facts[friend if two_hops else i][about]
        found.append(Question(ATTRIBUTES[about][1].format(who), (answer,), gold))
    return Questions("made-up people" + (", two hops" if two_hops else ""), tuple(texts), tuple(found))


def read(path: str | Path) -> Questions:
    """Questions of a SQuAD v1.1 / v2.0 or HotpotQA file. UsageError, one line, for anything else."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: larger than {LARGEST >> 20} MiB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}): expected a SQuAD or HotpotQA file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: is not JSON: expected a SQuAD or HotpotQA file") from None
    try:
        made = _squad(found) if isinstance(found, dict) else _hotpot(found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{path}: expected SQuAD (data, paragraphs, context, qas) or HotpotQA (question, answer, context): "
            f"{type(error).__name__} at {str(error)[:60]}"
        ) from None
    if not made[1]:
        raise UsageError(f"{path}: holds no question that has an answer")
    return Questions(path.name, *made)


def _squad(found: dict[str, Any]) -> tuple[tuple[str, ...], tuple[Question, ...]]:
    texts = sorted({str(p["context"]) for article in found["data"] for p in article["paragraphs"]})
    number = {text: i for i, text in enumerate(texts)}
    questions = []
    for article in found["data"]:
        same = tuple(dict.fromkeys(number[p["context"]] for p in article["paragraphs"]))
        for paragraph in article["paragraphs"]:
            gold = number[paragraph["context"]]
            for asked in paragraph["qas"]:
                if asked.get("is_impossible") or not asked["answers"]:
                    continue
                answers = tuple(dict.fromkeys(str(a["text"]) for a in asked["answers"]))
                questions.append(
                    Question(str(asked["question"]), answers, (gold,), tuple(d for d in same if d != gold))
                )
    return tuple(texts), tuple(questions)


def _hotpot(found: list[Any]) -> tuple[tuple[str, ...], tuple[Question, ...]]:
    def texts_of(row: dict[str, Any]) -> list[str]:
        return [f"{title}\n{''.join(parts)}" for title, parts in row["context"]]

    texts = sorted({text for row in found for text in texts_of(row)})
    number = {text: i for i, text in enumerate(texts)}
    questions = []
    for row in found:
        supporting = {title for title, *_ in row.get("supporting_facts", [])}
        own = sorted(
            texts_of(row), key=lambda text: text.partition("\n")[0] not in supporting
        )  # what answers comes first
        questions.append(
            Question(str(row["question"]), (str(row["answer"]),), tuple(dict.fromkeys(number[t] for t in own)))
        )
    return tuple(texts), tuple(questions)
