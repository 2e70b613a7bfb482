"""Sparse MLA decode for DeepSeek-V4: attention of one query row over selected tokens of two paged FP8 caches."""
