"""The gpuops agent: the program on the host that plays orders there.

Standard library only, Python 3.9 and newer. It is shipped as one zipapp, ``ROOT/agent/<sha>.pyz``, and called with a verb as its
only argument, one JSON request on stdin, and JSON lines as its answer (``docs/architecture.md``, "The wire").
"""

PROTOCOL = 1
