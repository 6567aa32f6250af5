"""Tests of the diagram of the layers, and that imports go downwards."""

from tools.layers import PICTURE, imports, layers, picture


def test_the_picture_is_of_this_code():
    assert PICTURE.read_text("utf-8") == picture(), "run: python -m tools.layers"


def test_no_import_leads_upwards():
    position = {name: number for number, name in enumerate(layers())}
    assert [pair for pair in imports() if position[pair[0]] > position[pair[1]]] == []
