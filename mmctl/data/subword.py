"""Subword tokenizers, through the `tokenizers` library: BPE trained here, and any tokenizer.json."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mmctl.data.corpus import Corpus, load_corpus
from mmctl.data.tokenizers import FILE, ByteStream, Stream, Tokenizer
from mmctl.errors import MmctlError, UsageError, first_line

REPLACEMENT = "\ufffd"
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_OF = {chr(b): b for b in PRINTABLE} | {
    chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in PRINTABLE)
}
"""Byte-level tokenizers write each byte as one printable letter (the convention of GPT-2)."""
CONTEXT = 8
"""Tokens of the prompt that a stream decodes along with what follows: some decoders join words by what stands
before."""


class Subword(Tokenizer):
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        """`tokenizer`: a tokenizers.Tokenizer; its truncation and padding are turned off."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.inner = tokenizer
        self.name = name
        self.content = json.dumps(json.loads(tokenizer.to_str()), sort_keys=True, ensure_ascii=False, indent=1)
        self.sha256 = hashlib.sha256(self.content.encode()).hexdigest()
        self.bytewise = (json.loads(self.content).get("decoder") or {}).get("type") == "ByteLevel"
        self.size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            wrong = ord(text[error.start]) & 0xFF
            raise UsageError(
                f"the text is not UTF-8 (byte 0x{wrong:02x} at letter {error.start}); only data.tokenizer=bytes reads it"
            ) from None
        return self.inner.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        if self.bytewise:
            return super().decode(tokens)
        return self.inner.decode(list(tokens), skip_special_tokens=False)

    def stream(self, prompt: Sequence[int] = ()) -> Stream:
        return ByteStream(self.bytes_of) if self.bytewise else SubwordStream(self, list(prompt)[-CONTEXT:])

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of a byte-level token; None where there is no such token."""
        content = self.inner.id_to_token(token)
        if content is None:
            return None
        return bytes(BYTE_OF[c] for c in content) if BYTE_OF.keys() >= set(content) else content.encode()

    def documents(self, contents: Sequence[bytes]) -> list[tuple[np.ndarray, np.ndarray]]:
        texts = [content.decode("utf-8", "ignore") for content in contents]
        encoded = self.inner.encode_batch(texts, add_special_tokens=False)
        return [
            (np.array(e.ids, dtype=np.int32), byte_sizes(text, [end for _, end in e.offsets]))
            for text, e in zip(texts, encoded, strict=True)
        ]

    def save(self, folder: Path) -> None:
        from mmctl.runs import files

        if not (folder / FILE).exists():
            files.write_text(folder / FILE, self.content + "\n")


def byte_sizes(text: str, ends: Sequence[int]) -> np.ndarray:
    """How many bytes of `text` each token stands for: from the end of those before it to its own end (in characters).

    They sum to the text's bytes: the last token also stands for what no token covers (white space some tokenizers
    drop).
    """
    if not ends:
        return np.zeros(0, dtype=np.int32)
    reached = np.maximum.accumulate(np.asarray(ends, dtype=np.int64))
    reached[-1] = len(text)
    if not text.isascii():
        letters = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        widths = 1 + (letters >= 0x80) + (letters >= 0x800) + (letters >= 0x10000)
        reached = np.concatenate([[0], np.cumsum(widths)])[reached]
    return np.diff(reached, prepend=0).astype(np.int32)


class SubwordStream(Stream):
    """Decodes the newest tokens together with a few before them; text that ends in U+FFFD may be half a letter."""

    def __init__(self, tokenizer: Subword, context: list[int]) -> None:
        self.tokenizer = tokenizer
        self.tokens = context
        self.shown = tokenizer.decode(context)
        """Text of `tokens` that has been given out."""
        self.known = len(context)
        """How many of `tokens` that is."""

    def push(self, token: int) -> str:
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens)
        if text.endswith(REPLACEMENT) and len(self.tokens) - self.known < 4:  # no letter has more than four bytes
            return ""
        return self._give(text)

    def flush(self) -> str:
        return self._give(self.tokenizer.decode(self.tokens))

    def _give(self, text: str) -> str:
        same = next((i for i, (a, b) in enumerate(zip(text, self.shown, strict=False)) if a != b), len(self.shown))
        # Only what was added just now is needed as context of what follows.
        self.tokens = self.tokens[-CONTEXT:]
        self.shown, self.known = self.tokenizer.decode(self.tokens), len(self.tokens)
        return text[same:]


def load(name: str) -> Subword:
    """The tokenizer of a tokenizer.json, a folder with one, or the Hugging Face hub (its local cache first).

    UsageError in one line naming data.tokenizer when there is none such, or the hub cannot be reached.
    """
    said = f'data.tokenizer="{name}"'
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    try:
        if path.is_dir():
            path = path / FILE
            if not path.is_file():
                raise UsageError(f"{said}: the folder holds no {FILE}")
        if path.is_file():
            return _read(str(path), path.stat().st_mtime_ns)
    except MmctlError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"{said}: not a {FILE} of the tokenizers library ({first_line(error)[:200]})") from None
    if path.is_absolute() or name.startswith(("~", ".")) or name.endswith(".json") or name.count("/") > 1:
        raise UsageError(f"{said}: no such file or folder")
    if close := difflib.get_close_matches(name.lower(), ("bytes", "bpe"), n=1, cutoff=0.7):
        raise UsageError(f'{said}: no such tokenizer; did you mean "{close[0]}"?')
    try:
        return _fetch(name)
    except Exception as error:
        raise UsageError(
            f"{said}: no file or folder of that name, and not to be had from the Hugging Face hub "
            f"({type(error).__name__}: {first_line(error)[:200]})"
        ) from None


@lru_cache(maxsize=8)
def _read(path: str, changed: int) -> Subword:
    """A file as it was at `changed`; the library raises bare Exception."""
    import tokenizers

    return Subword(tokenizers.Tokenizer.from_file(path), path)


@lru_cache(maxsize=8)
def _fetch(name: str) -> Subword:
    """From the hub's local cache, else from the hub."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        path = hf_hub_download(name, FILE, local_files_only=True)
    except LocalEntryNotFoundError:
        get_hf_file_metadata(hf_hub_url(name, FILE), timeout=10)  # fails at once, where a download tries for long
        path = hf_hub_download(name, FILE)
    return Subword(_read(path, 0).inner, name)


def trained(data: Any) -> Subword:
    """Byte-level BPE of at most data.vocabulary tokens, trained on the training split of data.text. A pure function of
    that split, the size and the library's version."""
    return _trained(load_corpus(data.text, data.tasks.text.held_out), data.vocabulary)


_made: dict[tuple[str, int], Subword] = {}


def _trained(corpus: Corpus, size: int) -> Subword:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if (corpus.sha256, size) in _made:
        return _made[corpus.sha256, size]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if size <= len(alphabet):
        raise UsageError(
            f"data.vocabulary={size}: expected more than {len(alphabet)}, the bytes that data.tokenizer=bpe starts from"
        )
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    part = corpus.train
    ends = [*part.starts[1:], len(part.stream)]
    texts = (part.stream[a:b].tobytes().decode("utf-8", "ignore") for a, b in zip(part.starts, ends, strict=True))
    made.train_from_iterator(texts, trainer)
    _made[corpus.sha256, size] = Subword(made, "bpe")
    return _made[corpus.sha256, size]
