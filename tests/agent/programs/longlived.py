"""Starts a long-lived process as the agent does, in a unit of its own or not: longlived.py AGENT_FOLDER {prefix|plain} LOCK_FILE"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from gpuops_agent import session
from gpuops_agent.paths import Root, Service

# It holds the lock for as long as it lives; it forks, leaves the caller's session, says its word and its control group, and stays.
LONG_LIVED = """
import fcntl, os, sys, time
word = sys.stdin.read()
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork():
    os._exit(0)
os.setsid()
groups = [line.strip() for line in open("/proc/self/cgroup") if line.startswith("0::")]
os.write(1, (word + groups[0]).encode())
for fd in (0, 1, 2):
    os.close(fd)
time.sleep(600)
"""

prefix = session.prefix(Service(Root(Path("/srv/gpuops")), "demo")) if sys.argv[2] == "prefix" else []
program = [*prefix, sys.executable, "-IS", "-c", LONG_LIVED, sys.argv[3]]
process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
out, _ = process.communicate(b"word ", timeout=60)
print(out.decode())
