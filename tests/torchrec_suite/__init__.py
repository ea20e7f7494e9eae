"""TorchRec's own tests, with TorchRec's planner and with ours.

    python -m tests.torchrec_suite CHECKOUT [--only EXPRESSION] [--files EXPRESSION] [--keep FOLDER] [--limit SECONDS] [--page]

CHECKOUT is a checkout of TorchRec's repository at the release that is installed (for 1.8.0 the branch release/v1.8.0). Its tests need the
packages parameterized and expecttest besides. Every test file that names the planner, or shards models by one, runs with TorchRec's planner
first; those tests that plan run again with `ShardwrightPlanner` in its place, in every process that they start. The program exits with 1 if
a test that passed with TorchRec's planner fails with ours, unless `reasons.py` has a lasting reason.
"""
