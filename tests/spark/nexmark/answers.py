"""Nexmark's queries in Spark's SQL over all events at once: what the pipelines' results have to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from tests.spark.nexmark.events import CLOSING_ID, Events
from tests.spark.nexmark.queries import RANKS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WON = """
    select a.id, a.category, a.seller, a.expires, max(b.price) as won
    from auctions a join bids b on a.id = b.auction and b.at between a.at and a.expires
    group by all
"""
COUNTED = {"bids": "count(*)", "bidders": "count(distinct bidder)", "auctions": "count(distinct auction)"}
RANKED = ", ".join(
    f"{each} filter (where {condition}) as {rank}_{name}"
    for name, each in COUNTED.items()
    for rank, condition in RANKS.items()
)
ANSWERS = {
    "q0": "select * from bids",
    "q1": "select auction, bidder, price * 0.908d as price, at from bids",
    "q2": "select auction, price from bids where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """,
    "q4": f"select category, avg(won) as average from ({WON}) group by category",
    "q5": """
        with windows as (
            select auction, explode(array(0, 2, 4, 6, 8)) as back,
            timestamp_millis(unix_millis(at) div 2000 * 2000) as s from bids
        ), counts as (select auction, s - make_dt_interval(0, 0, 0, back) as window_start, count(*) as bids
            from windows group by all)
        select window_start, auction, bids from (
            select *, max(bids) over (partition by window_start) as most from counts
        ) where bids = most
    """,
    "q6": f"""
        with newest as (
            select *, row_number() over (partition by seller order by expires desc, id desc) as n from ({WON})
        )
        select seller, avg(won) as average from newest where n <= 10 group by seller
    """,
    "q7": """
        with tens as (select *, timestamp_millis(unix_millis(at) div 10000 * 10000) as begin from bids)
        select begin, max(price) as highest, max_by(auction, price) as auction, max_by(bidder, price) as bidder
        from tens group by begin
    """,
    "q8": """
        select distinct p.id, p.name from persons p join auctions a on a.seller = p.id
        and unix_millis(p.at) div 10000 = unix_millis(a.at) div 10000
    """,
    "q11": """
        select bidder, s.start as window_start, s.end as window_end, bids from (
            select bidder, session_window(at, '10 seconds') as s, count(*) as bids from bids group by 1, 2
        )
    """,
    "q12": "select bidder, count(*) as bids from bids group by bidder",
    "q15": f"""
        select date_format(at, 'yyyy-MM-dd') as day, count(*) as bids, count(distinct bidder) as bidders,
        count(distinct auction) as auctions, {RANKED} from bids group by 1
    """,
}
LAST = {"q4": ("category",), "q6": ("seller",), "q12": ("bidder", "window_start"), "q15": ("day",)}
"""Queries whose results are running updates, and the key of each."""


def answers(spark: SparkSession, events: Events) -> dict[str, DataFrame]:
    """Return the rows of each query."""
    for topic in ("persons", "auctions", "bids"):
        spark.createDataFrame(getattr(events, topic)).createOrReplaceTempView(topic)
    return {name: spark.sql(text) for name, text in ANSWERS.items()}


def rows_of(answer: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of an answer, sorted: numbers as floats, times in milliseconds."""
    columns = [
        F.unix_millis(field.name) if isinstance(field.dataType, TimestampType) else F.col(field.name)
        for field in answer.schema
    ]
    return sorted((tuple(map(_number, row)) for row in answer.select(*columns).collect()), key=repr)


def results(name: str, schema: StructType, rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return a pipeline's results as `rows_of` has them: without those of closing events, of updates the last."""
    kept = [row for row in rows if not _closes(row)]
    if key := LAST.get(name):
        kept = list({tuple(row[part] for part in key): row for row in kept}.values())
    if name == "q12":
        sums: dict[int, int] = {}
        for row in kept:
            sums[row["bidder"]] = sums.get(row["bidder"], 0) + row["bids"]
        kept = [{"bidder": bidder, "bids": bids} for bidder, bids in sums.items()]
    times = {field.name for field in schema if isinstance(field.dataType, TimestampType)}
    plain = (
        tuple(_milliseconds(row[each]) if each in times else _number(row[each]) for each in schema.names)
        for row in kept
    )
    return sorted(plain, key=repr)


def _closes(row: Mapping[str, Any]) -> bool:
    """Say whether a result is of closing events, by its persons, auctions and categories."""
    return any(row.get(name, 0) >= CLOSING_ID for name in ("id", "auction", "bidder", "seller", "category"))


def _milliseconds(text: str) -> float:
    return round(datetime.fromisoformat(text).timestamp() * 1_000.0)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float)) else value
