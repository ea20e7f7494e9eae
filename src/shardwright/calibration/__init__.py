"""Calibration (a cost model of this machine) and tuning (plans measured on it); both take minutes."""

from shardwright.calibration.calibration import Calibration, calibrate
from shardwright.calibration.links import calibrate_links
from shardwright.calibration.tuning import Tuned, tune

__all__ = ["Calibration", "Tuned", "calibrate", "calibrate_links", "tune"]
