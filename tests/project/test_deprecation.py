"""Deprecated names work, and warn where they are used."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest

import fedbilevel.deprecation
from fedbilevel.deprecation import renamed_arguments

# Without the type checks of tests, whose wrappers would be the callers.
UNCHECKED = runpy.run_path(str(fedbilevel.deprecation.__file__))
FACE = """
import lazy_loader
from tests.project.test_deprecation import UNCHECKED

renamed_names = UNCHECKED["renamed_names"]

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = renamed_names(__name__, _load, {"OldName": "NewName"}, removal="0.3")
"""


def old_function(value: int) -> int:
    return value + 1


deprecate = UNCHECKED["deprecated"]("new_function", removal="0.3")


@renamed_arguments({"folder": "directory", "kind": "type_name"}, removal="0.3")
def read(directory: str, type_name: str = "a") -> tuple[str, str]:
    return directory, type_name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a lazy face, like those of fedbilevel."""
    folder = tmp_path / "package_with_old_name"
    folder.mkdir()
    (folder / "__init__.py").write_text(FACE)
    (folder / "__init__.pyi").write_text("from .inside import NewName\n")
    (folder / "inside.py").write_text("NewName = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder.name


def test_a_deprecated_function_works_and_warns_at_its_caller():
    message = "old_function is deprecated and will be removed in 0.3; use new_function"
    with pytest.warns(DeprecationWarning, match=message) as shown:
        assert deprecate(old_function)(value=1) == 2
    assert shown[0].filename == __file__
    assert deprecate(old_function).__name__ == "old_function"


def test_an_argument_is_taken_by_its_old_name():
    with pytest.warns(DeprecationWarning, match=r"read\(folder=\.\.\.\) .* directory"):
        assert read(folder="b") == ("b", "a")  # type: ignore[call-arg]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read("b", type_name="c") == ("b", "c")


def test_both_names_of_an_argument_are_refused():
    with pytest.raises(TypeError, match="both folder and directory"):
        read(directory="a", folder="b")  # type: ignore[call-arg]


def test_an_argument_that_the_function_lacks_is_refused_at_once():
    with pytest.raises(ValueError, match="has no argument missing"):
        renamed_arguments({"old": "missing"}, removal="0.3")(old_function)


def test_a_lazy_face_knows_a_renamed_name(package):
    message = f"{package}.OldName is deprecated .* 0.3; use {package}.NewName"
    with pytest.warns(DeprecationWarning, match=message) as shown:
        exec(f"from {package} import OldName; assert OldName == 7", {})
    assert shown[0].filename == "<string>"
    module = sys.modules[package]
    with pytest.warns(DeprecationWarning, match=message) as shown:
        assert module.OldName == 7
    assert shown[0].filename == __file__
    # Neither completion nor a star import brings the old name back.
    assert "OldName" not in dir(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.NewName == 7
        with pytest.raises(AttributeError, match="Unknown"):
            module.Unknown  # noqa: B018
