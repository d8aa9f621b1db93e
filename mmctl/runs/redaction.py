"""The one place that takes secrets out of what is written down, shown or sent: logs, provenance, overrides, MLflow.

Four things count as a secret: the user:password of a URL, the value of a key that is called one (token=..., --password
...), what has the form of a well-known service's token, and the values of environment variables that are called one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

HIDDEN = "***"
SHORTEST = 6
"""Characters from which on a value of the environment is looked for: a shorter one stands in too many innocent
words."""
_WORDS = (
    r"pass(?:word|wd|phrase)|secret(?:[_-]?(?:access[_-]?)?key)?|(?:auth|access|refresh|bearer|api)?[_-]?token"
    r"|(?:api|access|private)[_-]?key|credentials?"
)
_KEY = re.compile(rf"(?i)((?<![a-z])(?:{_WORDS})[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&,;\"']+)")
_QUOTED_KEY = re.compile(rf"(?i)((?<![a-z])(?:{_WORDS})[\"']?\s*[=:]\s*)(\"[^\"\n]+\"|'[^'\n]+')")
_BEARER = re.compile(r"(?i)(\b(?:authorization\s*[:=]\s*)?(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}")
_OPTION = re.compile(rf"(?i)--?(?:[\w-]+[_-])?(?:{_WORDS})")
_SERVICES = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|dapi[0-9a-f]{32}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
# The authority of a URL ends at the first / ? or #; a password may hold them unescaped, and then starts after a colon
# that no port follows.
_USER = re.compile(r"(\w://)(?:[^/?#\s\"'<>]*@|[^/?#@:\s]*:(?!\d+(?:[/?#\s]|$))[^\s\"'<>]*@)")
_SECRET_NAME = re.compile(rf"(?i)(?:^|_)(?:{_WORDS}|pwd|pat|dsn)(?:$|_(?!file$|path$))")


def redact(text: str, *, code: bool = False) -> str:
    """`text` with *** for every secret in it. In `code` a name such as token is also a variable's: there only a quoted
    text is taken for a secret."""
    for value in _environment():
        text = text.replace(value, HIDDEN)
    text = _SERVICES.sub(HIDDEN, _BEARER.sub(rf"\1{HIDDEN}", redact_urls(text)))
    return (_QUOTED_KEY if code else _KEY).sub(rf"\1{HIDDEN}", text)


def redact_urls(text: str) -> str:
    """`text` without the user:password part of its URLs."""
    return _USER.sub(rf"\1{HIDDEN}@", text)


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line; the word after `--token` and the like is a secret as well."""
    shown: list[str] = []
    hide = False
    for argument in arguments:
        shown.append(HIDDEN if hide else redact(argument))
        hide = not hide and _OPTION.fullmatch(argument) is not None
    return shown


def _environment() -> list[str]:
    """Secret values of the environment, longest first, so that one that holds another goes whole."""
    found: set[str] = set()
    for name, value in os.environ.items():
        if "://" in value:
            found |= _passwords(value)
        elif _SECRET_NAME.search(name) and not value.startswith(("/", "~")):
            found.add(value.strip())
    return sorted((v for v in found if len(v) >= SHORTEST and not v.isdigit()), key=len, reverse=True)


def _passwords(url: str) -> set[str]:
    try:
        password = urlsplit(url.strip()).password or ""
    except ValueError:
        return set()
    # A password such as "mlflow" is a word that stands in harmless places too.
    return {word for word in (password, unquote(password)) if not (word.isalpha() and word.islower())}
