"""Tokenizers: text to tokens and back. `data.tokenizer` names one; bytes is the default and needs nothing.

    bytes              tokens 0-255 are the bytes of UTF-8 text
    bpe                byte-level BPE of `data.vocabulary` tokens, trained on the run's own training split
    PATH               a tokenizer.json (the format of the `tokenizers` library), or a folder that holds one
    NAME               a tokenizer of the Hugging Face hub, such as gpt2 or owner/name

A run keeps the tokenizer.json it was trained with, and its content, not its name or place, is part of the run's
identity.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmctl.data.corpus import Part
from mmctl.data.vocabulary import BYTES
from mmctl.errors import UsageError

if TYPE_CHECKING:
    from mmctl.runs import RunFolder

FILE = "tokenizer.json"
"""Name of the tokenizer's file in a run's folder."""


class Stream:
    """Tokens to text as they come. Letters come out whole: what is incomplete is held back."""

    def push(self, token: int) -> str:
        """The text that this token makes certain, often "" in the middle of a letter."""
        raise NotImplementedError

    def flush(self) -> str:
        """What was held back, incomplete letters as U+FFFD."""
        raise NotImplementedError


class Tokenizer:
    """Text to tokens and back."""

    name: str
    size: int
    """Tokens are numbers below this."""
    sha256: str | None = None
    """Hash of the tokenizer's content; None for bytes, which cannot differ."""

    def encode(self, text: str) -> list[int]:
        """Tokens of `text`, without special tokens. Bytes that are no UTF-8 stand in it as surrogates (PEP 383)."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`; what is no UTF-8 becomes U+FFFD."""
        stream = self.stream()
        return "".join(map(stream.push, tokens)) + stream.flush()

    def stream(self, prompt: Sequence[int] = ()) -> Stream:
        """A stream of what follows `prompt`, whose own text is not repeated."""
        raise NotImplementedError

    def documents(self, contents: Sequence[bytes]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each UTF-8 document: its tokens (N,), and how many of its bytes each stands for (N,); these sum to its
        size.

        An incomplete letter at either end of a document (one cut to divide a corpus) is left out.
        """
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write `FILE` into a run's folder; bytes need none."""


def byte_of(token: int) -> bytes | None:
    return bytes([token]) if token < BYTES else None


class Bytes(Tokenizer):
    """Bytes of UTF-8. Tokens from 256 on are symbols of the synthetic tasks, shown as <256>."""

    name = "bytes"
    size = BYTES

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogateescape"))

    def stream(self, prompt: Sequence[int] = ()) -> Stream:
        return ByteStream()

    def documents(self, contents: Sequence[bytes]) -> list[tuple[np.ndarray, np.ndarray]]:
        streams = [np.frombuffer(content, dtype=np.uint8) for content in contents]
        return [(stream, np.ones(len(stream), dtype=np.int32)) for stream in streams]


class ByteStream(Stream):
    """Bytes as they come. `content`: the bytes of a token, None for one that is no text."""

    def __init__(self, content: Callable[[int], bytes | None] = byte_of) -> None:
        self.content = content
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        content = self.content(token)
        return f"{self.flush()}<{token}>" if content is None else self.decoder.decode(content)

    def flush(self) -> str:
        text = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return text


@dataclass
class Tokens:
    """Concatenated documents in tokens."""

    stream: np.ndarray
    """(N,) integers."""
    starts: np.ndarray
    """(D,) int64: where each document starts, ascending from 0."""
    sizes: np.ndarray | None = None
    """(N,) int32: how many bytes each token stands for; None: one each."""


_tokens: dict[tuple[int, str], tuple[Part, Tokens]] = {}


def tokens_of(part: Part, tokenizer: Tokenizer) -> Tokens:
    """A part of a corpus in tokens, made once a process. Nothing joins the end of a document to the next."""
    if tokenizer.sha256 is None:
        return Tokens(part.stream, part.starts)
    key = id(part), tokenizer.sha256
    if key not in _tokens:
        ends = [*part.starts[1:], len(part.stream)]
        contents = [part.stream[a:b].tobytes() for a, b in zip(part.starts, ends, strict=True)]
        documents = [document for document in tokenizer.documents(contents) if len(document[0])]
        counts = np.array([len(ids) for ids, _ in documents], dtype=np.int64)
        stream, sizes = (np.concatenate([d[i] for d in documents] or [np.zeros(0, np.int32)]) for i in (0, 1))
        # The part is kept with its tokens, so that no other one can take its id.
        _tokens[key] = part, Tokens(stream, np.cumsum(counts) - counts, sizes)
    return _tokens[key][1]


def load_tokenizer(data: Any) -> Tokenizer:
    """The tokenizer that `data` (a DataConfig) asks for, made or read once a process.

    UsageError, one line naming data.tokenizer, when there is none or when it has more tokens than data.vocabulary.
    """
    if data.tokenizer == "bytes":
        found: Tokenizer = Bytes()
    else:
        from mmctl.data import subword

        found = subword.trained(data) if data.tokenizer == "bpe" else subword.load(data.tokenizer)
    if found.size > data.vocabulary:
        what = "the bytes of text" if found.sha256 is None else f'the tokens of data.tokenizer="{data.tokenizer}"'
        raise UsageError(f"data.vocabulary={data.vocabulary}: expected at least {found.size}, {what}")
    return found


def run_tokenizer(run: RunFolder) -> Tokenizer:
    """The tokenizer that a run was trained with."""
    return load_tokenizer(run.config().data)
