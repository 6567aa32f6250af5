"""The picture of the layers shows the layers, and imports that lead downwards."""

from tools.layers import PICTURE, imports, layers, picture


def test_the_picture_is_of_this_code():
    assert PICTURE.read_text("utf-8") == picture(), "run: python -m tools.layers"


def test_no_import_leads_upwards():
    place = {name: number for number, name in enumerate(layers())}
    assert [ends for ends in imports() if place[ends[0]] > place[ends[1]]] == []
