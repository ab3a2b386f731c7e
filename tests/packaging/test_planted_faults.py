"""The list of faults that `make test` should find."""

from tests.planted_faults import FAULTS, ROOT


def test_each_fault_has_one_place_in_the_source() -> None:
    places = {fault.what: (ROOT / "src/roster" / fault.file).read_text().count(fault.right) for fault in FAULTS}
    assert places == dict.fromkeys(places, 1)
    assert len(FAULTS) == 30
