"""The first hour of a new user: logs as they are, a cluster by flags, plans, a report, TorchRec; every command once, each step timed.

python -m tests.stranger           # with the package that is installed here
python -m tests.stranger --fresh   # with a wheel in an environment of its own, which pip fills from the registry
python -m tests.stranger --page    # writes the page too
"""
