"""Sweeps: ablations as data become runs, and finished runs become verdicts.

    matrix, axes, claims, reading   an ablation's YAML, strictly read
    profiles, selection             how large, and which arms
    cells, plan                     every configuration, composed, validated and shared
    estimates                       what a plan will cost
    launchers, resources            where jobs run, and with how much of it
    worker, execute, live           running what is missing, and showing it
    evaluating                      arms that change something at evaluation only
    manifest                        what was registered before the first run
    metrics, units                  which numbers an arm will have, and how they are written
    scores, examples, statistics    numbers of runs, what their held-out examples leave open, paired differences
    comparing, costs, verdicts      what a claim compares, at which cost, and one word for it
    results, report, preamble       results.json and report.md
    numbers                         numbers.csv
    words, terminal, figures        the same for the eye
    tracking, finish                MLflow, and the files a sweep leaves

Importing it imports neither torch nor mlflow.
"""
