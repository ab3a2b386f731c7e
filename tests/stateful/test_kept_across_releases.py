"""What a group's state is written by is the same in all releases, wherever their modules lie."""

from __future__ import annotations

import json

from tests.spark.apps.every_operator import plans

FINGERPRINTS = {
    "ids": "501ca7567711b0fec9a76995ecda5769",
    "counts": "69d945c246dd97bf59e5de8ca5acd3de",
    "windows": "beba4c071f190cefaa56dc58f0900251",
    "sessions": "f7a152abab0d076773835a60e2996b1f",
    "timers": "3f94f90b08507bb163b685a6136937d1",
    "pairs": "68de7e62860375c70fda6a9b29e2ad9e",
    "totals": "26dfd0169b0be3155f27265fd61710ff",
}


def test_definitions_have_the_fingerprints_of_the_releases_before() -> None:
    definitions = {name: made for plan in plans("t", "g") for name, made in plan.definitions.items()}
    assert {name: made.fingerprint for name, made in definitions.items()} == FINGERPRINTS
    assert [name for name, made in definitions.items() if "roster." in json.dumps(made.document)] == []
