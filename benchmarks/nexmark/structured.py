"""Nexmark's queries in Structured Streaming, those that one query of it can say: `STREAMING[name](stream)`.

`stream(topic)` is a streaming DataFrame with the topic's columns. Not among them: 4 and 6, as an aggregate without a
window of a join's windows is not to be had in append mode, the only one that such a join has; 15, as there are no
distinct aggregates. In 5 and 7 one of equal maxima is told.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

Stream = Callable[[str], DataFrame]


def timed(stream: Stream, topic: str) -> DataFrame:
    return stream(topic).withWatermark("at", "0 seconds")


def q3(stream: Stream) -> DataFrame:
    auctions, persons = (
        stream("auctions").where("category = 10"),
        stream("persons").where("state in ('OR', 'ID', 'CA')"),
    )
    return (
        auctions.alias("a").join(persons.alias("p"), F.expr("a.seller = p.id")).select("name", "city", "state", "a.id")
    )


def q5(stream: Stream) -> DataFrame:
    counts = timed(stream, "bids").groupBy(F.window("at", "10 seconds", "2 seconds"), "auction")
    windows = counts.agg(F.count("*").alias("bids"))
    return (
        windows.groupBy(F.window(F.window_time("window"), "2 seconds").alias("last"))
        .agg(F.max("bids").alias("bids"), F.max_by("auction", "bids").alias("auction"))
        .select("last.end", "auction", "bids")
    )


def q7(stream: Stream) -> DataFrame:
    highest = timed(stream, "bids").groupBy(F.window("at", "10 seconds"))
    return highest.agg(F.max("price"), F.max_by("auction", "price"), F.max_by("bidder", "price"))


def q8(stream: Stream) -> DataFrame:
    persons, auctions = timed(stream, "persons").alias("p"), timed(stream, "auctions").alias("a")
    same = "p.id = a.seller and a.at between p.at - interval 10 seconds and p.at + interval 10 seconds"
    same += " and floor(unix_millis(p.at) / 10000) = floor(unix_millis(a.at) / 10000)"
    return persons.join(auctions, F.expr(same)).select("p.id", "name", "p.at").dropDuplicatesWithinWatermark(["id"])


def q11(stream: Stream) -> DataFrame:
    return timed(stream, "bids").groupBy(F.session_window("at", "10 seconds"), "bidder").count()


def q12(stream: Stream) -> DataFrame:
    arrived = stream("bids").withColumn("arrived", F.current_timestamp())
    return arrived.groupBy(F.window("arrived", "10 seconds"), "bidder").count()


STREAMING: dict[str, Callable[[Stream], DataFrame]] = {
    "q0": lambda stream: stream("bids"),
    "q1": lambda stream: stream("bids").withColumn("price", F.col("price") * 0.908),
    "q2": lambda stream: stream("bids").where("auction % 123 = 0").select("auction", "price"),
    "q3": q3,
    "q5": q5,
    "q7": q7,
    "q8": q8,
    "q11": q11,
    "q12": q12,
}
UPDATING = {"q12"}
"""Queries in update mode; the others append."""
