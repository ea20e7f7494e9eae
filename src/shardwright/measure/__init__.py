"""Measure real costs: kernel backends, quiet timing, measured plans, and the resumable sample store.

Collecting samples imports only numpy, pyarrow, torch and (for the fused kernels) fbgemm_gpu.
"""
