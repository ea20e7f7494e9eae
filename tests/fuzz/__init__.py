"""The fuzz: hostile files, odd options, odd but legal tasks and signals, against every command of the command line.

    python -m tests.fuzz                        10,000 cases, about 20 minutes on two cores
    python -m tests.fuzz --cases 300 --seed 7   others, fewer
    python -m tests.fuzz --case 1234            one of them again: its command, its files and its outcome

A case is made from its number and the seed alone. `cases` draws a command line and its files: files of `material`, some of them damaged by
`damage`. `process` runs it in a process of its own, under limits. `verdict` judges the result. `legal` makes odd but legal tasks, and
checks their plans without the package's own checks.
"""
