"""`mmctl doctor`: is this machine ready (machine.py), and what would a run take on it (would_run.py)."""
