"""Sweeps: ablations as data become runs, and finished runs become verdicts.

    matrix, axes, claims, reading   an ablation's YAML, strictly read
    profiles, selection             how large, and which arms
    matching                        the same budget for every arm
    cells, plan                     every configuration, composed, validated and shared
    session                         what `mmctl ablate` does with a plan
    estimates, preflight            what a plan will cost, and whether there is room for it
    launchers, resources            where jobs run, and with how much of it
    todo, execute, worker           what is missing, and running it
    live, progress                  showing it as it goes, and from another process
    evaluating                      arms that change something at evaluation only
    manifest                        what was registered before the first run
    metrics, units                  which numbers an arm will have, and how they are written
    scores, examples, statistics    numbers of runs, what their held-out examples leave open, paired differences
    comparing, costs, verdicts      what a claim compares, at which cost, and one word for it
    across (equal_cost, forget_threshold)   numbers across arms: a threshold, a fit, a difference at equal cost
    results                         results.json
    reporting                       results.json for a reader: reports, scoreboard, figures, tables, terminal
    tuning, tuning_session          --tune: each arm's own value, chosen by a validation loss
    sensitivity_session             --at: the same claims at other settings
    tracking                        MLflow

Importing it imports neither torch nor mlflow.
"""
