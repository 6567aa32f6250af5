"""Data sets in the hub's layout, from directories, with the hub unreachable."""

import sys

import numpy as np
import pytest

from fedbilevel.datasets import hub

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, (8, 5, 4), np.uint8)
COLOURS = GENERATOR.integers(0, 256, (8, 2, 3, 3), np.uint8)
PEOPLE = {
    "age": [20, 41, 35, 60],
    "height": [1.5, 1.75, 2.0, 1.25],
    "member": [True, False, True, True],
    "visits": [[1, 2], [3, 4], [5, 6], [7, 8]],
    "name": ["Ada", "Bo", "Cy", "Di"],
    "paid": ["no", "yes", "no", "later"],
}


def shards(directory, rows, test):
    """Write train and test in the hub's layout, training in two shards."""
    for number in range(2):
        part = rows.shard(2, number, contiguous=True)
        part.to_parquet(f"{directory}/data/train-0000{number}-of-00002.parquet")
    test.to_parquet(f"{directory}/data/test-00000-of-00001.parquet")
    return str(directory)


def images(pixels, labels):
    import datasets as hf

    types = hf.Features(
        {"image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog", "owl"])}
    )
    return hf.Dataset.from_dict({"image": list(pixels), "label": labels}, types)


@pytest.fixture(autouse=True)
def out_of_reach(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def people(tmp_path):
    import datasets as hf

    rows = hf.Dataset.from_dict(PEOPLE)
    return shards(tmp_path / "people", rows, rows.select([3, 1]))


@pytest.mark.parametrize("pixels", [PIXELS, COLOURS], ids=["grey", "coloured"])
def test_images_are_rows_of_pixels_from_0_to_1(pixels, tmp_path):
    labels = [0, 1, 1, 0, 1, 0]
    directory = shards(tmp_path, images(pixels[:6], labels), images(pixels[6:], [1, 1]))
    data = hub(directory)
    flat = pixels.reshape(8, -1) / np.float32(255)
    np.testing.assert_allclose(data.train.features, flat[:6], rtol=1e-6)
    np.testing.assert_allclose(data.test.features, flat[6:], rtol=1e-6)
    assert data.train.labels.tolist() == labels
    assert data.train.labels.dtype == np.int32
    assert data.classes == 3  # "owl" has a name but no image


def test_the_values_of_a_column_are_groups_with_names(people):
    data = hub(people, label="paid", by="name")
    assert data.group_names == ("Ada", "Bo", "Cy", "Di")
    assert data.train_groups.tolist() == [0, 1, 2, 3]
    assert data.test_groups.tolist() == [3, 1]
    # A column of numbers is no feature if it has the groups.
    data = hub(people, label="paid", by="age")
    assert data.group_names == ("20", "35", "41", "60")
    assert data.train.features.shape == (4, 4)
    with pytest.raises(ValueError, match="has no column 'agee'"):
        hub(people, label="paid", by="agee")


def test_groups_of_classes_have_the_names_of_the_classes(tmp_path):
    rows = images(PIXELS[:4], [0, 2, 0, 0])
    data = hub(shards(tmp_path, rows, rows), by="label")
    assert data.group_names == ("cat", "owl")
    assert data.train_groups.tolist() == [0, 1, 0, 0]


def test_images_of_16_bits_too(tmp_path):
    from PIL import Image as Pillow

    deep = [Pillow.fromarray(np.full((2, 2), value, np.uint16)) for value in (0, 65535)]
    rows = images(deep, [0, 1])
    assert hub(shards(tmp_path, rows, rows)).train.features[:, 0].tolist() == [0, 1]


def test_a_card_may_say_which_files_are_which_split(tmp_path):
    rows = images(PIXELS[:4], [0, 1, 2, 0])
    rows.to_parquet(tmp_path / "pictures" / "first.parquet")
    rows.select([2]).to_parquet(tmp_path / "pictures" / "second.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - split: train\n    path: pictures/first.parquet\n"
        "  - split: test\n    path: pictures/second.parquet\n---\n# Pictures\n"
    )
    data = hub(str(tmp_path))
    assert len(data.train.labels) == 4
    assert data.test.labels.tolist() == [2]


def test_all_numbers_are_features_and_words_are_classes_in_their_order(people):
    data = hub(people, label="paid")
    assert data.train.features[1].tolist() == [41, 1.75, 0, 3, 4]
    assert data.train.features.shape == (4, 5)
    assert data.train.labels.tolist() == [1, 2, 1, 0]  # later, no, yes
    assert data.test.labels.tolist() == [0, 2]
    assert data.classes == 3


def test_columns_and_parts_of_a_split_can_be_chosen(people):
    data = hub(
        people,
        features=["height", "age"],
        label="member",
        splits=("train[:75%]", "train[75%:]"),
    )
    assert data.train.features.tolist() == [[1.5, 20], [1.75, 41], [2.0, 35]]
    assert data.test.features.tolist() == [[1.25, 60]]
    assert data.train.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": "payed"}, "has no column 'payed'; did you mean paid?"),
        (
            {"label": "paid", "features": ["agee"]},
            "no column 'agee'; did you mean age?",
        ),
        ({"label": "height"}, "'height' has type Value.*, expected classes"),
        ({"label": "visits"}, "'visits' has type List.*, expected classes"),
        ({"label": "paid", "features": ["name"]}, "'name' .* expected images or numb"),
        (
            {"label": "paid", "splits": ("train", "held_back")},
            r"has no splits \['train",
        ),
    ],
)
def test_a_mistake_is_told_with_its_cure(arguments, message, people):
    with pytest.raises(ValueError, match=message):
        hub(people, **arguments)


def test_what_cannot_be_numbers_of_equal_size_is_refused(tmp_path):
    import datasets as hf

    rows = hf.Dataset.from_dict(
        {"age": [1.0, None], "ragged": [[1], [1, 2]], "label": [0, 1]},
        hf.Features(
            age=hf.Value("float32"),
            ragged=hf.List(hf.Value("int64")),
            label=hf.Value("int8"),
        ),
    )
    directory = shards(tmp_path, rows, rows)
    with pytest.raises(ValueError, match=r"'age' has missing values in 1 example"):
        hub(directory)
    with pytest.raises(ValueError, match=r"different sizes, \(1,\) and \(2,\)"):
        hub(directory, features=["ragged"])


def test_examples_without_a_label_are_refused(tmp_path):
    rows = images(PIXELS[:4], [0, 1, 2, 0])
    directory = shards(tmp_path, rows, images(PIXELS[:1], [-1]))
    with pytest.raises(ValueError, match="the class -1, which has no name"):
        hub(directory)


def test_a_table_of_words_only_is_refused(tmp_path):
    import datasets as hf

    rows = hf.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(ValueError, match="no column of images or numbers except"):
        hub(shards(tmp_path, rows, rows))


def test_a_set_out_of_reach_is_told_with_the_way_to_copy_it():
    with pytest.raises(FileNotFoundError) as caught:
        hub("somebody/nothing")
    assert "run `hf download somebody/nothing --repo-type dataset" in str(caught.value)


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'fedbilevel\[partition\]'"):
        hub("somebody/something")
