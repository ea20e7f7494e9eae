"""Real costs: fused-kernel backends, quiet timing, measured plans, and the resumable sample store.

Everything needed to collect samples imports with only numpy, pyarrow, torch and (for the fused kernels) fbgemm_gpu installed.
"""
