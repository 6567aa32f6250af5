import gzip
import hashlib
import sys
from pathlib import Path

import pytest

from fedbilevel.datasets.sources import File, Hub, Source, load

CONTENT = {"a.txt": b"first", "b.txt": b"second"}
FILES = tuple(
    File(name, hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items()
)


@pytest.fixture
def locations(tmp_path, monkeypatch):
    """The source, and its search directories in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBILEVEL_DATA", str(tmp_path / "mine"))
    system = tmp_path / "system" / "tiny-set", tmp_path / "other" / "tiny-set"
    source = Source("tiny", FILES, "the npm package tiny", system)
    return source, [tmp_path / "mine" / "tiny", Path(".data/tiny"), *system]


@pytest.fixture
def hub(monkeypatch):
    """A function that sets the hub's reply and returns the list of its calls."""
    calls = []

    def answer(reply):
        def load_dataset(repository):
            calls.append(repository)
            if isinstance(reply, Exception):
                raise reply
            return reply

        monkeypatch.setattr("datasets.load_dataset", load_dataset)
        return calls

    return answer


def fill(directory, contents, zipped=()):
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if name in zipped:
            (directory / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (directory / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [(), ("a.txt",), ("a.txt", "b.txt")])
def test_files_are_read_gzipped_or_not(locations, tmp_path, zipped):
    source, _ = locations
    fill(tmp_path / "own", CONTENT, zipped)
    assert load(source, dict, directory=tmp_path / "own") == CONTENT
    assert load(source, dict, directory=str(tmp_path / "own")) == CONTENT


@pytest.mark.parametrize("first", range(4))
def test_places_are_searched_in_order(locations, first):
    source, directories = locations
    for directory in directories[first:]:
        fill(directory, {"a.txt": b"wrong", "b.txt": b"wrong"})
    with pytest.raises(
        ValueError, match=r"differs from the published a\.txt"
    ) as caught:
        load(source, dict)
    assert str(caught.value).startswith(str(directories[first] / "a.txt"))


def test_an_incomplete_place_is_passed_over(locations):
    source, directories = locations
    fill(directories[0], {"a.txt": b"first"})
    fill(directories[2], CONTENT)
    assert load(source, dict) == CONTENT


def test_only_a_given_directory_is_searched(locations, hub):
    source, directories = locations
    fill(directories[1], CONTENT)
    calls = hub({})
    with pytest.raises(FileNotFoundError) as caught:
        load(source, dict, directory="elsewhere", hub=Hub("some/repository", dict))
    assert "- elsewhere: no such directory\n" in str(caught.value)
    assert ".data/tiny:" not in str(caught.value)
    assert not calls


def test_the_hub_is_asked_last(locations, hub):
    source, directories = locations
    calls = hub({"a.txt": b"from the hub"})
    from_hub = load(source, dict, hub=Hub("some/repository", dict))
    assert from_hub == {"a.txt": b"from the hub"}
    assert calls == ["some/repository"]
    fill(directories[3], CONTENT)
    assert load(source, dict, hub=Hub("some/repository", dict)) == CONTENT
    assert len(calls) == 1


def test_missing_everywhere_names_each_place_with_its_reason(
    locations, hub, monkeypatch, tmp_path
):
    source, directories = locations
    monkeypatch.delenv("FEDBILEVEL_DATA")
    fill(directories[2], {"a.txt": b"first"})
    hub(ConnectionError("no route"))
    with pytest.raises(FileNotFoundError) as caught:
        load(source, dict, hub=Hub("some/repository", dict))
    assert str(caught.value).splitlines() == [
        "Data set tiny not found.",
        "- $FEDBILEVEL_DATA/tiny: the variable is not set",
        "- .data/tiny: no such directory",
        f"- {tmp_path}/system/tiny-set: b.txt missing",
        f"- {tmp_path}/other/tiny-set: no such directory",
        "- some/repository on the Hugging Face hub: ConnectionError: no route",
        "Get a.txt, b.txt from the npm package tiny and copy them, gzipped or not, to "
        ".data/tiny, or pass their directory=... In a checkout, "
        "`python -m benchmarks.fetch_data tiny` downloads them.",
    ]
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_hub_without_its_library_says_what_to_install(locations, monkeypatch):
    source, _ = locations
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FileNotFoundError, match=r"hub: ImportError: .* pip install"):
        load(source, dict, hub=Hub("some/repository", dict))


def test_rows_of_the_hub_that_are_refused_are_not_called_missing(locations, hub):
    source, _ = locations
    hub({})

    def convert(rows):
        raise ValueError("the rows are others")

    with pytest.raises(ValueError, match="the rows are others"):
        load(source, dict, hub=Hub("some/repository", convert))


def test_a_wrong_checksum_is_refused_though_another_place_has_the_file(locations):
    source, directories = locations
    fill(directories[0], {"a.txt": b"first", "b.txt": b"third"}, zipped=("b.txt",))
    fill(directories[1], CONTENT)
    with pytest.raises(ValueError, match=r"b\.txt\.gz differs from the published b"):
        load(source, dict)


@pytest.mark.parametrize("keep", [3, 20])
def test_a_damaged_gzip_file_is_named(locations, keep):
    source, directories = locations
    fill(directories[0], CONTENT, zipped=("a.txt",))
    path = directories[0] / "a.txt.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.txt\.gz is damaged"):
        load(source, dict)
