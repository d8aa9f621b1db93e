"""One run's folder as one run of the store: made once, extended, never logged twice.

Everything sent is read from the folder, so what the mirror shows at any time can be made again by `sync`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs import contents, files
from mmctl.runs.folder import RunFolder
from mmctl.runs.parents import resolve
from mmctl.runs.store import Store, explained, milliseconds, run_by_tag

BATCH = 900
"""Metrics in one request; MLflow takes 1,000 entries, tags included."""
STATUS = {
    "planned": "SCHEDULED",
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "diverged": "FAILED",
    "interrupted": "KILLED",
    "lost": "KILLED",
}
FILES = ("config.yaml", "overrides.txt", "provenance.json", "result.json")


class Upload:
    """The mirror of one run. Methods raise StoreError, and may then be called again: nothing is sent twice."""

    def __init__(
        self, store: Store, run: RunFolder, parent_run_id: str | None = None, tags: Mapping[str, str] | None = None
    ) -> None:
        self.store, self.run = store, run
        self.record = remember(run, parent_run_id, tags)
        self.tags, self.parent = self.record["tags"], self.record["parent_run_id"]
        self.run_id = ""
        self.last_step = -1
        self.diverged_at: int | None = None
        self._offset = 0
        self._found: Any = None

    def attach(self) -> str:
        """Find the store's run by this folder's id, or make it; returns the run id there."""
        with explained(self.store.uri):
            uid = str(self.run.provenance().get("id") or self.run.label)
            self._found = run_by_tag(self.store, "mmctl.run", uid)
            tags = contents.tags(self.run, uid, resolve(self.run.path.parents[1], self.parent, self.store)) | self.tags
            if self._found is None:
                status = self.run.status
                started = milliseconds(status.get("first_started") or status.get("created"))
                self._found = self.store.client.create_run(self.store.experiment, started, tags, self.run.label)
                self.run_id = self._found.info.run_id
            else:
                self.run_id = self._found.info.run_id
                self._send(tags={k: v for k, v in tags.items() if self._found.data.tags.get(k) != v})
                self.last_step = self._last_logged()
            if not self._found.data.params:
                self._send(params=contents.parameters(self.run))
            self._note(run_id=self.run_id, uri=self.store.shown)
            if self.run.state() in ("planned", "running") and self._found.info.status != "RUNNING":
                self.store.client.update_run(self.run_id, status="RUNNING")
        return self.run_id

    def metrics(self) -> None:
        """Send the rows of metrics.jsonl that are new since the last call and beyond what the store has."""
        with explained(self.store.uri):
            batch: list[Any] = []
            for row, end in self._new_rows():
                metrics = self._metrics_of(row)
                if batch and len(batch) + len(metrics) > BATCH:
                    self._send_rows(batch)
                    batch = []
                batch += metrics
                self._reached = (row["step"], end)
            if batch:
                self._send_rows(batch)

    def close(self, state: str, reason: str | None = None) -> None:
        """Send what is left: scores, result, files, and how the run ended."""
        self.metrics()
        with explained(self.store.uri):
            self._found = self.store.client.get_run(self.run_id)
            new = contents.scores(self.run, self._found.data.metrics)
            for start in range(0, len(new), BATCH):
                self._send(metrics=new[start : start + BATCH])
            tags = {"mmctl.state": state, "mmctl.attempt": str(self.run.status.get("attempt", 0))}
            if reason:
                tags["mmctl.reason"] = str(reason)[:5000]
            if self.diverged_at is not None:
                tags["diverged_at_step"] = str(self.diverged_at)
            self._send(tags={k: v for k, v in tags.items() if self._found.data.tags.get(k) != v})
            self.artifacts([])
            if self._found.info.status != STATUS[state]:
                status = self.run.status
                ended = milliseconds(status.get("ended") or status.get("heartbeat"))
                self.store.client.set_terminated(self.run_id, STATUS[state], ended)

    def artifacts(self, paths: Iterable[Path]) -> None:
        """Send the run's own files and `paths` where they changed since they were last sent."""
        extra: dict[str, str | None] = {
            **self.record.get("artifacts", {}),
            **{str(Path(p).absolute()): None for p in paths},
        }
        wanted: dict[str, str | None] = {str(self.run.path / name): None for name in FILES}
        wanted |= {str(p): "eval" for p in sorted(self.run.path.glob("eval/[!.]*.json"))}
        sent = dict(self.record.get("sent", {}))
        with explained(self.store.uri):
            for path, place in {**extra, **wanted}.items():
                stamp, key = files.stamp(Path(path)), f"{self.run_id} {path}"
                if stamp and sent.get(key) != stamp:
                    self.store.client.log_artifact(self.run_id, path, place)
                    sent[key] = stamp
        self._note(sent=sent, artifacts=extra)

    def _send(
        self, metrics: list[Any] | None = None, params: Mapping[str, str] | None = None, tags: Any = None
    ) -> None:
        from mlflow.entities import Param, RunTag

        if metrics or params or tags:
            self.store.client.log_batch(
                self.run_id,
                metrics=metrics or [],
                params=[Param(k, v) for k, v in (params or {}).items()],
                tags=[RunTag(k, v) for k, v in (tags or {}).items()],
                synchronous=True,
            )

    def _metrics_of(self, row: Mapping[str, Any]) -> list[Any]:
        if contents.diverged(row) and self.diverged_at is None:
            self.diverged_at = row["step"]
        return contents.metrics(row)

    def _send_rows(self, batch: list[Any]) -> None:
        step, end = self._reached
        for start in range(0, len(batch), BATCH):
            self._send(metrics=batch[start : start + BATCH])
        self._send(tags={"mmctl.last_step": str(step)})
        self.last_step, self._offset = step, end

    def _new_rows(self) -> Iterator[tuple[dict[str, Any], int]]:
        """(row, offset behind it) of each whole line beyond `_offset` whose step the store lacks."""
        try:
            with open(self.run.path / "metrics.jsonl", "rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return
        end = self._offset
        for line in content.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                if row["step"] > self.last_step:
                    yield row, end
                elif self.diverged_at is None and contents.diverged(row):
                    self.diverged_at = row["step"]

    def _last_logged(self) -> int:
        """The last step the store has. The tag can be one batch behind the metrics if a writer was killed between them."""
        step = int(self._found.data.tags.get("mmctl.last_step", -1))
        self.last_step = step
        first = next(self._new_rows(), None)
        if first is None:
            return step
        key = next((m.key for m in self._metrics_of(first[0])), None)
        if key is None or key not in self._found.data.metrics:
            return step
        return max([step, *(m.step for m in self.store.client.get_metric_history(self.run_id, key))])

    def _note(self, **more: Any) -> None:
        """Keep in mlflow.json what a later process needs."""
        if any(self.record.get(key) != value for key, value in more.items()):
            self.record = {**self.record, **more}
            files.write_json(self.run.path / "mlflow.json", self.record, durable=False)


def remember(run: RunFolder, parent_run_id: str | None, tags: Mapping[str, str] | None) -> dict[str, Any]:
    """mlflow.json with this parent and these tags added: a store that is down now must learn them later."""
    old = _record(run.path)
    parent = parent_run_id or old.get("parent_run_id")
    new = {**old, "parent_run_id": parent, "tags": {**old.get("tags", {}), **(tags or {})}}
    if new != old:
        files.write_json(run.path / "mlflow.json", new, durable=False)
    return new


def _record(folder: Path) -> dict[str, Any]:
    """mlflow.json; {} if it is missing or damaged: a mirror's notes can be made anew."""
    try:
        record = files.read_json(folder / "mlflow.json")
    except MmctlError:
        return {}
    kinds = {"tags": dict, "sent": dict, "artifacts": dict, "parent_run_id": str | None, "run_id": str}
    whole = isinstance(record, dict) and all(isinstance(record[k], v) for k, v in kinds.items() if k in record)
    return record if whole else {}
