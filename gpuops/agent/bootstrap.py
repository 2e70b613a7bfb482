"""Putting the agent on a host that has nothing but Python.

The program goes to ``python3 -`` on stdin: no shell sees a word of it, whatever the login shell is. It must run on every Python that the host may
have, so it checks the version first, in words that Python 2 understands too.
"""

from __future__ import annotations

import base64

from gpuops.agent import pack
from gpuops.agent.client import OLDEST

_PROGRAM = """
import sys
if sys.version_info < {oldest}:
    sys.stdout.write("too-old %d.%d.%d\\n" % sys.version_info[:3])
    sys.exit(0)
import base64, hashlib, os
root = os.path.expanduser({root!a})
try:
    os.makedirs(os.path.join(root, "agent"), mode=0o700, exist_ok=True)
    os.chmod(root, 0o700)
    data = base64.b64decode({data!r})
    path = os.path.join(root, "agent", {name!r})
    temporary = path + ".%d.tmp" % os.getpid()
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sys.stdout.write("installed %s\\n" % path)
except OSError as error:
    sys.stdout.write("failed %s\\n" % error)
"""


def program(root: str) -> bytes:
    """The bootstrap program for this ROOT; it answers ``installed PATH``, ``too-old VERSION`` or ``failed ERROR``."""
    data = base64.b64encode(pack.archive()).decode()
    return _PROGRAM.format(oldest=OLDEST, root=root, name=pack.name(), data=data).encode()
