"""What importing the wire room costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from roster.wire import API_VERSIONS, ApiKey, request_class, response_class


@pytest.mark.process
def test_pyarrow_is_loaded_for_compressed_batches_only() -> None:
    program = (
        "import sys, roster.wire.records as records\n"
        "assert 'pyarrow' not in sys.modules\n"
        "from roster.wire.compression import Compression, compress, decompress\n"
        "assert decompress(Compression.ZSTD, compress(Compression.ZSTD, b'text')) == b'text'\n"
        "assert 'pyarrow' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.process
def test_a_reading_task_loads_the_messages_it_sends_only() -> None:
    program = (
        "import sys, roster.records.fetch\n"
        "from roster.records.connections import API_VERSIONS, ApiKey, response_class\n"
        "assert API_VERSIONS[ApiKey.FETCH].high > 0 and response_class(ApiKey.METADATA)\n"
        "loaded = {name.rpartition('.')[2] for name in sys.modules if name.startswith('roster.wire.messages.')}\n"
        "assert loaded <= {'produce_fetch', 'cluster', 'sasl'}, loaded\n"
        "others = {'roster.model.plan', 'roster.model.problem', 'roster.security.parse', 'roster.wire.sasl', 'numba'}\n"
        "assert not others & sys.modules.keys(), others & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("package", ["roster.model", "roster.security"])
def test_each_name_of_a_package_is_found(package: str) -> None:
    module = import_module(package)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        _ = module.Nothing


def test_each_api_key_has_its_messages() -> None:
    assert list(API_VERSIONS) == sorted(ApiKey)
    for key in ApiKey:
        assert request_class(key).__table__.key is key
        assert response_class(key).__table__.key is key
