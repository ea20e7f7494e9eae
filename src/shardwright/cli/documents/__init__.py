"""The JSON documents that commands print with `--json`, as types: commands build them, and `scripts/schemas.py` makes schemas of them.

Infinite numbers and NaN are null in JSON, so such fields are `float | None`. Commands import this module for type checking only, because
it imports modules that slow their start.
"""

from __future__ import annotations

from shardwright.cli.documents import measuring, planning

DOCUMENTS: dict[str, type] = {
    "calibrate": measuring.Calibrate,
    "calibrate --links": measuring.CalibrateLinks,
    "collect": measuring.Collect,
    "collect --collectives": measuring.CollectCollectives,
    "compare": planning.Compare,
    "demo": planning.Demo,
    "drift": planning.Drift,
    "learn": measuring.Learn,
    "models": measuring.Models,
    "models remove": measuring.ModelsRemove,
    "plan": planning.Plan,
    "plan --check": planning.PlanCheck,
    "profile": measuring.Profile,
    "report": planning.Report,
    "review": planning.Review,
    "scale": planning.Scale,
    "show": planning.Show,
    "train": measuring.Train,
    "tune": measuring.Tune,
    "tune --steps": measuring.TuneSteps,
    "verify": measuring.Verify,
    "verify --steps": measuring.VerifySteps,
}
"""The type of each command's document, with the option or action that chooses it."""
