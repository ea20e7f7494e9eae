"""Proofs against brute force: every plan of small tasks, priced, beside what the bound, `exact` and the proof of infeasibility say.

    python -m tests.proofs [--tasks 100000] [--page]

A case is drawn from its number and the seed alone, so `--case N` repeats it and says everything about it. A finding is

- a bound above a plan that exists: plain, or tightened by a plan that is known;
- `exact` with another optimum than the best of all plans, or with a plan that is none;
- a task said to have no plan that has one, or an optimum where there is none.

`plans.py` writes the kinds of plans down anew, from the words of the bound's page. It shares the checker, the encodings and the head of the
cost models with the package, nothing else.
"""
