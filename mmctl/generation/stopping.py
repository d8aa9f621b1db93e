"""Stop strings in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence


class Stopper:
    """Passes text on until a stop string is complete; what may yet become one is held back. The stop string itself, and
    all after it, is never passed on. Of several, the one that is complete first rules, however the text is cut in
    pieces.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stop = [s for s in stop if s]
        self.held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """The part of the text so far that is certain by now and was not returned before."""
        if self.stopped:
            return ""
        text = self.held + piece
        found = [(at + len(s), at) for at, s in ((text.find(s), s) for s in self.stop) if at >= 0]
        if found:
            self.stopped, self.held = True, ""
            return text[: min(found)[1]]
        keep = max((self._overlap(text, s) for s in self.stop), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What is held back, once nothing more comes."""
        text, self.held = self.held, ""
        return text

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
