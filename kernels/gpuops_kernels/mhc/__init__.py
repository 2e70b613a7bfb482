"""Hyper-connections (mHC): the forced-fp32 linear on tensor cores, and everything up to the layer's input, in two launches."""
