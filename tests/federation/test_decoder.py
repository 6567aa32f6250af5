"""The decoder returns valid arrays or refuses, with little memory, for any input."""

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation import RefusedError
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.wire_format import DTYPES, decode, encode
from tests.federation.alike import PROBLEM, algorithm, sites
from tests.federation.fuzz import KINDS, sealed, with_header
from tests.waiting import HANG

MOST_BYTES = 50_000_000
"""Maximum growth of a process in bytes, for inputs of up to 1 MB."""


@pytest.mark.process
@pytest.mark.parametrize(
    "inputs", [4_000, pytest.param(100_000, marks=pytest.mark.nightly)]
)
def test_of_many_inputs_each_is_refused_or_of_the_right_form(inputs):
    command = [sys.executable, "-m", "tests.federation.fuzz", "0", str(inputs)]
    root = Path(__file__).parents[2]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=root,
        env={**os.environ, "JAX_ENABLE_X64": "true"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    reply = json.loads(result.stdout)
    assert sum(reply["seen"].values()) == inputs
    assert set(reply["seen"]) == {*KINDS, "large", "enrolment"}
    # Many must be accepted: otherwise only the checksum would be tested.
    for kind in ("changed header", "bits flipped", "other arrays"):
        assert reply["refused"][kind] < 3 * reply["seen"][kind]
    assert reply["grown"] < MOST_BYTES


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_messages_are_of_the_safetensors_format(shape, dtype):
    # The safetensors library reads our messages, and we read its files.
    arrays = {"b": np.ones(shape, dtype), "a": np.zeros((3,), dtype)}
    read = dict(safetensors.deserialize(encode(arrays)[4:]))
    for name, array in arrays.items():
        assert bytes(read[name]["data"]) == array.tobytes()
        assert tuple(read[name]["shape"]) == array.shape
    result = decode(sealed(safetensors.numpy.save(arrays)))
    for name, array in arrays.items():
        assert result[name].dtype == array.dtype
        np.testing.assert_array_equal(result[name], array)


def text_of(**reply):
    return json.dumps({"a": {"dtype": "U8", **reply}}).encode()


REFUSED = {
    "nothing": b"",
    "a digest alone": sealed(b""),
    "1 TB of header": sealed(struct.pack("<Q", 2**40) + b"{}"),
    "1 TB of content": with_header(
        text_of(shape=[2**40], data_offsets=[0, 2**40]), bytes(8)
    ),
    # The format allows any dimensions after a zero, but NumPy limits them.
    "nothing, but enormous": with_header(
        text_of(shape=[0, 2**62, 2**62], data_offsets=[0, 0]), b""
    ),
    "nothing, in 2**64 columns": with_header(
        text_of(shape=[0, 2**64 - 1], data_offsets=[0, 0]), b""
    ),
    "70 dimensions": with_header(text_of(shape=[1] * 70, data_offsets=[0, 1]), b"1"),
    "a negative shape": with_header(text_of(shape=[-1], data_offsets=[0, 1]), b"1"),
    "a truth value of 7": with_header(
        b'{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}', b"\7"
    ),
    "complex numbers": with_header(
        b'{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}', bytes(8)
    ),
    "numbers of 8 bits": with_header(
        b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}', bytes(1)
    ),
    "overlapping arrays": with_header(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"1",
    ),
    "deep JSON": with_header(b'{"a":' * 100_000, b""),
    "a pickle": pickle.dumps({"x": np.ones(3)}),
    "a sealed pickle": sealed(pickle.dumps({"x": np.ones(3)})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_refusal_is_short(name):
    with pytest.raises(RefusedError) as refusal:
        decode(REFUSED[name])
    assert len(str(refusal.value)) < 300


def test_a_refusal_quotes_the_sender_briefly_and_on_one_line():
    name = "very\nlong" * 10_000
    reply = {name: {"dtype": "U8", "shape": [1], "data_offsets": [5, 6]}}
    with pytest.raises(RefusedError) as refusal:
        decode(with_header(json.dumps(reply).encode(), b"1"))
    assert len(str(refusal.value)) < 300
    assert "\n" not in str(refusal.value)
    # A valid array of that name is not expected either.
    with pytest.raises(RefusedError) as refusal:
        Answer("a", Moment(0, 0), {name: np.ones(1)}).read({})
    assert len(str(refusal.value)) < 300
    assert "\n" not in str(refusal.value)


LARGEST = 2**63 - 1
NAME = "two exchanges, private state"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("phase", [0, 9]),
        ("phase", [0, LARGEST]),
        ("phase", [0, -1]),
        ("phase", [7, 0]),
        ("moment", [LARGEST, 0]),
        ("moment", [0, 2**40]),
        ("moment", [-1, 0]),
        ("key", [2**32 - 1, 2**32 - 1]),
        ("key", [1]),
        ("counted", [3, -5]),
        ("counted", [-5, 1]),
        ("counted", [0, 1, 0]),
        ("counted", [LARGEST, LARGEST]),
        ("counted", []),
        ("run", [46, 46, 47]),
    ],
)
def test_a_site_carries_out_a_task_or_refuses(part, value, tmp_path):
    site = sites(NAME, tmp_path)["site-0"]
    server, _ = algorithm(NAME).init(PROBLEM, np.zeros(3), np.zeros(4))
    downlink = {f":{where}": item for where, item in paths(server)}
    task = Task(
        "a",
        PhaseReference(False, 0),
        Moment(0, 0),
        np.zeros(2, np.uint32),
        (0, 0),
        downlink,
    )
    site.answer(task.encode())
    arrays = dict(decode(task.encode()))
    arrays[part] = np.array(value, arrays[part].dtype)
    try:
        site.answer(encode(arrays))
    except RefusedError:
        refused = True
    else:
        refused = False
    assert refused == (value != [2**32 - 1, 2**32 - 1])
    assert {path.name for path in tmp_path.rglob("*") if path.is_dir()} <= {
        "site-0",
        "a",
    }


def paths(tree):
    return [
        (jax.tree_util.keystr(path), np.asarray(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
