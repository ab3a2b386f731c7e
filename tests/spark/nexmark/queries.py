"""Nexmark's queries as pipelines: `QUERIES[name](source)`, where `source(topic)` is a Pipeline; a sink follows.

What a backlog puts out of order behind `repartition` is allowed for by a grace of a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from roster.spark import Pipeline, Window
from tests.spark.nexmark.events import COLUMNS, LONGEST

Source = Callable[[str], Pipeline]
DAY = "1 day"
NUMBERED = "id long, bidder long, price long, bid timestamp"
RANKS = {"low": "price < 10000", "middle": "price >= 10000 and price < 1000000", "high": "price >= 1000000"}


def bids(source: Source) -> Pipeline:
    return source("bids").json_columns(COLUMNS["bids"])


def renamed(*names: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function for `map_arrow` that gives the columns other names; those named "" go."""

    def rename(rows: pa.RecordBatch) -> pa.RecordBatch:
        kept = [number for number, name in enumerate(names) if name]
        return pa.RecordBatch.from_arrays([rows.column(n) for n in kept], [names[n] for n in kept])

    return rename


def as_json(rows: DataFrame) -> DataFrame:
    return rows.select(F.to_json(F.struct("*")).alias("value"))


def q0(source: Source) -> Pipeline:
    """Pass all bids through."""
    return bids(source).transform(as_json)


def q1(source: Source) -> Pipeline:
    """Convert prices."""
    return bids(source).transform(lambda rows: as_json(rows.withColumn("price", F.col("price") * 0.908)))


def q2(source: Source) -> Pipeline:
    """Bids on some auctions."""
    return bids(source).transform(lambda rows: as_json(rows.where("auction % 123 = 0").select("auction", "price")))


def q3(source: Source) -> Pipeline:
    """Who sells in a category, in three states: persons are a table."""
    return (
        source("auctions")
        .json_columns("id long, seller long, category long")
        .filter(pc.field("category") == 10)
        .repartition("seller")
        .join_table("persons", on="seller", schema="name string, city string, state string")
        .filter(pc.is_in(pc.field("state"), pa.array(["OR", "ID", "CA"])))
    )


def winning(source: Source) -> Pipeline:
    """The price of each auction that had bids, once it has expired: columns id, category, seller, expires, won."""
    within = (pc.field("bid") >= pc.field("at")) & (pc.field("bid") <= pc.field("expires"))
    return (
        bids(source)
        .map_arrow(renamed("id", "bidder", "price", "bid"), NUMBERED)
        .join("auctions", "id", COLUMNS["auctions"], within=LONGEST, column="bid", other_column="at", grace=DAY)
        .filter(within)
        .aggregate(
            ["id", "category", "seller", "expires"],
            {"won": "max(price)"},
            window=Window("expires", "1 second", grace=DAY),
            results="final",
            store="winning",
        )
    )


def q4(source: Source) -> Pipeline:
    """The average price at which auctions of a category end."""
    return winning(source).repartition("category").aggregate("category", {"average": "avg(won)"}, store="average")


class Newest(StatefulProcessor):
    """The average of a seller's last ten auctions."""

    def init(self, handle: Any) -> None:
        self.won = handle.getValueState("won", "won array<struct<expires:double, id:bigint, price:bigint>>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        before = [tuple(each) for each in self.won.get()[0]] if self.won.exists() else []
        kept = sorted([*before, *((row.expires.timestamp(), row.id, row.won) for row in rows)])[-10:]
        self.won.update((kept,))
        yield Row(seller=key[0], average=sum(price for *_, price in kept) / len(kept))

    def close(self) -> None: ...


def q6(source: Source) -> Pipeline:
    """The average price of each seller's last ten auctions: a class for each seller."""
    return (
        winning(source)
        .repartition("seller")
        .transform_with_state(Newest(), "seller", "seller long, average double", store="newest")
    )


class Hottest(StatefulProcessor):
    """The auctions with the most bids in a window, told when it is over."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.most = handle.getValueState("most", "bids bigint, auctions array<bigint>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        if not self.most.exists():
            self.handle.registerTimer(int(key[0].timestamp() * 1000) + 10_000)
        most, auctions = self.most.get() or (0, [])
        for row in rows:
            if row.bids >= most:
                auctions = [*(auctions if row.bids == most else []), row.auction]
                most = row.bids
        self.most.update((most, auctions))
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        most, auctions = self.most.get()
        for auction in auctions:
            yield Row(window_start=key[0], auction=auction, bids=most)
        self.most.clear()

    def close(self) -> None: ...


def q5(source: Source) -> Pipeline:
    """The auctions with the most bids of the last ten seconds, every two; all of them where several have as many."""
    sliding = Window("at", "10 seconds", every="2 seconds")
    return (
        bids(source)
        .aggregate("auction", {"bids": "count(*)"}, window=sliding, results="final", store="counts")
        .repartition("window_start")
        .transform_with_state(
            Hottest(),
            "window_start",
            "window_start timestamp, auction long, bids long",
            time_mode="EventTime",
            event_time="window_start",
            delay=DAY,
            store="hottest",
        )
    )


def q7(source: Source) -> Pipeline:
    """The highest bid of each ten seconds; one of those where several are equal."""
    ten = Window("at", "10 seconds")
    return (
        bids(source)
        .aggregate(
            "auction",
            {"price": "max(price)", "bidder": "max_by(bidder, price)"},
            window=ten,
            results="final",
            store="by-auction",
        )
        .map_arrow(
            renamed("begin", "", "auction", "price", "bidder"),
            "begin timestamp, auction long, price long, bidder long",
        )
        .repartition("begin")
        .aggregate(
            "begin",
            {"highest": "max(price)", "auction": "max_by(auction, price)", "bidder": "max_by(bidder, price)"},
            window=Window("begin", "10 seconds", grace=DAY),
            results="final",
            store="by-window",
        )
    )


def q8(source: Source) -> Pipeline:
    """Persons who registered and opened an auction in the same ten seconds."""
    same = pc.floor_temporal(pc.field("at"), 10, "second") == pc.floor_temporal(pc.field("opened"), 10, "second")
    return (
        source("auctions")
        .json_columns("seller long, at timestamp")
        .map_arrow(renamed("id", "opened"), "id long, opened timestamp")
        .repartition("id")
        .join(
            "persons",
            "id",
            "id long, name string, at timestamp",
            within="10 seconds",
            column="opened",
            other_column="at",
            grace=DAY,
        )
        .filter(same)
        .deduplicate("id", within=DAY, column="opened")
    )


def q11(source: Source) -> Pipeline:
    """How often each bidder bids without a pause of ten seconds."""
    session = Window.session("at", "10 seconds", grace=DAY)
    return bids(source).repartition("bidder").aggregate("bidder", {"bids": "count(*)"}, window=session, results="final")


def arrived(rows: pa.RecordBatch) -> pa.RecordBatch:
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [rows["bidder"], pa.array([now.as_py()] * len(rows), now.type)], ["bidder", "arrived"]
    )


def q12(source: Source) -> Pipeline:
    """How many bids of each bidder arrive in ten seconds of the clock."""
    return (
        bids(source)
        .map_arrow(arrived, "bidder long, arrived timestamp")
        .repartition("bidder")
        .aggregate("bidder", {"bids": "count(*)"}, window=Window("arrived", "10 seconds", grace=DAY))
    )


def by_day(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column("day", pc.strftime(rows["at"], "%Y-%m-%d"))


def q15(source: Source) -> Pipeline:
    """Statistics of each day: bids, bidders and auctions, in all and by three ranks of price."""
    of = {"bids": "count(*)", "bidders": "count(distinct bidder)", "auctions": "count(distinct auction)"}
    ranked = {
        f"{rank}_{name}": f"{each} filter (where {condition})"
        for name, each in of.items()
        for rank, condition in RANKS.items()
    }
    return (
        bids(source)
        .map_arrow(by_day, f"{COLUMNS['bids']}, day string")
        .repartition("day")
        .aggregate("day", of | ranked)
    )


QUERIES: dict[str, Callable[[Source], Pipeline]] = {
    "q0": q0,
    "q1": q1,
    "q2": q2,
    "q3": q3,
    "q4": q4,
    "q5": q5,
    "q6": q6,
    "q7": q7,
    "q8": q8,
    "q11": q11,
    "q12": q12,
    "q15": q15,
}
