"""What single values of a playbook may be, and the base of its sections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from .problems import is_extension
from .targets import SERVICE, SERVICE_WORDS, host_word_problem

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
FLAG = r"^[A-Za-z0-9][A-Za-z0-9-]*$"
SHA256 = r"^[0-9a-f]{64}$"
PINNED = r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!_-]+$"
VERSION = r"^[0-9]+\.[0-9]+\.[0-9]+((\.post|\.dev|rc)[0-9]+)?$"
REPOSITORY = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
WORD = r"^[A-Za-z0-9._-]+$"
NOT_EMPTY = r"\S"
# A secret may be a part of the address, or all of it (gpuops.playbook.interpolate).
WEBHOOK = r"^(https?://|@\{secret:)\S+$"
GPU = r"^(GPU|MIG)-[0-9A-Za-z-]+$"

PATTERN_WORDS: Mapping[str, str] = {
    VARIABLE: "the name of an environment variable: letters, digits and '_'",
    FLAG: "the name of a flag without its leading dashes, such as 'attention-backend'",
    SHA256: "a sha256: 64 lower-case hexadecimal digits",
    PINNED: "a pinned requirement, NAME==VERSION",
    VERSION: "an exact version such as '0.5.23'",
    REPOSITORY: "a repository, ORG/NAME",
    NAME: "a name of at most 63 letters, digits, '.', '_' and '-', which starts with a letter or digit",
    WORD: "a word of letters, digits, '.', '_' and '-'",
    NOT_EMPTY: "text that is not empty",
    WEBHOOK: "an http or https address",
}
"""The patterns of this module in words, for error messages."""


class Section(BaseModel):
    """A mapping of the playbook: unknown keys are errors; ``x-`` keys, and keys whose value is null, count as absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"patternProperties": {"^x-": {}}})
    # The key that tells this kind of a section from its other kinds, if there are any.
    tag: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_absent(cls, data: Any) -> Any:
        return present(data)


def present(data: Any) -> Any:
    """A mapping without its ``x-`` keys and without the keys whose value is null; anything else as it is."""
    if not isinstance(data, dict):
        return data
    return {key: value for key, value in data.items() if value is not None and not is_extension(key)}


def example(**values: Any) -> ConfigDict:
    """The model configuration that carries an example of the section into schema and reference."""
    return ConfigDict(json_schema_extra={"patternProperties": {"^x-": {}}, "examples": [values]})


def host_word(key: str) -> AfterValidator:
    def check(word: str) -> str:
        problem = host_word_problem(key, word)
        if problem is not None:
            raise ValueError(problem)
        return word

    return AfterValidator(check)


def _service(name: str) -> str:
    if not SERVICE.match(name):
        raise ValueError(f"expected {SERVICE_WORDS}, not {name!r}")
    return name


def _port(value: Any) -> Any:
    digits = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        digits = int(value)
    if value != "auto" and (digits is None or not 0 < digits < 65536):
        raise ValueError(f"expected a port from 1 to 65535, or 'auto', not {value!r}")
    return digits if digits is not None else value


def no_switch(value: Any) -> Any:
    # bool is an int to Python: true would pass for 1.
    if isinstance(value, bool):
        raise ValueError(f"expected a number, not {str(value).lower()}")
    return value


def _flag_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        if not value or any(isinstance(item, (bool, list, tuple, dict, type(None))) for item in value):
            raise ValueError("expected a list of texts and numbers, at least one")
        return tuple(value)
    return value


def _env_text(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        raise ValueError(f"expected text: write it in quotes as the server shall see it, not {shown}")
    return value


def _some(items: tuple[Any, ...]) -> tuple[Any, ...]:
    # Not pydantic's min_length, which would count a wrong item as one that is missing, and report both.
    if not items:
        raise ValueError("expected a list of at least one")
    return items


def _gpus(value: Any) -> Any:
    if value == "all":
        return value
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"expected 'all', or a list of at least one card, not {value!r}")
    for card in value:
        number = isinstance(card, int) and not isinstance(card, bool) and card >= 0
        if not number and not (isinstance(card, str) and re.match(GPU, card)):
            raise ValueError(f"expected a card's number or its UUID (GPU-... or MIG-...), not {card!r}")
        if list(value).count(card) > 1:
            raise ValueError(f"the card {card} is named twice")
    return tuple(value)


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return pattern


Text = Annotated[str, Field(pattern=NOT_EMPTY)]
Seconds = Annotated[float, BeforeValidator(no_switch), Field(gt=0, le=7 * 86400)]
Variable = Annotated[str, Field(pattern=VARIABLE)]
Sha256 = Annotated[str, Field(pattern=SHA256)]
ServiceName = Annotated[
    str,
    AfterValidator(_service),
    WithJsonSchema({"type": "string", "pattern": SERVICE.pattern.replace(r"\Z", "$")}),
]
Port = Annotated[
    int | Literal["auto"],
    PlainValidator(_port),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": 65535}], "default": "auto"}),
]
# Any, because what remains of YAML once _flag_value has passed it is what a flag may be, and it is to be dumped as it is.
FlagValue = Annotated[
    Any, BeforeValidator(_flag_value), WithJsonSchema({"type": ["null", "boolean", "number", "string", "array", "object"]})
]
EnvValue = Annotated[str, BeforeValidator(_env_text), WithJsonSchema({"type": ["string", "integer"]})]
Flags = Annotated[dict[Annotated[str, Field(pattern=FLAG)], FlagValue], BeforeValidator(present)]
Env = Annotated[dict[Variable, EnvValue], BeforeValidator(present)]
Checksums = Annotated[dict[str, Sha256], BeforeValidator(present)]
Pinned = Annotated[str, Field(pattern=PINNED)]
Name = Annotated[str, Field(pattern=NAME)]
Regex = Annotated[Text, AfterValidator(_compiles)]
NotEmpty = AfterValidator(_some)
Count = Annotated[int, BeforeValidator(no_switch)]
Webhook = Annotated[str, Field(pattern=WEBHOOK)]
Gpus = Annotated[
    Any,
    BeforeValidator(_gpus),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "all"},
                {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": GPU}]}},
            ]
        }
    ),
]
TransportName = Literal["auto", "fabric", "openssh"]
