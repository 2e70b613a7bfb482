"""Benchmarks: each prints its figures as ratios of one run beside their goals, and ends with ``figures met: N of M``."""
