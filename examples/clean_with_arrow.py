"""Parse and clean records in Python, on Arrow record batches inside the tasks that read them.

    python clean_with_arrow.py BOOTSTRAP [--follow]

No record becomes a row of the JVM before the function is done with it. A record that is no order is kept with the
reason, so that one bad record neither stops the pipeline nor disappears.
"""

import argparse

import pyarrow as pa

from roster.spark import ParquetSink, Pipeline, session

SCHEMA = "shop string, item string, cents long, problem string, partition int, offset long"


def clean(records: pa.RecordBatch) -> pa.RecordBatch:
    import json  # noqa: PLC0415 - the function is sent to the tasks, with what it imports

    import pyarrow as pa  # noqa: PLC0415

    columns: dict[str, list[object]] = {"shop": [], "item": [], "cents": [], "problem": []}
    for value in records.column("value").to_pylist():
        shop = item = cents = problem = None
        try:
            order = json.loads(value)
            shop, item = order["shop"], order["item"]
            cents = None if order["price"] is None else round(float(order["price"]) * 100)
        except (ValueError, TypeError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
        for name, found in {"shop": shop, "item": item, "cents": cents, "problem": problem}.items():
            columns[name].append(found)
    types = {"shop": pa.string(), "item": pa.string(), "cents": pa.int64(), "problem": pa.string()}
    arrays = [pa.array(columns[name], kind) for name, kind in types.items()]
    names = [*types, "partition", "offset"]
    return pa.RecordBatch.from_arrays([*arrays, records.column("partition"), records.column("offset")], names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("clean-with-arrow", master="local[2]")
    (
        Pipeline(spark, arguments.bootstrap, group="clean-with-arrow", topics=["orders"])
        .map_arrow(clean, SCHEMA)
        .write(ParquetSink("cleaned"))
        .run(available_now=not arguments.follow)
    )
    cleaned = spark.read.parquet("cleaned")
    print(cleaned.where("problem is null").count(), "orders,", cleaned.where("problem is not null").count(), "problems")
    spark.stop()


if __name__ == "__main__":
    main()
