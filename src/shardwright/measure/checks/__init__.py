"""Before anything is collected: does this machine fit together, do its kernels compute what they should, how fast can it copy?"""

CHECKS = "checks.json"
"""Name of the file with the outcome, beside the samples."""
