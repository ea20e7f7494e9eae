"""Cost models of this machine: measured, trained and kept in minutes."""

from shardwright.calibration.calibration import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
