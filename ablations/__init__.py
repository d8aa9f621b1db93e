"""The ablations, one YAML file each: a question, a baseline, its arms, and the published claims they test.

`mmctl ablate NAME` runs one of them, `mmctl ablate path/to/mine.yaml` your own. The loader is `mmctl.sweeps.matrix`.
"""
