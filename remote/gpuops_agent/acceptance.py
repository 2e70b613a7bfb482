"""How many tokens a step brings where speculation is on: a drafter with broken weights makes every answer right and slow.

One token a step means that not one draft was accepted. Random prompts would say little about it, so the answer to a text of ours is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .asking import Asked
from .server import at


@dataclass(frozen=True)
class Accepted:
    """``length``: accepted tokens a step, the one that is always right among them; None when the server does not tell."""

    algorithm: str
    length: Optional[float]
    error: str = ""

    def __str__(self) -> str:
        told = self.error or ("not told by the server" if self.length is None else f"{self.length:.2f} tokens a step")
        return f"accept length ({self.algorithm}): {told}"


def measure(asked: Asked) -> Optional[Accepted]:
    """Ask for one text; None where the server speculates on nothing."""
    words = asked.words["acceptance"]
    algorithm = at(asked.server.info(asked.timeout).value, words["when"])
    if not algorithm:
        return None
    answer = asked.native(words["body"])
    refused = asked.refused(answer)
    told = None if refused else at(answer.json(), words["length"])
    return Accepted(str(algorithm), float(told) if isinstance(told, (int, float)) else None, refused)
