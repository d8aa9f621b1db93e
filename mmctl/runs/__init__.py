"""Runs: folders, locks, checkpoints, and their mirror in MLflow. Importing it imports neither torch nor mlflow."""

from mmctl.runs.folder import RunFolder
from mmctl.runs.mirror import Mirror
from mmctl.runs.names import runs_root

__all__ = ["Mirror", "RunFolder", "runs_root"]
