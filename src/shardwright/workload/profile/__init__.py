"""Tables and access profiles from training logs."""

from shardwright.workload.profile.profiler import profile_logs
from shardwright.workload.profile.result import ProfileResult, save_tables

__all__ = ["ProfileResult", "profile_logs", "save_tables"]
