"""Parent runs: one run of the store for an ablation, whose children are the runs it trained.

What a parent is called, its numbers and its files are also kept in `<sweep folder>/mlflow.json`, so that it can be made
again in another store and its children find it there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs import contents, files, names
from mmctl.runs.lock import say, waiting_lock
from mmctl.runs.process import Owner
from mmctl.runs.redaction import redact
from mmctl.runs.store import (
    Store,
    clean_key,
    connect,
    explained,
    files_there,
    finite,
    milliseconds,
    run_by_tag,
)

STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class Parent:
    """A parent run. The store being down never raises: it is said once, the record is kept, and `sync` sends it."""

    def __init__(self, root: Path, folder: Path, name: str, tags: Mapping[str, str] | None = None) -> None:
        self.root, self.folder, self.name = root, folder, name
        self._said = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.WriteError(f"cannot write in {folder}: {error.strerror or error}") from error
        told = {key: redact(value)[:5000] for key, value in (tags or {}).items()}
        self._update(lambda record: record["tags"].update(told))

    @property
    def run_id(self) -> str:
        """What children are given as `parent_run_id`. A place holder that `resolve` understands while the store is
        down."""
        record = self._read()
        return record["ids"][-1] if record["ids"] else record["pending"]

    def metrics(self, values: Mapping[str, float], send: bool = True) -> None:
        """Scores of the ablation; the last value of a name counts."""
        now = int(time.time() * 1000)

        def add(record: dict[str, Any]) -> None:
            for key, value in values.items():
                points = record["metrics"].setdefault(key, [])
                if finite(value) and (not points or points[-1][0] != value):
                    points.append([float(value), now])

        self._update(add)
        if send:
            self._try()

    def artifacts(self, paths: Iterable[Path], place: str | None = None, send: bool = True) -> None:
        """Figures, tables and reports, sent under `place`/. ValueError for a file that is not under the folder of
        runs."""
        mine = {contents.kept_path(self.root, path): place for path in paths}
        self._update(lambda record: record["artifacts"].update(mine))
        if send:
            self._try()

    def finish(self, state: str = "finished") -> None:
        """finished | failed | interrupted."""
        if state not in STATUS:
            raise ValueError(f"{state!r} is no state of a parent run")
        self._update(lambda record: record.update(state=state, ended=time.time()))
        self._try()

    def start(self) -> Parent:
        self._update(lambda record: record.update(state="running", owner=Owner.me().record()))
        self._try()
        return self

    def _try(self) -> None:
        try:
            self.send(connect(self.root))
        except MmctlError as error:
            if not self._said:
                say(f'{error}; going on without it, "mmctl runs sync" catches up')
            self._said = True

    def send(self, store: Store, mend: bool = False) -> str:
        """Bring the store up to the record; returns the run's id there. StoreError.

        mend: files that the store was sent are looked for there, and sent again if it has lost them.
        """
        record = self._read()
        with explained(store.uri):
            found = run_by_tag(store, "mmctl.run", record["uid"])
            if found is None:
                tags = {"mmctl.run": record["uid"], "mlflow.source.name": "mmctl", **record["tags"]}
                started = milliseconds(record["created"])
                found = store.client.create_run(store.experiment, started, tags, run_name=self.name)
            run_id = str(found.info.run_id)
            if record["runs"].get(store.shown) != run_id:
                self._update(lambda r: (r["runs"].update({store.shown: run_id}), r["ids"].append(run_id)))
            if mend:
                record["sent"] = self._still_there(record, files_there(store, run_id), run_id)
            self._send_content(store, found, record)
        return run_id

    def _still_there(self, record: dict[str, Any], there: Mapping[str, int], run_id: str) -> dict[str, Any]:
        """What was sent and is still as it was."""
        sent = {
            f"{run_id} {path}": str(Path(place or "") / Path(path).name) for path, place in record["artifacts"].items()
        }
        return {k: s for k, s in record["sent"].items() if k in sent and there.get(sent[k]) == s[0]}

    def _send_content(self, store: Store, found: Any, record: dict[str, Any]) -> None:
        from mlflow.entities import Metric, RunTag

        run_id, new = found.info.run_id, []
        for key, points in record["metrics"].items():
            name = clean_key(key)
            there = found.data.metrics.get(name)
            if points and there != points[-1][0]:
                times = (
                    {m.timestamp for m in store.client.get_metric_history(run_id, name)} if there is not None else ()
                )
                new += [Metric(name, value, when, 0) for value, when in points if when not in times]
        tags = [RunTag(k, str(v)) for k, v in record["tags"].items() if found.data.tags.get(k) != str(v)]
        for start in range(0, max(len(new), len(tags)), 50):
            store.client.log_batch(run_id, metrics=new[start : start + 50], tags=tags[start : start + 50])
        for noted, place in record["artifacts"].items():
            path, key = contents.file_to_send(self.root, noted), f"{run_id} {noted}"
            stamp = files.stamp(path) if path else None
            if stamp and record["sent"].get(key) != stamp:
                store.client.log_artifact(run_id, str(path), place)
                self._update(lambda r, key=key, stamp=stamp: r["sent"].update({key: stamp}))
        status = STATUS[_state(record)]
        if found.info.status != status:
            if status == "RUNNING":
                store.client.update_run(run_id, status=status)
            else:
                store.client.set_terminated(run_id, status, milliseconds(record.get("ended")))

    def _read(self) -> dict[str, Any]:
        return _records(self.folder)[self.name]

    def _update(self, change: Any) -> None:
        with waiting_lock(self.folder / ".mlflow.lock"):
            records = _records(self.folder)
            if self.name not in records:
                uid = uuid.uuid4().hex
                records[self.name] = {
                    "uid": uid,
                    "pending": f"pending-{uid}",
                    "created": time.time(),
                    "state": "running",
                    "ids": [],
                    "runs": {},
                    "sent": {},
                    **{"tags": {}, "metrics": {}, "artifacts": {}},
                }
            change(records[self.name])
            files.write_json(self.folder / "mlflow.json", {"parents": records})


def parent_run(root: Path, name: str, tags: Mapping[str, str] | None = None, folder: Path | None = None) -> Parent:
    """The parent run `name` of the sweep in `folder` (default runs/sweeps/<name>): the one there was, or a new one."""
    return Parent(root, folder or root / "sweeps" / names.safe_name(name), name, tags).start()


def finished(folder: Path, name: str) -> bool:
    """Whether the sweep in `folder` has a parent run `name` that is recorded as finished. Reads only."""
    return bool(_records(folder).get(name, {}).get("state") == "finished")


def parents(root: Path) -> Iterator[Parent]:
    """All that are recorded under runs/sweeps."""
    for path in sorted(root.glob("sweeps/*/mlflow.json")):
        for name in _records(path.parent):
            yield Parent(root, path.parent, name)


def resolve(root: Path, run_id: str | None, store: Store) -> str | None:
    """The id, in `store`, of the parent run once known as `run_id`; None if it is not there (yet)."""
    if run_id is None:
        return None
    for path in root.glob("sweeps/*/mlflow.json"):
        for record in _records(path.parent).values():
            if run_id in (record["pending"], *record["ids"]):
                return record["runs"].get(store.shown)
    return None if run_id.startswith("pending-") else run_id


def _state(record: Mapping[str, Any]) -> str:
    """A sweep whose process was killed never says that it ended."""
    owner = Owner.of(record.get("owner"))
    killed = record["state"] == "running" and owner is not None and owner.gone()
    return "interrupted" if killed else str(record["state"])


def _records(folder: Path) -> dict[str, Any]:
    """Parents by name; those whose notes are damaged are left out, and made anew when asked for."""
    try:
        content = files.read_json(folder / "mlflow.json")
    except MmctlError:
        return {}
    found = content.get("parents") if isinstance(content, dict) else None
    for record in found.values() if isinstance(found, dict) else ():
        if isinstance(record, dict) and isinstance(record.get("metrics"), dict) and finite(record.get("created")):
            # Until 0.1 a number was noted without its time.
            old = {k: [[v, milliseconds(record["created"])]] for k, v in record["metrics"].items() if finite(v)}
            record["metrics"] = {k: v for k, v in record["metrics"].items() if isinstance(v, list)} | old
    return {k: v for k, v in found.items() if _whole(v)} if isinstance(found, dict) else {}


def _whole(record: Any) -> bool:
    kinds: dict[str, Any] = {"uid": str, "pending": str, "created": int | float, "state": str, "ids": list}
    kinds |= {key: dict for key in ("runs", "sent", "tags", "metrics", "artifacts")}
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(k), kind) for k, kind in kinds.items())
        and record["state"] in STATUS
        and all(isinstance(points, list) and all(_point(p) for p in points) for points in record["metrics"].values())
        and all(place is None or isinstance(place, str) for place in record["artifacts"].values())
        and all(isinstance(stamp, list) and stamp for stamp in record["sent"].values())
    )


def _point(point: Any) -> bool:
    """[value, milliseconds]."""
    return isinstance(point, list) and len(point) == 2 and finite(point[0]) and isinstance(point[1], int)
