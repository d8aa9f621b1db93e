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
    results                         results.json
    report, report_claim, preamble  a sweep's report, as a document; what would change each verdict: outlook
    scoreboard                      all claims of many sweeps, as a document
    document, as_html, as_markdown  what a document is, and its two forms (page_style: how the HTML looks)
    numbers                         numbers.csv
    tuning, tuning_session, tuning_report   --tune: each arm's own value, chosen by a validation loss
    sensitivity                     --at: the same claims at other settings
    words, terminal, figures        the same for the eye
    tracking, finish                MLflow, and the files a sweep leaves

Importing it imports neither torch nor mlflow.
"""
