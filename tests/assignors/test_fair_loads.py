"""The loads of rows and classes, before anybody's partitions are looked at."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from roster.assignors.sticky.fair_loads import Table, fairest, spread

supplies = st.integers(1, 1 << 20)


@st.composite
def tables(draw):
    """Rows with random possible owners, of any supply and size."""
    classes = draw(st.integers(1, 8))
    owners = draw(st.lists(st.sets(st.integers(0, classes - 1), min_size=1), min_size=1, max_size=8))
    used = sorted(set().union(*owners))
    cells = [(row, used.index(column)) for row, columns in enumerate(owners) for column in sorted(columns)]
    supply = draw(st.lists(supplies, min_size=len(owners), max_size=len(owners)))
    size = draw(st.lists(supplies, min_size=len(used), max_size=len(used)))
    row, column = np.array(cells, dtype=np.int64).T
    return Table(row, column, np.array(supply), np.array(size))


NEVER_ALIKE = Table(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([36, 31]), np.array([1, 1]))
"""Where only the second row has something left, its load and the other's are never brought nearer."""


@given(tables(), st.data())
@example(NEVER_ALIKE, None)
def test_what_is_left_of_a_supply_is_all_laid_out_and_none_below_zero(table, data):
    left, load = [0, 31], np.array([36, 0])
    if data is not None:
        left = [data.draw(st.integers(0, supply)) for supply in table.supply.tolist()]
        load = np.array([data.draw(st.integers(0, 1 << 30)) for _ in table.size])
    placed = spread(table, np.array(left), load)
    assert (placed >= 0).all()
    assert np.bincount(table.row, weights=placed).tolist() == left


@given(tables())
@example(NEVER_ALIKE)
def test_the_fairest_assignment_carries_every_supply_at_the_levels_of_its_blocks(table):
    levels = fairest(table, spread(table, table.supply, np.zeros_like(table.size)), wants_placed=True)
    inside = levels.block_of_row[table.row] == levels.block_of_class[table.column]
    placed = np.where(inside, levels.placed, 0)
    assert (placed >= 0).all()
    assert np.bincount(table.row, weights=placed).tolist() == table.supply.tolist()
    load = np.bincount(table.column, weights=placed, minlength=len(table.size))
    assert (load <= levels.level * table.size).all()
    assert (load >= np.maximum(levels.level - 1, 0) * table.size).all()
