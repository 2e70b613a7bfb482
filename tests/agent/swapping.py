"""Builds on the lab's host, and orders that put them under the imitation engine."""

from __future__ import annotations

from typing import Any

from patching import arrived
from rollouts import Json, Lab

CONTENT = "c0ffee"

# What a compiler of kernels looks like from outside: fills the folder, says one line.
COMPILER = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--capability")
parser.add_argument("--cache", type=pathlib.Path)
options = parser.parse_args()
names = [f"kernel{number}" for number in range(3)]
new = [name for name in names if not (options.cache / name / "binary").exists()]
for name in new:
    (options.cache / name).mkdir(parents=True, exist_ok=True)
    (options.cache / name / "binary").touch()
print("compiling")
print(json.dumps({"capability": options.capability, "kernels": 3, "compiled": len(new), "cached": 3 - len(new), "seconds": 0.0}))
"""

FAILING = "import sys\nsys.exit('error: kernel indexer: too many registers')\n"


def build(lab: Lab, name: str, *, proof: bool = False, compiler: str = "", broken: bool = False, **about: Any) -> str:
    """A build on the host, with a package of its name; returns its id."""
    files = {f"site/{name}/__init__.py": "import no_such_module\n" if broken else f"NAME = {name!r}\n"}
    if compiler:
        files[f"site/{name}/aot.py"] = compiler
        about["compile"] = f"{name}.aot"
    if proof:
        about["proof"] = {"plugin": name, "content": CONTENT}
    return arrived(lab.root, name, files, about).name


def order(lab: Lab, chosen: str | None, *faults: str, required: bool = False, **kwargs: Any) -> Json:
    """An `up` with this build, and the engine's compile cache where the release has it."""
    env = {"TRITON_CACHE_DIR": "@{cache}/triton", **({"PYTHONPATH": "@{pythonpath}"} if chosen else {}), **kwargs.pop("env", {})}
    made = lab.order(*faults, env=env, **kwargs)
    if chosen:
        made["prepare"]["build"] = {"kind": "tree", "id": chosen}
        made["spec"] = f"{made['spec']}-{chosen}"
    if required:
        made["candidate"]["proof"] = "required"
    return made
