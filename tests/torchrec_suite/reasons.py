"""Tests of TorchRec that do not pass with ours for a lasting reason, and the reason; every other failure is a fault."""

ACCOUNT = (
    "a plan in less memory than is allocated: TorchRec's estimate counts half of the values (docs/concepts/memory.md)"
)
PLAN = "insides: the very plan that TorchRec's time estimates prefer (EmbeddingPerfEstimator)"
PROPOSER = "insides: the answer of a part of TorchRec's search (EmbeddingOffloadScaleupProposer)"
WIDTHS = "column blocks exactly min_partition wide, the only width that TorchRec cuts (ours are at least that wide)"

REASONS = {
    "TestEmbeddingShardingPlanner::test_fail_then_rerun": ACCOUNT,
    "TestEmbeddingShardingPlanner::test_hidden_rw_solution": PLAN,
    "ModelParallelStateDictTestGloo::test_load_state_dict_cw_multiple_shards": WIDTHS,
    "TestExtractPlan::test_extract_plan_properties_preservation": PLAN,
    "TestAutoPlannerWithScaleupProposer::test_auto_sharder_solution": PROPOSER,
    "TestAutoPlannerWithScaleupProposer::test_planner_with_virtual_table": PLAN,
}
"""By class and name of the test."""
