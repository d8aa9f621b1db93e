"""Reports of finished sweeps: what results.json says, for a reader.

    finish                 every file a sweep leaves, each written only where it differs
    sweep                  one sweep's report, whole; its parts: preamble, claim, across (--tune: tuning)
    outlook                what would change each claim's verdict
    scoreboard             all claims of many sweeps on one page
    sensitivity            --at: the same claims at other settings
    document               what a report is, as data; its two forms: as_html (page_style: how it looks), as_markdown
    figures                the figures of a sweep, drawn where they are not up to date
    numbers                numbers.csv
    terminal               the plan of a dry run and the verdicts, in the terminal
    words                  how numbers, claims and verdicts are said, wherever they are

It reads results and never makes any: of the rest of mmctl.sweeps only what a command does (session, tuning_session,
sensitivity_session) imports it. Importing it imports neither torch nor mlflow.
"""
