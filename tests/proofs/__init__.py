"""Proofs against brute force: every plan of small tasks, compared with the bound, `exact` and the proof of infeasibility.

    python -m tests.proofs [--tasks 100000] [--page]

A case is drawn from its number and the seed alone, so `--case N` repeats it and prints everything about it. A finding is

- a bound above a plan that exists: plain, or tightened by a plan that is known;
- `exact` with another optimum than the best of all plans, or with an invalid plan;
- a feasible task that is declared infeasible, or an optimum of an infeasible one.

`plans.py` writes the kinds of plans down anew, from the words of the bound's page. It shares the checker, the encodings and the head of the
cost models with the package, nothing else.
"""
