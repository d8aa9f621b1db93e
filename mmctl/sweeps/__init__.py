"""Sweeps: ablations as data become runs, and finished runs become verdicts.

    matrix, axes, claims, reading   an ablation's YAML, strictly read
    profiles, selection             how large, and which arms
    cells, plan                     every configuration, composed, validated and shared
    estimates                       what a plan will cost
    launchers, resources            where jobs run, and with how much of it
    worker, execute, live           running what is missing, and showing it
    evaluating                      arms that change something at evaluation only
    manifest                        what was registered before the first run
    scores, statistics, verdicts    numbers, paired differences, one word a claim
    results, report, numbers        results.json, report.md, numbers.csv
    words, terminal, figures        the same for the eye
    tracking, finish                MLflow, and the files a sweep leaves

Importing it imports neither torch nor mlflow.
"""
