"""Events of Nexmark's auctions: one person, three auctions and 46 bids in fifty, a millisecond apart.

The same number gives the same events. Persons, auctions and bids are skewed as in Nexmark: half of the bids go to few
auctions, most by few persons. Times rise, so that none is late in its topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from roster.pipeline.tasks.result_records import as_records

BEGIN = datetime(2026, 3, 1, 10, tzinfo=UTC)
OF_FIFTY = (1, 3)
"""Persons and auctions; the others are bids."""
FIRST_ID = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
ACTIVE = 1_000
"""Persons, the newest ones, that sell and bid; auctions that are bid on are ten times fewer."""
LONGEST = timedelta(seconds=20)
"""How long an auction lasts at most."""
CLOSING_ID = 1_000_000_000
"""Persons, auctions and categories from here on only move time on; no answer has them."""
CLOSING = 64
CITIES = ("Portland", "Boise", "Fresno", "Austin", "Boston", "Denver")
STATES = ("OR", "ID", "CA", "TX", "MA", "CO")
KEYS = {"persons": "id", "auctions": "id", "bids": "auction"}
"""The topics, and the column that is the records' key."""
COLUMNS = {
    "persons": "id long, name string, city string, state string, at timestamp",
    "auctions": "id long, seller long, category long, initial long, expires timestamp, at timestamp",
    "bids": "auction long, bidder long, price long, at timestamp",
}


@dataclass(frozen=True)
class Events:
    """A table of the events of each topic."""

    persons: pa.Table
    auctions: pa.Table
    bids: pa.Table

    def records(self, topic: str) -> pa.Table:
        """Return keys and values of a topic's records: JSON objects."""
        key, value = as_records(getattr(self, topic), [KEYS[topic]])
        return pa.table({"key": key, "value": value.cast(pa.binary())})


def events(count: int, seed: int = 1) -> Events:
    """Return so many events, of all kinds together."""
    chance, number = np.random.default_rng(seed), np.arange(count)
    epoch, place = np.divmod(number, 50)
    persons, auctions = OF_FIFTY
    is_person, is_bid = place < persons, place >= persons + auctions
    is_auction = ~is_person & ~is_bid
    newest_person = FIRST_ID + epoch
    newest_auction = FIRST_ID + epoch * auctions + np.clip(place - persons, 0, auctions - 1)

    def recent(newest: np.ndarray, within: int, hot: float) -> np.ndarray:
        """One of the newest, or with the probability `hot` the newest whose number is a multiple of `within`."""
        back = (chance.random(len(newest)) * np.minimum(newest - FIRST_ID + 1, within)).astype(np.int64)
        is_hot = chance.random(len(newest)) < hot
        return np.where(is_hot, np.maximum(newest // within * within, FIRST_ID), newest - back)

    city = chance.integers(0, len(CITIES), is_person.sum())
    lasting = chance.integers(1_000, LONGEST // timedelta(milliseconds=1), is_auction.sum())
    return Events(
        pa.table(
            {
                "id": newest_person[is_person],
                "name": pa.array([f"person {each}" for each in newest_person[is_person]], pa.string()),
                "city": pa.array(CITIES).take(pa.array(city)),
                "state": pa.array(STATES).take(pa.array(city)),
                "at": _times(number[is_person]),
            }
        ),
        pa.table(
            {
                "id": newest_auction[is_auction],
                "seller": recent(newest_person[is_auction], ACTIVE, 0.25),
                "category": FIRST_CATEGORY + chance.integers(0, CATEGORIES, is_auction.sum()),
                "initial": _prices(chance, is_auction.sum()),
                "expires": _times(number[is_auction] + lasting),
                "at": _times(number[is_auction]),
            }
        ),
        pa.table(
            {
                "auction": recent(newest_auction[is_bid], ACTIVE // 10, 0.5),
                "bidder": recent(newest_person[is_bid], ACTIVE, 0.5),
                "price": _prices(chance, is_bid.sum()),
                "at": _times(number[is_bid]),
            }
        ),
    )


def closing(after: timedelta) -> Events:
    """Return events that close windows: so long after the beginning, ten minutes apart, of ids in all partitions."""
    ids = CLOSING_ID + np.arange(CLOSING)
    at = _times((np.arange(CLOSING) * timedelta(minutes=10) + after) // timedelta(milliseconds=1))
    price, none = np.full(CLOSING, 1), pa.array([""] * CLOSING)
    return Events(
        pa.table({"id": ids, "name": none, "city": none, "state": pa.array(["OR"] * CLOSING), "at": at}),
        pa.table({"id": ids, "seller": ids, "category": ids, "initial": price, "expires": at, "at": at}),
        pa.table({"auction": ids, "bidder": ids, "price": price, "at": at}),
    )


def _times(milliseconds: np.ndarray) -> pa.Array:
    begin = int(BEGIN.timestamp() * 1_000)
    return pa.array(begin + milliseconds.astype(np.int64), pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _prices(chance: np.random.Generator, count: int) -> np.ndarray:
    """From one to a million, in cents, as many of each order of magnitude."""
    return (10 ** (chance.random(count) * 6) * 100).astype(np.int64)
