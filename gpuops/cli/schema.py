"""Print the JSON Schema of a playbook.

For editors that complete and check YAML. docs/playbook.md says the same in
words.

\b
Examples:
  gpuops schema > playbook.schema.json
  gpuops schema --json | jq .properties.deadlines
"""

from __future__ import annotations

import json

from gpuops.cli.talk import Talk
from gpuops.cli.verb import verb


@verb
def main(talk: Talk) -> None:
    from gpuops.playbook.reference import schema

    if talk.json:
        talk.give(schema())
    else:
        talk.say([json.dumps(schema(), indent=2, ensure_ascii=False)])
