"""Array functions that several assignors use."""

import numpy as np

from roster.model.arrays import Int32, Int64


def distinct(values: Int64, bound: int) -> tuple[Int64, Int64, Int64]:
    """Return the distinct values (of 0..bound-1, ascending), the index of each value among them, and their counts."""
    if bound > 4 * len(values):
        return np.unique(values, return_inverse=True, return_counts=True)
    counts = np.bincount(values, minlength=bound)
    present = np.flatnonzero(counts)
    index = np.empty(bound, dtype=np.int64)
    index[present] = np.arange(len(present))
    return present, index[values], counts[present]


def ranges(start: Int64, size: Int64) -> Int64:
    """Concatenate the ranges start[i], start[i] + 1, ... of size[i] numbers each."""
    end = np.cumsum(size)
    return np.asarray(np.arange(int(end[-1]) if len(end) else 0) + np.repeat(start - (end - size), size))


def stable_order(values: Int64 | Int32, bound: int) -> Int64:
    """Return the stable sorting permutation of values in 0..bound-1; numpy sorts two-byte numbers in linear time."""
    return np.argsort(values.astype(np.uint16) if bound <= 1 << 16 else values, kind="stable")


def rank_within(groups: Int64 | Int32, bound: int) -> Int64:
    """Return for each entry how many earlier entries are in the same group; groups are 0..bound-1."""
    order = stable_order(groups, bound)
    ordered = groups[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else order
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return rank


def deal(counts: Int64) -> Int64:
    """Deal indices 0..n-1 round-robin, index i counts[i] times: each round serves every index with some left."""
    receivers = np.arange(len(counts)).repeat(counts)
    turn = np.arange(len(receivers)) - (counts.cumsum() - counts).repeat(counts)
    return receivers[stable_order(turn, int(counts.max(initial=0)))]
