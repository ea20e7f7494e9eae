"""A plugin for pytest: the engine that SHARDWRIGHT_ENGINE names in place of the installed one (`make sanitize`)."""

import importlib.util
import os
import sys

import shardwright

_spec = importlib.util.spec_from_file_location("shardwright._engine", os.environ["SHARDWRIGHT_ENGINE"])
assert _spec is not None
assert _spec.loader is not None
_engine = importlib.util.module_from_spec(_spec)
sys.modules["shardwright._engine"] = _engine
_spec.loader.exec_module(_engine)
shardwright._engine = _engine
