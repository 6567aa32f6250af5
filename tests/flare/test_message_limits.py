"""Processes of a kit accept no larger messages than the model needs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from nvflare.fuel.f3.streaming.blob_streamer import BlobTask
from nvflare.fuel.f3.streaming.stream_types import BlobSizeError, Stream, StreamFuture

from fedbilevel.flare.kit_settings import prepare
from fedbilevel.flare.message_limits import DEFAULT, check_limit, message_limit
from tests.flare.kits import site_kit

pytestmark = pytest.mark.slow

# The start of a kit's process.
LIMIT = """
import sys
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.utils.config_service import ConfigService
from fedbilevel.flare.message_limits import check_limit
ConfigService.initialize(section_files={}, config_path=[sys.argv[1]])
print(CommConfigurator().get_streaming_max_blob_size())
print(check_limit(10**9))
"""


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """Return the startup kit of a site."""
    local = site_kit(tmp_path / "hospital-1") / "local"
    (local / "comm_config.json").write_text(json.dumps({"tcp_no_delay": True}))
    return local.parent


@pytest.mark.process
def test_a_process_of_a_prepared_kit_has_the_limit(kit):
    limit = message_limit(np.zeros(10**6, np.float32))
    prepare(kit, message_limit=limit)
    result = subprocess.run(
        [sys.executable, "-c", LIMIT, kit], capture_output=True, text=True, check=True
    )
    number, text = result.stdout.splitlines()
    assert int(number) == limit == 40 * 10**6 - 8 * 10**6 + 8 * 2**20
    assert "call fedbilevel.flare.prepare(kit, message_limit=1000000000)" in (text)


def test_other_settings_of_a_kit_stay(kit):
    prepare(kit)
    prepare(kit)
    written = json.loads((kit / "local" / "comm_config.json").read_text())
    assert written["tcp_no_delay"] is True
    assert written["streaming_max_blob_size"] == DEFAULT


class Silent(Stream):  # type: ignore[misc]
    """A stream that declares a size and sends nothing."""

    def read(self, chunk_size: int) -> bytes:
        return b""


def test_what_is_declared_too_large_is_refused_before_room_is_set_aside():
    with pytest.raises(BlobSizeError, match="exceeds configured limit"):
        BlobTask(StreamFuture(1, {}), Silent(2_000_000_000, {}), DEFAULT)


def test_a_limit_that_suffices_is_no_matter():
    assert check_limit(message_limit(np.zeros(10))) is None
