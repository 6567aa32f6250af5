"""Experiments whose devices are the sites of a data set."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from fedbilevel import FedBiO, InMemoryDevices, LocalExamples, Weights, datasets
from fedbilevel.commands.run_monitor import follow
from fedbilevel.data.partitions import take
from fedbilevel.datasets.table import GroupedDataSet
from fedbilevel.experiments.build import build_task, require_finite, weights_of
from fedbilevel.experiments.federation import names_for_sites, sites_of
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.schema import Data, Experiment, Partition
from fedbilevel.experiments.schema.federation import FederationSettings
from fedbilevel.experiments.site_rows import mixed_order
from fedbilevel.experiments.split_data import split_data

SIZES = {"Maine": 40, "Ohio": 4, "Texas": 100, "Utah": 6}
FILE = """
rounds = 2

[algorithm]
name = "FedBiO"
learning_rate = 0.1

[data]
name = "tabular"
path = "people.csv"
label = "died"

[partition]
by = "state"
"""


@pytest.fixture
def directory(tmp_path):
    """Return a directory with an experiment file and a table of people by state."""
    generator = np.random.default_rng(0)
    lines = ["age,died,state"]
    for state, size in SIZES.items():
        for age in generator.integers(20, 90, size):
            lines.append(
                f"{age},{'yes' if generator.random() < age / 90 else 'no'},{state}"
            )
    (tmp_path / "people.csv").write_text("\n".join(lines))
    (tmp_path / "first.toml").write_text(FILE)
    return tmp_path


def table_of(directory):
    data = datasets.tabular(directory / "people.csv", label="died", by="state")
    assert isinstance(data, GroupedDataSet)
    return data


def settings(directory, **partition):
    data = Data("tabular", path=str(directory / "people.csv"), label="died")
    return data, Partition(by="state", **partition)


def test_each_site_has_its_examples_and_its_name(directory):
    source = table_of(directory)
    data = split_data(*settings(directory))
    assert data.names == ("Maine", "Ohio", "Texas", "Utah")
    split = data.split
    for site, rows in enumerate(
        zip(split.training_rows, split.validation_rows, strict=True)
    ):
        tables = split.training, split.validation
        parts = [take(table, part) for table, part in zip(tables, rows, strict=True)]
        mine = [np.column_stack([part.features, part.labels]) for part in parts]
        members = source.train_groups == site
        expected = np.column_stack(
            [source.train.features[members], source.train.labels[members]]
        )
        got = np.concatenate(mine)
        np.testing.assert_array_equal(
            got[np.lexsort(got.T)], expected[np.lexsort(expected.T)]
        )
        assert 0.15 <= len(rows[1]) / len(expected) <= 0.34 or len(expected) < 6


def test_a_smaller_draw_has_the_same_shares(directory):
    data, parts = settings(directory)
    data = Data(data.name, 50, 20, path=data.path, label=data.label)
    split = split_data(data, parts).split
    for parts_of_sites, count in (
        (split.training_rows, 50),
        (split.validation_rows, 20),
    ):
        sizes = np.array([len(rows) for rows in parts_of_sites])
        assert sizes.sum() == count
        assert sizes.min() >= 1
        shares = np.array([32, 4, 80, 5]) / 121  # without a fifth of each for test
        assert np.abs(sizes - count * shares).max() < 1.5


def test_small_sites_are_dropped_with_their_test_examples_and_a_warning(
    directory, caplog
):
    source = table_of(directory)
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        data = split_data(*settings(directory, smallest=10))
    assert data.names == ("Maine", "Texas")
    assert "smallest is 10: 2 small sites with 9 rows dropped: Ohio" in caplog.text
    assert len(data.split.test.labels) == (source.test_groups % 2 == 0).sum()
    assert sum(map(len, data.split.training_rows)) == len(data.split.training.labels)


def test_small_sites_are_merged_with_a_warning(directory, caplog):
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        data = split_data(*settings(directory, smallest=9, other="other states"))
    assert data.names == ("Maine", "Texas", "other states")
    assert "merged into 'other states'" in caplog.text
    assert len(data.split.test.labels) == len(table_of(directory).test.labels)


def test_a_site_without_an_example_of_both_is_refused(directory):
    data, parts = settings(directory)
    data = Data(data.name, 4, 2, path=data.path, label=data.label)
    with pytest.raises(
        ValueError, match=r"Site '.*' has \d training and \d validation"
    ):
        split_data(data, parts)


def test_other_partitions_have_no_names(directory):
    data, _ = settings(directory)
    assert split_data(data, Partition(devices=3)).names is None


def test_the_file_is_relative_to_the_experiment(directory, monkeypatch):
    monkeypatch.chdir("/")
    task = build_task(read_experiment(directory / "first.toml"))
    assert task.devices.device_count == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('path = "people.csv"', "", 'name is "tabular"; give the path'),
        ('name = "tabular"', 'name = "digits"', 'name is "hub" or "tabular", but name'),
        ('label = "died"', 'splits = ["a", "b"]', 'only if name is "hub", but name'),
        ('by = "state"', 'by = "state"\nnatural = true', "natural is true, so by ="),
        ('by = "state"', 'by = "state"\nconcentration = 1', "by is 'state', so conc"),
        ('by = "state"', "smallest = 3", "it applies only to the devices of natural"),
        ('by = "state"', 'by = "state"\nother = "x"', "fewer examples than smallest"),
    ],
)
def test_a_wrong_combination_is_refused_in_a_sentence(old, new, message, directory):
    (directory / "first.toml").write_text(FILE.replace(old, new))
    with pytest.raises(ExperimentError) as caught:
        read_experiment(directory / "first.toml")
    assert message in str(caught.value)


def test_devices_and_sites_have_the_names_of_the_data(directory):
    experiment = read_experiment(directory / "first.toml")
    assert build_task(experiment).devices.names == tuple(SIZES)
    assert sites_of(experiment) == tuple(SIZES)
    sites = ("a", "b", "c", "d")
    given = replace(experiment, federation=FederationSettings(sites=sites))
    assert sites_of(given) == sites


@pytest.mark.slow
@pytest.mark.single_precision
def test_a_finished_run_has_the_names_of_its_devices(directory):
    experiment = read_experiment(directory / "first.toml")
    end = follow(experiment, directory / "run", resume=False, quiet=True)
    assert end == (True, 0, tuple(SIZES))


def test_names_that_no_site_may_have_become_numbers(directory):
    table = directory / "people.csv"
    table.write_text(table.read_text().replace("Ohio", "New York"))
    experiment = read_experiment(directory / "first.toml")
    assert "New York" in build_task(experiment).devices.names
    assert sites_of(experiment) == ("site-1", "site-2", "site-3", "site-4")


@pytest.mark.parametrize(
    "names", [("server", "a"), ("a", "A"), None, ("a/b", "c"), ("é", "c"), ("",)]
)
def test_names_of_devices_that_are_no_names_of_sites(names):
    assert names_for_sites(names) is None


def test_weights_by_size_are_those_of_each_level_if_a_device_lacks_one():
    rows = np.ones(3)
    experiment = Experiment(FedBiO(0.1), weight_by_size=True, size_limit=2)
    devices = InMemoryDevices([LocalExamples(rows, None), LocalExamples(None, rows)])
    weights = weights_of(experiment, devices)
    assert isinstance(weights, Weights)
    np.testing.assert_array_equal(weights, [[2, 0], [0, 2]])


def test_a_number_that_is_not_finite_is_found_behind_a_placeholder():
    bad = np.array([1.0, np.nan])
    local = {"Oslo": LocalExamples(np.ones(2), None), "Rome": LocalExamples(None, bad)}
    with pytest.raises(ValueError, match="Device Rome: row 1 of its lower examples"):
        require_finite(InMemoryDevices(local))


def test_natural_devices_are_the_groups_of_the_data(directory, monkeypatch):
    monkeypatch.setattr(datasets, "adult", lambda: table_of(directory))
    natural = split_data(Data("adult"), Partition(natural=True))
    by_column = split_data(*settings(directory))
    assert natural.names == by_column.names
    for rows, expected in (
        (natural.split.training_rows, by_column.split.training_rows),
        (natural.split.validation_rows, by_column.split.validation_rows),
    ):
        for got, part in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(got, part)


def test_label_noise_and_imbalance_apply_to_training_examples_alone(directory):
    data, parts = settings(directory)
    clean = split_data(data, parts)
    noisy = split_data(replace(data, label_noise=0.5), parts)
    assert noisy.wrong is not None
    np.testing.assert_array_equal(
        noisy.wrong, noisy.split.training.labels != clean.split.training.labels
    )
    tail = split_data(replace(data, imbalance=2.0), replace(parts, smallest=10)).split
    counts = np.bincount(tail.training.labels)
    assert counts.max() >= 1.8 * counts.min()
    assert sum(map(len, tail.training_rows)) == len(tail.training.labels)


def test_a_column_of_a_named_set_is_refused():
    with pytest.raises(ValueError, match=r"set partition\.natural = true"):
        split_data(Data("adult"), Partition(by="occupation"))


@pytest.mark.parametrize("training", [40, 100, 140])
def test_training_rows_have_the_shares_of_all_sites(training):
    generator = np.random.default_rng(0)
    site_of = np.repeat(np.arange(8), [2, 3, 4, 6, 10, 25, 50, 100])
    site_of = site_of[generator.permutation(len(site_of))]
    order = mixed_order(site_of, training, 60)
    assert len(set(order.tolist())) == training + 60
    parts = [
        np.bincount(site_of[rows], minlength=8)
        for rows in (order[:training], order[training:])
    ]
    assert min(parts[0].min(), parts[1].min()) >= 1
    sizes = np.bincount(site_of)
    expected = sizes * training / len(site_of)
    # Two rows of each of eight sites come first.
    assert np.abs(parts[0] - expected).max() < 1 + 0.2 * expected.max()


def test_writing_and_reading_keep_the_keys_of_sites(tmp_path):
    experiment = Experiment(
        FedBiO(0.1),
        data=Data("tabular", path="/x/people.csv", label="died", features=("age",)),
        partition=Partition(by="state", smallest=5, other="rest"),
    )
    write_experiment(experiment, tmp_path / "again.toml")
    assert read_experiment(tmp_path / "again.toml") == experiment
