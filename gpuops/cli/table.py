"""The verbs by name. `gpuops --help` is written from here; a verb's own module is imported only when it is called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """A row of the table. ``help`` is the first line of the module's docstring; a test holds the two together."""

    name: str
    module: str
    help: str
    panel: str


ROLL_OUT, LOOK, ASK, SET_UP = "Roll out", "Look", "Ask", "Set up"

VERBS = (
    Verb(
        "up",
        "gpuops.cli.up",
        "Make a host run what a playbook says, prove it right, or put the known-good release back.",
        ROLL_OUT,
    ),
    Verb("plan", "gpuops.cli.plan", "Say what `up` would do, and change nothing.", ROLL_OUT),
    Verb("swap", "gpuops.cli.swap", "Put another build under the running service: same runtime, model and flags.", ROLL_OUT),
    Verb("restart", "gpuops.cli.restart", "Stop the current release and start it again; a good one by the short gate.", ROLL_OUT),
    Verb("restore", "gpuops.cli.restore", "Go back to the known-good release, or to another one by number.", ROLL_OUT),
    Verb(
        "recover",
        "gpuops.cli.recover",
        "Bring the service to where it should be after a crash, a cut rollout or a reboot.",
        ROLL_OUT,
    ),
    Verb("down", "gpuops.cli.down", "Stop the service, with proof.", ROLL_OUT),
    Verb("adopt", "gpuops.cli.adopt", "Take over a server that somebody started by hand, without touching it.", ROLL_OUT),
    Verb("lock", "gpuops.cli.lock", "Let nobody change the service until you unlock it.", ROLL_OUT),
    Verb("unlock", "gpuops.cli.unlock", "Remove the lock that a person has put on the service.", ROLL_OUT),
    Verb("attach", "gpuops.cli.attach", "Follow the operation that is running, or read the last one again.", ROLL_OUT),
    Verb("status", "gpuops.cli.status", "Show what runs on the host, by its own evidence.", LOOK),
    Verb("wait", "gpuops.cli.wait", "Wait until the service is ready, its rollout is promoted, or its server is dead.", LOOK),
    Verb("logs", "gpuops.cli.logs", "Show or follow a release's server log.", LOOK),
    Verb("history", "gpuops.cli.history", "List the releases and operations of the service, newest first.", LOOK),
    Verb(
        "diagnose",
        "gpuops.cli.diagnose",
        "Say why a start failed: the class, the line that shows it, and what helps.",
        LOOK,
    ),
    Verb("doctor", "gpuops.cli.doctor", "Look for what can end a server, spoil a start or lie to us, on the host.", LOOK),
    Verb("exec", "gpuops.cli.exec", "Run one command on the host.", LOOK),
    Verb("chat", "gpuops.cli.chat", "Put one question to the server and print the answer as it comes.", ASK),
    Verb("smoke", "gpuops.cli.smoke", "Put the probes to the running server: is it right, wrong or down?", ASK),
    Verb(
        "builds",
        "gpuops.cli.builds",
        "Make, look at, compare and carry builds: what goes in front of a runtime's packages.",
        SET_UP,
    ),
    Verb(
        "caches",
        "gpuops.cli.caches",
        "List a host's JIT caches, take them home, and load them on another host: its first start then compiles nothing.",
        SET_UP,
    ),
    Verb(
        "bench",
        "gpuops.cli.bench",
        "Measure the running server at some cells, and hold the figures against the known-good release's.",
        ASK,
    ),
    Verb(
        "ab",
        "gpuops.cli.ab",
        "Launch two builds in turns on one host, and say which is faster, or how much is missing to know.",
        ASK,
    ),
    Verb(
        "report",
        "gpuops.cli.report",
        "Write what was measured of a release or a comparison as one page, and show it in short.",
        ASK,
    ),
    Verb(
        "profile",
        "gpuops.cli.profile",
        "Show where a decode step's GPU time goes, by the engine's own profiler.",
        ASK,
    ),
    Verb(
        "trial",
        "gpuops.cli.trial",
        "Try changes one at a time on a host, and leave a record; in the end the known-good release serves.",
        ROLL_OUT,
    ),
    Verb(
        "records",
        "gpuops.cli.records",
        "List, show and export the records of trials: what was tried, what happened, what it means.",
        LOOK,
    ),
    Verb("pin", "gpuops.cli.pin", "Keep a release, and all that it uses, from being pruned.", SET_UP),
    Verb("unpin", "gpuops.cli.unpin", "Let a pinned release be pruned again.", SET_UP),
    Verb("prune", "gpuops.cli.prune", "Delete from the host what no release that may be started again needs.", SET_UP),
    Verb("sandbox", "gpuops.cli.sandbox", "Start, stop or look at a throwaway sshd on loopback.", SET_UP),
    Verb("schema", "gpuops.cli.schema", "Print the JSON Schema of a playbook.", SET_UP),
)
