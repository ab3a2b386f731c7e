"""A few thousand fuzzed frames; ROSTER_FUZZ_FRAMES sends more, and `python -m tests.broker.fuzzed_frames` millions."""

from __future__ import annotations

import logging
import os
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from roster.testing.broker import running_broker
from tests.broker.fuzzed_frames import decode_all, frames, send_all

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = int(os.environ.get("ROSTER_FUZZ_FRAMES", "1000"))


def test_a_seed_gives_the_same_frames() -> None:
    assert list(islice(frames(3), 50)) == list(islice(frames(3), 50))


def test_the_decoder_raises_wire_errors_only() -> None:
    read = decode_all(11, 4 * FRAMES)
    assert FRAMES < read < 4 * FRAMES  # valid ones and damaged ones


def test_the_port_takes_any_frame(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), running_broker(tmp_path, auto_create_topics=True) as broker:
        assert send_all(broker.address, 11, FRAMES, check_every=200) > 1
    assert "internal error" not in caplog.text
