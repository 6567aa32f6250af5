"""Tests that the tables of results.md are those that `benchmarks.tasks` wrote."""

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TABLES = sorted(
    path
    for path in (DOCS / "results").glob("tasks-*.md")
    if "costs" not in path.name or "representation" in path.name
)


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.name)
def test_a_table_is_the_one_that_was_written(table):
    pages = [DOCS / "results" / name for name in ("real-tasks.md", "all-values.md")]
    shown = "".join(page.read_text("utf-8") for page in pages)
    assert table.read_text("utf-8").strip() in shown


def test_all_tables_are_shown():
    assert len(TABLES) == 7
