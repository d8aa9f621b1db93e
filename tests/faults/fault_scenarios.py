"""Faults that are no kills: full disks, read-only folders, a store that is locked or deleted, damage, clocks, doubles.

Each scenario leaves its sweep complete and judged, and returns one line on what happened; `Skipped` says what this
machine does not allow.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fault_checks as checks
import fault_damage as damage
import warm_start
from fault_sweeps import STEPS, Case, kill

NEWNS = 0x20000
private = threading.Event()
"""Set once this process has mounts of its own."""


class Skipped(Exception):
    """This machine does not allow the fault; the message says why."""


def own_mounts() -> bool:
    """Give this process mounts of its own, which end with it; whether that is allowed (it is to root, mostly)."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEWNS):
        return False
    if subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True).returncode == 0:
        private.set()
    return private.is_set()


@contextlib.contextmanager
def mounted(*words: str) -> Iterator[None]:
    """`mount WORDS`, the last of which is the place, until the end. Skipped where that is not allowed."""
    if not private.is_set():
        raise Skipped("no mounts of our own (unshare is not allowed)")
    done = subprocess.run(["mount", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise Skipped(f"mount is not allowed: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", words[-1]], check=False, capture_output=True)


def until(condition: Callable[[], Any], case: Case, seconds: float = 120.0) -> None:
    """Wait while the sweep goes on. Broken if it ends, or nothing comes of it."""
    deadline = time.monotonic() + seconds
    while not condition():
        case.reap()
        if not case.parents or time.monotonic() > deadline:
            raise checks.Broken(f"{case.folder.name}: the sweep {'ended' if not case.parents else 'hangs'} too early")
        time.sleep(0.02)


def seen(case: Case, event: str, times: int = 1) -> bool:
    return sum(words[1] == event for words in case.journal.read()) >= times


def full_disk(case: Case, reference: Any, _: Any) -> str:
    """The disk is full while runs train: they fail, what is finished stays; with space again, the rest is made."""
    case.root.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(case.root)):
        case.start()
        until(lambda: len(checks.finished(case.root)) >= 2, case)
        case.check()
        filler = case.root / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        (code,) = case.wait()
        case.check()
        left = len(reference) - len(case.before)
        if not left or code != 1:
            raise checks.Broken(f"full disk: {left} runs left, exit code {code}; expected some and 1")
        if "No space left" not in (case.folder / "log").read_text():
            raise checks.Broken("full disk: it was not said")
        filler.unlink()
        case.start("--retry-failed")
        case.wait()
        case.finish()
        case.judge(reference)
    return (
        f"{left} of {len(reference)} runs stopped by it, {len(case.before) - left} kept; complete once there was space"
    )


def read_only(case: Case, reference: Any, _: Any) -> str:
    """The folder of runs becomes read-only between two commands: the second ends in one line and changes nothing."""
    case.start()
    until(lambda: len(checks.finished(case.root)) >= 2, case)
    case.stop()
    case.check()
    with mounted("--bind", str(case.root), str(case.root)):
        again = ["mount", "-o", "remount,ro,bind", str(case.root)]
        if subprocess.run(again, check=False, capture_output=True).returncode:
            raise Skipped("a bind mount cannot be made read-only")
        case.start()
        (code,) = case.wait()
        case.check()
        if code != 1 or "Read-only" not in (case.folder / "log").read_text():
            raise checks.Broken(f"read-only folder: exit code {code}, or not said")
    case.finish()
    case.judge(reference)
    return "exit code 1, one line, nothing changed; complete once it was writable"


def sync(case: Case) -> None:
    words = ["runs", "sync", "--runs", str(case.root)]
    pid = warm_start.command(words, case.folder / "log", lambda: None, lambda: None)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise checks.Broken("runs sync failed")
    checks.mirrored(case.root, STEPS)


def store_locked(case: Case, reference: Any, campaign: Any) -> str:
    """Another process holds the database from the first step to the end: training goes on, `sync` catches up."""
    campaign.store(case)
    case.start()
    until(lambda: seen(case, "step"), case)
    connection = sqlite3.connect(case.root / "mlflow.db", timeout=60)
    connection.execute("begin exclusive")
    try:
        case.wait(400)
    finally:
        connection.rollback()
        connection.close()
    case.finish()
    case.judge(reference)
    sync(case)
    return "all trained while it was locked; the store complete after sync"


def store_deleted(case: Case, reference: Any, campaign: Any) -> str:
    """The database is deleted while runs train: training goes on, the store is made anew."""
    campaign.store(case)
    case.start()
    until(lambda: seen(case, "step", 10), case)
    for path in case.root.glob("mlflow.db*"):
        path.unlink()
    case.wait(400)
    case.finish()
    case.judge(reference)
    sync(case)
    return "all trained; the store complete after sync"


def clock_jumps(case: Case, reference: Any, _: Any) -> str:
    """time.time() of every worker jumps by up to 23 days in either direction, at every fifth step or so; with a
    kill."""
    case.clock = 1
    case.start()
    until(lambda: seen(case, "step", 30), case)
    for pid in case.workers():
        kill(pid)
    case.wait()
    case.finish()
    case.judge(reference)
    return "complete; both workers killed once"


def doubles(case: Case, reference: Any, _: Any) -> str:
    """Three of the same command in the same moment share the runs."""
    for _number in range(3):
        case.start()
    codes = case.wait()
    if codes != [0, 0, 0]:
        raise checks.Broken(f"duplicate starts: exit codes {codes}")
    counts = case.judge(reference)
    if counts["starts"] != len(reference) or counts["steps_again"]:
        raise checks.Broken(f"duplicate starts: {counts}")
    by = {pid for pid, event, *_ in case.journal.read() if event == "begin"}
    return f"three commands, exit codes 0, each run begun once, by {len(by)} workers"


def damaged(case: Case, reference: Any, _: Any) -> str:
    """Half-way, everything is killed and files of unfinished and finished runs are damaged; the same command goes
    on."""
    done = []
    for name, harm in damage.KINDS.items():
        mine = Case(case.folder / name.replace(" ", "-"), "0")
        try:
            _damage_one(mine, harm, reference)
            done.append(name)
        except checks.Broken as error:
            raise checks.Broken(f"{name}: {error}") from None
        finally:
            mine.stop()
    return f"{len(done)} kinds of damage, each mended: {', '.join(done)}"


def _damage_one(case: Case, harm: Callable[[Case], None], reference: Any) -> None:
    case.start()
    until(lambda: damage.ready(case), case)
    case.stop()
    harm(case)
    case.start("--retry-failed")
    case.wait()
    case.finish()
    case.judge({k: v for k, v in reference.items() if k.endswith("seed0")})


def real_commands(case: Case, reference: Any, campaign: Any) -> str:
    """As a user types it, workers started anew: five kills, of worker, parent and both."""
    command = [sys.executable, "-m", "mmctl", *case.command()]
    done = 0
    for kind in ("both", "parent", "both", "parent", "worker"):
        with open(case.folder / "log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        before, deadline = written(case), time.monotonic() + 120
        while written(case) < before + 4000 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = _children(process.pid)
        victims = {"worker": workers[:1], "parent": [process.pid], "both": [process.pid, *workers]}[kind]
        if process.poll() is None and any([kill(pid) for pid in victims]):
            campaign.kills[f"{kind} (real command)"] += 1
            done += 1
        process.wait(300)
        case.check()
    for _number in range(3):
        with open(case.folder / "log", "ab") as log:
            code = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False).returncode
        if code == 0:
            break
    case.check()
    checks.same(case.root, reference)
    if code:
        raise checks.Broken(f"real commands: exit code {code} at last")
    return f"{done} kills; complete and the same"


def written(case: Case) -> int:
    """Bytes of metrics that the sweep's runs have by now."""
    return sum(path.stat().st_size for path in case.root.glob("*/seed*/metrics.jsonl"))


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


SCENARIOS: dict[str, Callable[[Case, Any, Any], str]] = {
    "duplicate-starts": doubles,
    "full-disk": full_disk,
    "read-only-folder": read_only,
    "clock-jumps": clock_jumps,
    "store-deleted": store_deleted,
    "real-commands": real_commands,
    "store-locked": store_locked,
    "damaged-files": damaged,
}
SMALL = ("store-deleted", "store-locked", "real-commands")
"""With one seed: three runs."""
MLFLOW = ("store-deleted", "store-locked")
