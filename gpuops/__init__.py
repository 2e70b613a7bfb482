"""gpuops: change what a remote GPU inference server runs, prove it right, go back when it is not."""

__version__ = "0.1.0"
