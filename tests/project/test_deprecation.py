"""Deprecated names work, and warn where they are used."""

import asyncio
import dataclasses
import inspect
import re
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


def __getattr__(name):
    return 8 if name == "computed" else _load(name)


RECIPE
"""
ROOT = Path(__file__).parents[2]


def old_function(value: int) -> int:
    return value + 1


deprecate = UNCHECKED["deprecated"]("new_function", removal="0.3")
rename = UNCHECKED["renamed_arguments"]({"path": "directory"}, removal="0.3")


@dataclasses.dataclass(frozen=True)
class Plain:
    directory: str
    count: int = 1

    @property
    @deprecate  # type: ignore[untyped-decorator]
    def path(self) -> str:
        return self.directory


Settings = rename(dataclasses.dataclass(frozen=True)(type("Settings", (Plain,), {})))


@deprecate
class Pair(NamedTuple):
    first: int
    second: int


@renamed_arguments({"path": "directory", "kind": "type_name"}, removal="0.3")
def read(directory: str, type_name: str = "a") -> tuple[str, str]:
    return directory, type_name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a lazy face, like those of fedbilevel."""
    package = tmp_path / "package_with_old_name"
    package.mkdir()
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    (recipe,) = re.findall(r"`(__getattr__ = renamed_names\(.*?\))`", contributing)
    recipe = recipe.replace("Old", "OldName").replace("New", "NewName")
    (package / "__init__.py").write_text(FACE.replace("RECIPE", recipe))
    (package / "__init__.pyi").write_text("from .inside import NewName\n")
    (package / "inside.py").write_text("NewName = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    return package.name


def test_a_deprecated_function_works_and_warns_at_its_caller():
    message = "old_function is deprecated and will be removed in 0.3; use new_function"
    with pytest.warns(DeprecationWarning, match=message) as shown:
        assert deprecate(old_function)(value=1) == 2
    assert shown[0].filename == __file__
    assert deprecate(old_function).__name__ == "old_function"


def test_an_argument_is_taken_by_its_old_name():
    with pytest.warns(DeprecationWarning, match=r"read\(path=\.\.\.\) .* directory"):
        assert read(path="b") == ("b", "a")  # type: ignore[call-arg]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read("b", type_name="c") == ("b", "c")


def test_both_names_of_an_argument_are_refused():
    with pytest.raises(TypeError, match="both directory and path"):
        read(directory="a", path="b")  # type: ignore[call-arg]


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
        assert module.computed == 8
        with pytest.raises(AttributeError, match="Unknown"):
            module.Unknown  # noqa: B018


def test_a_dataclass_with_a_renamed_field_stays_a_class():
    with pytest.warns(DeprecationWarning, match=r"Settings\(path=\.\.\.\)") as shown:
        settings = Settings(path="a", count=2)
    assert shown[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings == Settings("a", 2)
        assert isinstance(settings, Settings)
        assert dataclasses.replace(settings, directory="b") == Settings("b", 2)
        match settings:
            case Settings(directory=directory):
                assert directory == "a"
            case _:
                pytest.fail("the pattern must match")
        derived = type("Derived", (Settings,), {})("c")
    assert isinstance(derived, Settings)
    assert list(inspect.signature(Settings).parameters) == ["directory", "count"]
    with pytest.raises(TypeError, match="both path and directory"):
        dataclasses.replace(settings, path="b")
    with pytest.warns(DeprecationWarning, match=r"Plain\.path is deprecated") as shown:
        assert settings.path == "a"
    assert shown[0].filename == __file__


def test_a_deprecated_class_stays_a_class_and_warns_at_its_caller():
    with pytest.warns(DeprecationWarning, match="Pair is deprecated") as shown:
        pair = Pair(1, second=2)
    assert shown[0].filename == __file__
    assert isinstance(pair, Pair)
    assert pair._replace(first=3) == (3, 2)


def test_a_deprecated_class_without_arguments_can_be_derived_from():
    class Base:
        pass

    class Derived(deprecate(Base)):  # type: ignore[misc]
        def __init__(self, value: int) -> None:
            self.value = value

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Derived(1).value == 1
    with pytest.warns(DeprecationWarning, match="Base is deprecated"):
        assert isinstance(Base(), Base)


def test_a_generator_function_warns_when_it_is_called():
    def count(directory: int) -> Iterator[int]:
        yield from range(directory)

    with pytest.warns(DeprecationWarning, match="count"):
        numbers = deprecate(count)(3)
    assert list(numbers) == [0, 1, 2]
    with pytest.warns(DeprecationWarning, match=r"count\(path=\.\.\.\)"):
        numbers = rename(count)(path=2)
    assert list(numbers) == [0, 1]


def test_a_coroutine_function_stays_one_and_warns_where_it_is_awaited():
    async def read(directory: str) -> str:
        return directory

    async def call(function, **keywords):
        return await function(**keywords)

    assert inspect.iscoroutinefunction(deprecate(read))
    assert inspect.iscoroutinefunction(rename(read))
    with pytest.warns(DeprecationWarning, match="read is deprecated") as shown:
        assert asyncio.run(call(deprecate(read), directory="a")) == "a"
    assert shown[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"path=\.\.\.") as shown:
        assert asyncio.run(call(rename(read), path="b")) == "b"
    assert shown[0].filename == __file__


@pytest.mark.parametrize("kind", [classmethod, staticmethod, property])
def test_decorators_are_refused_above_those_that_make_no_function(kind):
    name = kind.__name__
    with pytest.raises(TypeError, match=f"put @deprecated below @{name}"):
        deprecate(kind(old_function))
    with pytest.raises(TypeError, match=f"put @renamed_arguments below @{name}"):
        rename(kind(old_function))


def test_a_deprecated_classmethod_has_its_class():
    class Reader:
        @classmethod
        @deprecate  # type: ignore[untyped-decorator]
        def name(cls) -> str:
            return cls.__name__

    with pytest.warns(DeprecationWarning, match=r"Reader\.name is deprecated"):
        assert Reader.name() == "Reader"


def test_two_old_names_of_an_argument_are_refused_by_their_names():
    names = {"path": "directory", "place": "directory"}
    find = UNCHECKED["renamed_arguments"](names, removal="0.3")(lambda directory: 1)
    message = "both path and place, .* give directory alone"
    with pytest.raises(TypeError, match=message):
        find(path="a", place="b")


def test_the_version_is_listed():
    assert "__version__" in dir(fedbilevel)
    assert set(fedbilevel.__all__) < set(dir(fedbilevel))
