"""``python -m gpuops``."""

from __future__ import annotations

from gpuops.cli.entry import main

if __name__ == "__main__":
    main()
