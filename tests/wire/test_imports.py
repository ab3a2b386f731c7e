"""What importing the wire room costs."""

from __future__ import annotations

import subprocess
import sys

import pytest


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
