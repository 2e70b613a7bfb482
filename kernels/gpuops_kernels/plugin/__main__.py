"""``python -m gpuops_kernels.plugin``: read the proofs of ranks, compare the table of targets with an SGLang tree, print the content hash."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import registry
from . import proof, sources, targets, verify


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: yes; 1: no, with the reasons on stdout."""
    parser = argparse.ArgumentParser(prog="python -m gpuops_kernels.plugin", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--verify", type=Path, metavar="WHERE", help="the folder (or .json path) of GPUOPS_KERNELS_PROOF")
    what.add_argument("--sources", type=Path, metavar="TREE", help="a folder with an unpacked or installed `sglang` of --version")
    what.add_argument(
        "--content", action="store_true", help="print this package's content hash: what every rank's proof has to say"
    )
    parser.add_argument("--ranks", type=int, default=1, help="worker processes of the server: TP x PP x DP (default 1)")
    parser.add_argument(
        "--hash",
        metavar="SHA256",
        help="content hash that every rank must have; `this`: of the package that runs here",
    )
    parser.add_argument(
        "--family",
        choices=registry.PLACED,
        action="append",
        help="must be active and have served a call (default: every one that is neither off nor without use here)",
    )
    parser.add_argument("--running", action="store_true", help="the processes must still run, on this machine")
    parser.add_argument("--version", help="of the SGLang in --sources")
    options = parser.parse_args(arguments)
    if options.content:
        print(proof.content_hash())
        return 0
    if options.sources is not None:
        if options.version is None:
            parser.error("--sources needs --version")
        return _compare(options.sources, options.version)
    return _verify(options)


def _verify(options: argparse.Namespace) -> int:
    proofs, unreadable = verify.read_all(options.verify)
    expected = proof.content_hash() if options.hash == "this" else options.hash
    verdict = verify.verify(proofs, options.ranks, expected, options.family)
    more = unreadable + (verify.not_running(proofs) if options.running else [])
    for line in (*verdict.lines, *(f"no: {each}" for each in more)):
        print(line)
    return int(not verdict.passed or bool(more))


def _compare(tree: Path, version: str) -> int:
    engine = targets.engine(version)
    if engine is None:
        print(f"SGLang {version} is not in the table, which has {targets.known()}")
        return 1
    changed = 0
    for target in (engine.anchor, *(each for family in engine.families.values() for each in family.targets)):
        try:
            found = sources.fingerprint(tree / Path(*target.module.split(".")).with_suffix(".py"), target.attribute)
        except sources.NotFoundError as error:
            found = str(error)
        fits = found in target.fingerprints or (not target.fingerprints and len(found) == 16)
        changed += not fits
        print(f"{'fits   ' if fits else 'CHANGED'} {target.path}  {found}")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
