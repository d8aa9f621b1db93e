"""`passkey`: a number hidden in repeated text, asked for at the end. Both published variants (protocols.md, section
1.3).

`stuffed-mamba` (thunlp/stuffed-mamba, passkey-retrieval/passkey.py): a 5-digit key in a line of its own between blocks
of the repeated sentences. `landmark` (epfml/landmark-attention, llama/run_test.py): a key of 1 to 50000, the repeated
sentences cut at any character. Bytes take the place of the published tokenizers; the space after the question belongs
to the prompt.

A model trained on passkey itself finds keys by training, not by memory: use it to evaluate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmctl.data.answers import answer_scores, answered, readable
from mmctl.data.task import Batch, Ratio, Split, Task, TaskConfig
from mmctl.errors import UsageError, nearest

GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
VARIANTS = ("stuffed-mamba", "landmark")


@dataclass
class PasskeyConfig(TaskConfig):
    """Which published prompt."""

    variant: str = "stuffed-mamba"
    """stuffed-mamba or landmark."""

    def validate(self, prefix: str) -> None:
        if self.variant not in VARIANTS:
            raise UsageError(
                f'{prefix}variant="{self.variant}": expected one of {", ".join(VARIANTS)}{nearest(self.variant, VARIANTS)}'
            )


class Passkey(Task):
    """Prompts as long as data.length allows; the key at a depth drawn uniformly."""

    name = "passkey"
    dimension = "new-knowledge"
    Config = PasskeyConfig
    config: PasskeyConfig

    def check_length(self, length: int) -> None:
        if length < self.shortest:
            raise UsageError(
                f"data.length={length}: passkey ({self.config.variant}) needs at least {self.shortest} tokens (bytes)"
            )

    @property
    def shortest(self) -> int:
        """Bytes of a prompt with its answer and next to no text around the key; the last byte is not read."""
        digits, blocks = 5, 2 * len(GRASS + "\n") if self.config.variant == "stuffed-mamba" else 0
        return len(self._prompt(0, "0" * digits, blocks)) + digits - 1

    def sample(self, rng: np.random.Generator, count: int, length: int, split: Split) -> Batch:
        """extras["depth"]: fifth of the text in which the key stands."""
        texts, depths = [], []
        for _ in range(count):
            depth = float(rng.random())
            if self.config.variant == "stuffed-mamba":
                key = f"{int(rng.integers(100_000)):05d}"
            else:
                key = str(int(rng.integers(1, 50_001)))
            room = length + 1 - len(self._prompt(0, key, 0)) - len(key)
            texts.append((self._prompt(depth, key, room).encode(), key.encode()))
            depths.append(depth)
        return answered(texts, length, depths)

    def _prompt(self, depth: float, key: str, room: int) -> str:
        """The prompt with at most `room` characters of text around the key."""
        if self.config.variant == "stuffed-mamba":
            block = GRASS + "\n"
            blocks = [block] * (room // len(block))
            blocks.insert(
                int(depth * max(0, len(blocks) - 1)), f"The passkey is {key}. Remember it. {key} is the passkey.\n"
            )
            return (
                "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it.\n\n"
                + "".join(blocks)
                + "\nWhat is the pass key? The passkey is "
            )
        before = int(depth * room)
        text = (GRASS + " ") * (room // len(GRASS) + 1)
        return "\n".join(
            [
                "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
                "I will quiz you about the important information there.",
                text[:before],
                f"The pass key is {key}. Remember it. {key} is the pass key.",
                text[: room - before],
                "What is the pass key? The pass key is ",
            ]
        )

    def scores(self, batch: Batch, losses: np.ndarray, correct: np.ndarray) -> dict[str, Ratio]:
        """`accuracy`: the whole key, as published."""
        return answer_scores(batch, losses, correct)

    def chance(self, length: int) -> float:
        """A key picked blindly."""
        return 1e-5 if self.config.variant == "stuffed-mamba" else 1 / 50_000

    def word(self, token: int) -> str:
        return readable(token)
