"""One run's folder as one run of the store: made once, extended, never logged twice.

Everything sent is read from the folder, so what the mirror shows at any time can be made again by `sync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmctl.runs import contents, files, metrics, notes, system
from mmctl.runs.folder import RunFolder
from mmctl.runs.parents import resolve
from mmctl.runs.redaction import redact
from mmctl.runs.store import Store, explained, files_there, milliseconds, run_by_tag

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
        self.store, self.run, self.root = store, run, run.path.parents[1]
        self.record = notes.remember(run, parent_run_id, tags)
        self.tags, self.parent = self.record["tags"], self.record["parent_run_id"]
        self.run_id = ""
        self.last_step = -1
        self.diverged_at: int | None = None
        self._offset = 0
        self._system_offset = self._system_seen = self._system_sent = 0
        self._found: Any = None

    def attach(self) -> str:
        """Find the store's run by this folder's id, or make it; returns the run id there."""
        with explained(self.store.uri):
            uid = str(self.run.provenance().get("id") or self.run.path)
            self._found = run_by_tag(self.store, "mmctl.run", uid)
            tags = contents.tags(self.run, uid, resolve(self.root, self.parent, self.store)) | self.tags
            if self._found is None:
                started = milliseconds(self.run.status.get("created"))
                self._found = self.store.client.create_run(self.store.experiment, started, tags, self.run.label)
                self.run_id = self._found.info.run_id
            else:
                self.run_id = self._found.info.run_id
                self._send(tags={k: v for k, v in tags.items() if self._found.data.tags.get(k) != v})
                self.last_step = self._last_logged()
                self._system_sent = int(self._found.data.tags.get("mmctl.system_rows", 0))
            have = self._found.data.params
            self._send(params={k: v for k, v in contents.parameters(self.run).items() if k not in have})
            self._note(run_id=self.run_id, uri=self.store.shown)
            if self.run.state() in ("planned", "running") and self._found.info.status != "RUNNING":
                self.store.client.update_run(self.run_id, status="RUNNING")
                self._send(tags={"mmctl.state": "running"})
        return self.run_id

    def metrics(self, one_batch: bool = False) -> None:
        """Send the rows of metrics.jsonl that are new since the last call and beyond what the store has.

        one_batch: one request and no more, which bounds what a copy costs; the rest waits for the next call.
        """
        with explained(self.store.uri):
            batch: list[Any] = []
            for row, end in self._new_rows():
                found = self._metrics_of(row)
                if batch and len(batch) + len(found) > BATCH:
                    if one_batch:
                        break
                    self._send_rows(batch)
                    batch = []
                batch += found
                self._reached = (row["step"], end)
            if batch:
                self._send_rows(batch)
            self._send_system()

    def close(self, state: str, reason: str | None = None) -> None:
        """Send what is left: scores, result, files, and how the run ended."""
        self.metrics()
        with explained(self.store.uri):
            self._found = self.store.client.get_run(self.run_id)
            self._send_all(contents.scores(self.run, self._found.data.metrics))
            have = self._found.data.tags
            tags = {"mmctl.state": state, "mmctl.attempt": str(self.run.status.get("attempt", 0))}
            ways = {"mmctl.reason": redact(str(reason or ""))[:5000], "diverged_at_step": self.diverged_at}
            tags |= {key: str(value) for key, value in ways.items() if value not in (None, "")}
            self._send(tags={k: v for k, v in tags.items() if have.get(k) != v})
            for stale in have.keys() & (ways.keys() - tags.keys()):  # of an earlier attempt
                self.store.client.delete_tag(self.run_id, stale)
            self.artifacts([])
            if self._found.info.status != STATUS[state]:
                status = self.run.status
                ended = milliseconds(status.get("ended") or status.get("heartbeat"))
                self.store.client.set_terminated(self.run_id, STATUS[state], ended)
        self._note(closed=notes.ending(self.run, state))

    def artifacts(self, paths: Iterable[Path]) -> None:
        """Send the run's own files and `paths` (under the folder of runs) where they changed since they were last
        sent."""
        mine = {contents.kept_path(self.root, path): None for path in paths}
        self._note(artifacts={**self.record.get("artifacts", {}), **mine})
        sent = dict(self.record.get("sent", {}))
        with explained(self.store.uri):
            for noted, place in self._wanted().items():
                path, key = contents.file_to_send(self.root, noted), f"{self.run_id} {noted}"
                stamp = files.stamp(path) if path else None
                if stamp and sent.get(key) != stamp:
                    self.store.client.log_artifact(self.run_id, str(path), place)
                    sent[key] = stamp
        self._note(sent=sent)

    def _wanted(self) -> dict[str, str | None]:
        """Every file the store should have, as noted, and the folder it has there."""
        own = self.run.path.relative_to(self.root)
        found: dict[str, str | None] = dict(self.record.get("artifacts", {}))
        found |= {str(own / name): None for name in FILES}
        return found | {str(own / "eval" / p.name): "eval" for p in sorted(self.run.path.glob("eval/[!.]*.json"))}

    def mend(self) -> None:
        """After `attach`: send again what the store has lost although it was told, as one that was damaged has."""
        with explained(self.store.uri):
            there, sent = files_there(self.store, self.run_id), self.record.get("sent", {})
            keys = {
                f"{self.run_id} {noted}": f"{place or '.'}/{Path(noted).name}"
                for noted, place in self._wanted().items()
            }
            self._note(
                sent={k: sent[k] for k, path in keys.items() if k in sent and there.get(str(Path(path))) == sent[k][0]}
            )
            by_key: dict[str, list[Any]] = {}
            for line in metrics.whole_lines(self.run.path / "metrics.jsonl", 0):
                row = metrics.row(line)
                if row is not None and isinstance(row.get("step"), int) and row["step"] <= self.last_step:
                    for metric in self._metrics_of(row):
                        by_key.setdefault(metric.key, []).append(metric)
            for number, (key, wanted) in enumerate(by_key.items()):
                have = {m.step for m in self.store.client.get_metric_history(self.run_id, key)}
                missing = [m for m in wanted if m.step not in have]
                if number == 0 and not missing:
                    return  # a row is sent whole: where one key is complete, all are
                self._send_all(missing)

    def _send_all(self, found: list[Any]) -> None:
        for start in range(0, len(found), BATCH):
            self._send(metrics=found[start : start + BATCH])

    def _send_system(self) -> None:
        """The rows of system.jsonl beyond those the store has."""
        whole = metrics.whole_lines(self.run.path / system.FILE, self._system_offset)
        numbered = enumerate(map(metrics.row, whole), self._system_seen)
        rows = [(number, row) for number, row in numbered if number >= self._system_sent and row is not None]
        self._send_all(contents.system_metrics(rows))
        if rows:
            self._system_sent = rows[-1][0] + 1
            self._send(tags={"mmctl.system_rows": str(self._system_sent)})
        self._system_seen += len(whole)
        self._system_offset += sum(map(len, whole))

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
        self._send_all(batch)
        self._send(tags={"mmctl.last_step": str(step)})
        self.last_step, self._offset = step, end

    def _new_rows(self) -> Iterator[tuple[dict[str, Any], int]]:
        """(row, offset behind it) of each whole line beyond `_offset` whose step the store lacks."""
        end = self._offset
        for line in metrics.whole_lines(self.run.path / "metrics.jsonl", self._offset):
            end += len(line)
            row = metrics.row(line)
            if row is not None and isinstance(row.get("step"), int):
                if row["step"] > self.last_step:
                    yield row, end
                elif self.diverged_at is None and contents.diverged(row):
                    self.diverged_at = row["step"]

    def _last_logged(self) -> int:
        """The last step the store has. The tag can be one batch behind the metrics if a writer was killed between
        them."""
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
