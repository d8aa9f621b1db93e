"""Rounds of kills: a sweep is started, its processes are killed at random moments or at chosen calls, and it is
judged."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fault_hooks as hooks
from fault_scenarios import sync
from fault_sweeps import Case, kill

OUTSIDE = ("worker", "parent", "both")
WAIT = 20.0
"""Seconds an armed kill may wait for its call before it is taken back."""


def deck(draw: random.Random) -> list[tuple[str, str]]:
    """Kinds in random order, each often enough that a campaign of 200 has some of all."""
    cards = [("outside", whom) for whom in OUTSIDE] * 4
    cards += [("worker", point) for point in hooks.POINTS["worker"]] * 2
    draw.shuffle(cards)
    return cards


class Round:
    """`kills` kills of one sweep with `parents` commands at once, then the sweep to its end. `counts`: kills by kind.

    cards: what to do next, drawn from the front and filled up when empty. Besides, the first parent is told to kill
    itself at a call of its own, which comes at the beginning (manifest) or at the end (report) of a sweep.
    """

    def __init__(
        self, case: Case, kills: int, draw: random.Random, cards: list[tuple[str, str]], parents: int = 1
    ) -> None:
        self.case, self.kills, self.draw, self.cards, self.at_once = case, kills, draw, cards, parents
        self.counts: Counter[str] = Counter()
        self.armed: tuple[Path, str] | None = None

    def run(self, reference: dict[str, Any]) -> dict[str, int]:
        """Broken at the first invariant that does not hold."""
        try:
            self._parent()
            self._fill()
            while sum(self.counts.values()) < self.kills and self._going():
                time.sleep(self.draw.uniform(0.0, 0.35))
                source, what = self._card()
                self.outside(what) if source == "outside" else self.inside(what)
                self._collect()
                self.case.check()
                self._fill()
            self.case.wait()
            self._collect()
            self._parent(end=True)
            self.case.finish()
            self._collect()
            counts = self.case.judge(reference)
            if self.case.mlflow:
                sync(self.case)  # what a killed writer or a busy database kept from the store, as the runs have said
            return counts
        finally:
            self.case.stop()

    def _card(self) -> tuple[str, str]:
        while True:
            for number, card in enumerate(self.cards):
                if self.case.mlflow or card[1] != "mlflow-write":
                    return self.cards.pop(number)
            self.cards += deck(self.draw)

    def _parent(self, end: bool = False) -> None:
        points = [p for p in hooks.POINTS["parent"] if self.case.mlflow or p != "mlflow-write"]
        point = "report-write" if end else self.draw.choice(points)
        if self.armed is None:
            when = self.draw.choice(_moments(point))
            self.armed = hooks.arm(self.case.folder, "parent", point, 1, when), f"{point} (parent), {when}"

    def _collect(self) -> None:
        if self.armed is not None and not self.armed[0].exists():
            self.counts[self.armed[1]] += 1
            self.armed = None

    def _fill(self) -> None:
        self.case.reap()
        while len(self.case.parents) < self.at_once:
            self.case.start()

    def _going(self) -> bool:
        """Whether something is left to train: a complete sweep is not killed for ever."""
        return len(self.case.before) < len(self.case.seeds.split(",")) * 3

    def outside(self, whom: str) -> None:
        victims: list[int] = []
        deadline = time.monotonic() + WAIT
        workers: list[int] = []
        while whom != "parent" and not workers and time.monotonic() < deadline and self.case.parents:
            workers = self.case.workers()
            time.sleep(0.02)
        if whom in ("worker", "both") and workers:
            victims += workers if whom == "both" else [self.draw.choice(workers)]
        if whom in ("parent", "both"):
            parents = sorted(self.case.parents)
            victims += parents if whom == "both" else parents[:1] if parents else []
        killed = [kill(pid) for pid in victims]
        if any(killed):
            self.counts[whom] += 1
            self.case.journal.write("kill", whom, len(killed))
        self._settle()

    def inside(self, point: str) -> None:
        when = self.draw.choice(_moments(point))
        number = self.draw.randint(1, 6 if point in ("metrics-append", "checkpoint-rename", "checkpoint-write") else 2)
        armed = hooks.arm(self.case.folder, "worker", point, number, when)
        deadline = time.monotonic() + WAIT
        while armed.exists() and time.monotonic() < deadline and self.case.parents:
            self.case.reap()
            time.sleep(0.02)
        try:
            armed.unlink()
        except FileNotFoundError:
            self.counts[f"{point}, {when}"] += 1
            self._settle()

    def _settle(self) -> None:
        time.sleep(0.05)
        self.case.reap()


def _moments(point: str) -> tuple[str, ...]:
    if point == "mlflow-write":
        return ("during",)
    whole = ("checkpoint-rename", "checkpoint-delete", "folder-create", "checkpoint-write")
    return ("before", "after") if point in whole else ("before", "half", "after")
