"""Tests of TorchRec that ask for the insides of its own planner, and for what; every other failure is a fault of ours."""

ESTIMATES = "the very plan that TorchRec's time estimates prefer (EmbeddingPerfEstimator)"
PROPOSER = "the answer of a part of TorchRec's search (proposer=EmbeddingOffloadScaleupProposer())"
WIDTHS = "column blocks exactly min_partition wide, the only width that TorchRec cuts (ours are at least that wide)"

INSIDES = {
    "TestEmbeddingShardingPlanner::test_hidden_rw_solution": ESTIMATES,
    "ModelParallelStateDictTestGloo::test_load_state_dict_cw_multiple_shards": WIDTHS,
    "TestExtractPlan::test_extract_plan_properties_preservation": ESTIMATES,
    "TestAutoPlannerWithScaleupProposer::test_auto_sharder_solution": PROPOSER,
    "TestAutoPlannerWithScaleupProposer::test_planner_with_virtual_table": PROPOSER,
}
"""By class and name of the test."""
