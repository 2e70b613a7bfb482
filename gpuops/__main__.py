"""``python -m gpuops``."""

from __future__ import annotations

from gpuops.cli.app import main

if __name__ == "__main__":
    main()
