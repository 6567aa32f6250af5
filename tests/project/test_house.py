"""Tests of the tool that measures the code (`python -m tools.house`)."""

import pytest

from tools.house import measure, report

SOURCE = '''
"""A module."""

LIMIT = 3
"""An attribute's docstring is no code."""


class Engine:
    def run(self, a, b, c, d, e, f, g, *, h):  # eight parameters
        """A docstring of a
        function."""

        def inner(algorithm):
            return isinstance(algorithm, int)

        return inner(a)
'''


@pytest.fixture
def house(tmp_path):
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "one.py").write_text(SOURCE)
    long = "def long():\n" + "    pass\n" * 80 + "x = 1\n" * 400
    (tmp_path / "long.py").write_text(long)
    return measure(tmp_path)


def test_lines_of_code_have_no_comments_and_docstrings(house):
    assert house.files == 2
    assert house.lines == 6 + 481
    assert house.long_files == {"long.py": 481}
    assert house.long_functions == {"long.py::long": 81}


def test_parameters_and_tests_of_algorithms_are_found(house):
    assert house.many_parameters == {"engines/one.py::Engine.run": 8}
    assert list(house.tests_of_algorithms) == ["engines/one.py:14"]
    assert any("engines/one.py:14" in line for line in report(house))
