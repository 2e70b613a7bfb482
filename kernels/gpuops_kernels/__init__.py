"""Triton kernels for DeepSeek-V4 decode, and the SGLang plugin that puts them in place.

Importing this package imports neither torch nor triton: the plugin has to load, and to say that nothing applies, on a machine without either.
"""

__version__ = "0.1.0"
