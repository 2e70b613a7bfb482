"""A report as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

from importlib.resources import files

from gpuops.errors import GpuopsError
from gpuops.report.charts import charts
from gpuops.report.sheet import Sheet, Table

TEMPLATE = "page.html"

# Words of a table that are shown in the colour of what they mean; the page has a class for each.
VERDICTS = frozenset({"improved", "passed", "right", "regressed", "slower", "failed", "wrong", "down"})


def html(sheet: Sheet) -> str:
    """The page. Raises GpuopsError when what it needs (the extra ``report``) is not installed."""
    drawn = charts(sheet)
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise GpuopsError(
            "a page needs jinja2, which is not installed",
            evidence=str(error),
            next="pip install 'gpuops[report]'; without -o the report is shown here",
            kind="report_extra",
        ) from error
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    )
    # The drawings are ours, and matplotlib has escaped every word in them.
    shown = [{"name": each.name, "title": each.title, "note": each.note, "svg": Markup(each.svg)} for each in drawn]
    return template.render(sheet=sheet, charts=shown, verdicts=VERDICTS) + "\n"


def markdown(sheet: Sheet) -> str:
    """The same without charts."""
    lines = [f"# {_plain(sheet.title)}", ""]
    lines += [f"- **{_plain(name)}**: {_plain(text)}" for name, text in sheet.about]
    lines += ["", *(f"> {_plain(text)}" for text in sheet.said)] if sheet.said else []
    for table in sheet.tables:
        lines += ["", f"## {_plain(table.title)}", "", *_table(table)]
    return "\n".join(lines) + "\n"


def _table(table: Table) -> list[str]:
    rows = [_row(table.head), _row(["---"] * len(table.head)), *map(_row, table.rows)]
    return [*rows, "", table.note] if table.note else rows


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """Text on one line that opens no cell, no tag and no link."""
    for mark in ("\\", "|", "<", "[", "`"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
