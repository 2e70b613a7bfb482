"""``python -m gpuops_kernels.gate``: compile every shipped configuration for sm_120 and sm_90 without a GPU, and check the machine code."""

from __future__ import annotations

import argparse
import sys

from .. import configs, registry
from . import check, stub


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: every rule holds and the resources equal the committed record; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="gpuops_kernels.gate", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="replace the committed record of resources with what was compiled now"
    )
    parser.add_argument("--family", choices=registry.FAMILIES, action="append", help="only this one (may be repeated)")
    options = parser.parse_args(arguments)
    if options.write and options.family:
        parser.error("--write replaces the whole record: leave --family out")
    failed = False
    for capability in sorted(check.SHARED_LIMIT, reverse=True):
        failed |= _gate(capability, options.family or registry.FAMILIES, options.write)
    return int(failed)


def _gate(capability: configs.Capability, names: tuple[str, ...], write: bool) -> bool:
    print(
        f"compute capability {capability[0]}.{capability[1]}, {', '.join(f'{name} {version}' for name, version in stub.versions().items())}"
    )
    compiled = [each for name in names for each in check.compile_family(registry.family(name), capability)]
    now = check.report(compiled)
    for name, figures in now.items():
        print(f"  {name:<60} " + "  ".join(f"{key} {value}" for key, value in figures.items()))
    broken = check.findings(compiled, capability)
    for finding in broken:
        print(f"  FAILED {finding}", file=sys.stderr)
    if write:
        check.write_record(capability, now)
        return bool(broken)
    recorded = {name: figures for name, figures in check.read_record(capability).items() if name.split("/")[0] in names}
    changed = check.differences(recorded, now)
    for line in changed:
        print(
            f"  CHANGED {line} (if that is wanted: make gate-write, and commit {check.record_path(capability).name})",
            file=sys.stderr,
        )
    print(f"  {len(now)} binaries, {len(broken)} broken rules, {len(changed)} changes")
    return bool(broken or changed)


if __name__ == "__main__":
    sys.exit(main())
