"""Cost models of this machine, and plans measured on it: in minutes."""

from shardwright.calibration.calibration import Calibration, calibrate
from shardwright.calibration.tuning import Tuned, tune

__all__ = ["Calibration", "Tuned", "calibrate", "tune"]
