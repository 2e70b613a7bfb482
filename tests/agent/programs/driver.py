"""Calls the supervision of a packed agent, as the runner does: driver.py ZIPAPP, one JSON request on stdin, one JSON answer."""

import json
import sys
from pathlib import Path

zipapp = Path(sys.argv[1])
# Where the zipapp has unpacked itself.
sys.path.insert(0, str(zipapp.with_suffix("")))

from gpuops_agent import records, stop, supervisor  # noqa: E402
from gpuops_agent.paths import Root  # noqa: E402
from gpuops_agent.wire import AgentError  # noqa: E402


def launch(request):
    spec = supervisor.LaunchSpec.from_json(request["spec"])
    return supervisor.launch(spec, zipapp, request.get("ack_timeout", 30.0)).to_json()


def adopt(request):
    service = Root(Path(request["root"])).service(request["service"])
    return supervisor.adopt(service, records.read_server(service), zipapp).to_json()


def halt(request):
    service = Root(Path(request["root"])).service(request["service"])
    notes = []
    proof = stop.stop(service, drain_s=request["drain_s"], kill_s=request["kill_s"], note=notes.append)
    return {"proof": proof.to_json(), "notes": notes}


request = json.loads(sys.stdin.read())
try:
    answer = {"result": {"launch": launch, "adopt": adopt, "stop": halt}[request["do"]](request)}
except AgentError as error:
    answer = {"error": error.as_dict()}
print(json.dumps(answer), flush=True)
