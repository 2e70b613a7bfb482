"""The gate: what the shipped kernels compile to, without a GPU."""
