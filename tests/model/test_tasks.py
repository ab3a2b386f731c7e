"""Task ids as text, and tasks with their lags as columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.model.tasks import RUNNING, STATELESS, StorePosition, TaskId, TaskLags, task_gap

int32s = st.integers(-(2**31), 2**31 - 1)


def test_a_task_id_is_read_as_it_is_written():
    assert TaskId.parse(str(TaskId(3, 14))) == TaskId(3, 14)


@pytest.mark.parametrize("text", ["x-1", "0", "0_", "_0", "0_1_2", "0_-1", "", "0_1 "])
def test_other_text_is_no_task_id(text):
    with pytest.raises(ValueError, match="SUBTOPOLOGY_PARTITION"):
        TaskId.parse(text)


@given(st.dictionaries(st.builds(TaskId, int32s, int32s), st.integers(-(2**63), 2**63 - 1)))
def test_columns_hold_what_the_mapping_held_in_its_order(lags):
    columns = TaskLags.of(lags)
    assert list(columns.as_dict().items()) == list(lags.items())
    assert len(columns) == len(lags)
    assert (columns.subtopology.dtype, columns.partition.dtype, columns.lag.dtype) == (np.int32, np.int32, np.int64)


@pytest.mark.parametrize(
    ("lags", "message"),
    [
        ({TaskId(0, 1): 0, TaskId(0, 2**31): 0}, "task 0_2147483648: its numbers must be from"),
        ({TaskId(-(2**31) - 1, 0): RUNNING}, "its numbers must be from"),
        ({TaskId(2**63, 0): STATELESS}, "beyond int64"),
        ({TaskId(0, 0): 2**63}, "beyond int64"),
    ],
)
def test_numbers_without_a_place_are_named(lags, message):
    with pytest.raises(ValueError, match=message):
        TaskLags.of(lags)


def test_columns_have_one_length_and_their_own_types():
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    with pytest.raises(ValueError, match=r"partition: a column of int32 \(2,\), wanted int32 \(1,\)"):
        TaskLags(one, two, one.astype(np.int64))
    with pytest.raises(ValueError, match="lag: a column of int32"):
        TaskLags(one, one, one)


@pytest.mark.parametrize(
    ("stores", "gap"),
    [
        ([], 0),
        ([(0, 100, 100)], 0),
        ([(0, 100, 40), (10, 30, 25)], 65),
        ([(10, 100, None)], 90),
        ([(50, 100, 49)], 50),  # compacted away below: the store cannot go on from there
        ([(0, 100, 101)], 100),  # the log was made anew
    ],
)
def test_a_gap_is_the_sum_over_the_stores_of_log_end_less_restored_offset(stores, gap):
    assert task_gap(StorePosition(*each) for each in stores) == gap
