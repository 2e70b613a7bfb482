"""The schema and the reference page, both generated from the models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuops.playbook import measuring, models, probing
from gpuops.playbook.reference import reference, schema
from gpuops.playbook.values import Section

DOCS = Path(__file__).parents[3] / "docs"
NAMED = {**vars(models), **vars(measuring), **vars(probing)}
SECTIONS = [value for value in NAMED.values() if isinstance(value, type) and issubclass(value, Section) and value is not Section]


def test_the_committed_page_is_the_generated_one() -> None:
    assert (DOCS / "playbook.md").read_text(encoding="utf-8") == reference(), (
        "run: python -m gpuops.playbook.reference > docs/playbook.md"
    )


def test_the_schema_is_json_and_forbids_unknown_keys_but_x_keys() -> None:
    whole = json.loads(json.dumps(schema()))

    for definition in [whole, *whole["$defs"].values()]:
        assert definition["additionalProperties"] is False
        assert definition["patternProperties"] == {"^x-": {}}


def test_every_section_is_in_the_schema() -> None:
    assert {section.__name__ for section in SECTIONS} == {*schema()["$defs"], "Playbook"}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_key_has_a_meaning(section: type[Section]) -> None:
    assert [name for name, field in section.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("section", [section for section in SECTIONS if section is not models.Playbook], ids=lambda s: s.__name__)
def test_every_section_has_an_example_that_is_valid(section: type[Section]) -> None:
    (values,) = schema()["$defs"][section.__name__]["examples"]

    assert section.model_validate(values)


def test_the_page_explains_every_key() -> None:
    page = reference()
    keys = [field.alias or name for section in SECTIONS for name, field in section.model_fields.items()]

    assert [name for name in keys if f"| `{name}` |" not in page] == []
