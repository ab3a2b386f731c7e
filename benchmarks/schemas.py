"""Avro and Protobuf into Arrow columns and back: `python -m benchmarks schemas`. 100,000 records in Confluent's frames.

`flat` has eight columns, `nested` a struct and a list of structs. Roster's figure is that of the step of a pipeline,
from record batch to record batch, frames and ids included. Peers get what suits them: pyruhvro a list of values without
frames, made outside of what is timed; polars one Avro file in memory, wrapped likewise; protarrow frames cut off. The
results of all are compared with fastavro's and with Google's parser. CPU time of the process, best of the rounds.

    python -m benchmarks.schemas [--records 100000] [--rounds 9]

pyruhvro and protarrow are not in the environment: `pip install --no-deps pyruhvro protarrow`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Callable
from typing import Any

# ruff: noqa: E402 - the number of threads is read at import
for _threads in ("POLARS_MAX_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import fastavro
import polars
import pyarrow as pa

from roster.records.native import AVRO, AVRO_ENCODE, compiled
from roster.spark.tasks.avro_values import AvroColumns
from roster.spark.tasks.protobuf_values import ProtobufColumns, as_spark
from roster.spark.tasks.schema_frames import CONFLUENT, Known, Writer
from roster.spark.tasks.write.encoded_values import AvroValues, ProtobufValues
from roster.wire.avro.columns import layout
from roster.wire.avro.schema import parse
from tests.spark.tasks.test_protobuf_values import ORDERS, Order, order

FLAT: dict[str, Any] = {
    "id": "long",
    "shop": "string",
    "price": "double",
    "count": "int",
    "paid": "boolean",
    "note": ["null", "string"],
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "weight": ["null", "double"],
}
ITEM = [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}, {"name": "price", "type": "double"}]
NESTED: dict[str, Any] = {
    "id": "long",
    "shop": {
        "type": "record",
        "name": "Shop",
        "fields": [{"name": "name", "type": "string"}, {"name": "zip", "type": "int"}],
    },
    "items": {"type": "array", "items": {"type": "record", "name": "Item", "fields": ITEM}},
}


def schema(fields: dict[str, Any]) -> str:
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": named})


def flat(number: int) -> dict[str, Any]:
    return {
        "id": number * 1009,
        "shop": f"shop-{number % 100}",
        "price": number * 1.5,
        "count": number % 9,
        "paid": number % 2 == 0,
        "note": None if number % 3 else f"a note of order {number}",
        "at": 1_700_000_000_000_000 + number,
        "weight": None if number % 2 else 0.5,
    }


def nested(number: int) -> dict[str, Any]:
    items = [{"sku": f"sku-{n}", "n": n, "price": n * 0.5} for n in range(number % 5)]
    return {"id": number, "shop": {"name": f"shop-{number % 100}", "zip": number % 9999}, "items": items}


def best(rounds: int, work: Callable[[], Any]) -> float:
    """CPU seconds of the quickest round."""
    took = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


def told(what: str, records: int, seconds: float, own: float) -> None:
    print(f"  {what:42} {records / seconds / 1e6:7.2f} M rows/s   {seconds / own:6.1f} x Roster's time", flush=True)


def of_avro(what: str, fields: dict[str, Any], row: Callable[[int], dict[str, Any]], records: int, rounds: int) -> None:
    text = schema(fields)
    made, bodies = fastavro.parse_schema(json.loads(text)), []
    for number in range(records):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, made, row(number))
        bodies.append(data.getvalue())
    framed = pa.record_batch({"value": pa.array([b"\0\0\0\0\7" + body for body in bodies], pa.binary())})
    columns = pa.schema(list(layout(parse(text)).schema))
    read = AvroColumns(
        parse(text),
        columns,
        Known("", CONFLUENT, "value", {7: Writer("AVRO", text)}),
        compiled(AVRO),
        "value",
        "FAILFAST",
    )

    def by_fastavro() -> pa.RecordBatch:
        rows = [fastavro.schemaless_reader(io.BytesIO(value[5:]), made) for value in framed.column(0).to_pylist()]
        return pa.RecordBatch.from_pylist(rows, columns)

    print(f"{what}: {framed.nbytes // records - 4} bytes a value")
    expected = by_fastavro()
    assert read(framed).to_pylist() == expected.to_pylist()
    own = best(rounds, lambda: read(framed))
    told("Roster, one schema", records, own, own)
    other = Known("", CONFLUENT, "value", {key: Writer("AVRO", text) for key in range(4)})
    mixed = pa.record_batch({"value": pa.array([bytes((0, 0, 0, 0, n % 4)) + body for n, body in enumerate(bodies)])})
    read_mixed = AvroColumns(parse(text), columns, other, compiled(AVRO), "value", "FAILFAST")
    assert read_mixed(mixed).to_pylist() == expected.to_pylist()
    told("Roster, four schemas in turns", records, best(rounds, lambda: read_mixed(mixed)), own)
    bad = pa.record_batch(
        {"value": pa.array([b"\0\0\0\0\7" + (b if n % 10 else b"\xff") for n, b in enumerate(bodies)])}
    )
    permissive = AvroColumns(
        parse(text),
        columns,
        Known("", CONFLUENT, "value", {7: Writer("AVRO", text)}),
        compiled(AVRO),
        "value",
        "PERMISSIVE",
    )
    told("Roster, every tenth value bad", records, best(rounds, lambda: permissive(bad)), own)
    told("fastavro, and rows to Arrow", records, best(min(rounds, 2), by_fastavro), own)
    try:
        from pyruhvro import deserialize_array  # noqa: PLC0415 - not in the environment
    except ImportError as missing:
        print(f"*** MISSING: {missing}", flush=True)
    else:
        told("pyruhvro", records, best(rounds, lambda: deserialize_array(bodies, text)), own)
    file = io.BytesIO()
    fastavro.writer(file, made, map(row, range(records)), sync_interval=1 << 30)
    told("polars, one Avro file", records, best(rounds, lambda: polars.read_avro(io.BytesIO(file.getvalue()))), own)
    writing_avro(text, expected, bodies, rounds)


def writing_avro(text: str, rows: pa.RecordBatch, bodies: list[bytes], rounds: int) -> None:
    """Print the rates of writing, from record batch to record batch."""
    schema_, records, made = parse(text), rows.num_rows, fastavro.parse_schema(json.loads(text))
    structs, write = rows.to_struct_array(), AvroValues(schema_, b"\0\0\0\0\7", compiled(AVRO_ENCODE))
    assert write.encoded(structs).to_pylist() == [b"\0\0\0\0\7" + body for body in bodies]

    def by_fastavro() -> pa.Array:
        made_values = []
        for row in rows.to_pylist():
            data = io.BytesIO()
            fastavro.schemaless_writer(data, made, row)
            made_values.append(data.getvalue())
        return pa.array(made_values)

    own = best(rounds, lambda: write.encoded(structs))
    told("writing: Roster", records, own, own)
    told("writing: fastavro, from Arrow's rows", records, best(min(rounds, 2), by_fastavro), own)
    try:
        from pyruhvro import serialize_record_batch  # noqa: PLC0415 - not in the environment
    except ImportError as missing:
        print(f"*** MISSING: {missing}", flush=True)
    else:
        told(
            "writing: pyruhvro, without frames",
            records,
            best(rounds, lambda: serialize_record_batch(rows, text, 1)),
            own,
        )
    frame = polars.from_arrow(rows)
    assert isinstance(frame, polars.DataFrame)
    if "at" not in frame.columns:  # it cannot write times with a zone
        told("writing: polars, one Avro file", records, best(rounds, lambda: frame.write_avro(io.BytesIO())), own)


def of_protobuf(records: int, rounds: int) -> None:
    values = [
        order(
            id=n,
            shop=f"shop-{n % 100}",
            price=n * 1.5,
            tags=["a"] * (n % 3),
            millis=n,
            kind=n % 2,
            u32=n,
            items=[("sku", n)],
        ).SerializeToString()
        for n in range(records)
    ]
    batch = pa.record_batch(
        {"value": pa.array([b"\0\0\0\0\7" + ORDERS.prefix + value for value in values], pa.binary())}
    )
    empty = ORDERS.handler().array_to_record_batch(pa.array([], pa.binary()))
    columns = pa.schema([field.with_type(as_spark(field.type)) for field in empty.schema])
    read = ProtobufColumns(ORDERS, columns, CONFLUENT, "value", "FAILFAST")
    print(f"protobuf: {batch.nbytes // records - 4} bytes a value")
    own = best(rounds, lambda: read(batch))
    told("Roster (ptars)", records, own, own)
    told("Google's parser alone", records, best(rounds, lambda: [Order.FromString(value) for value in values]), own)
    try:
        import protarrow  # noqa: PLC0415 - not in the environment
    except ImportError as missing:
        print(f"*** MISSING: {missing}", flush=True)
    else:
        work = lambda: protarrow.messages_to_record_batch([Order.FromString(v) for v in values], Order)  # noqa: E731
        told("protarrow", records, best(min(rounds, 3), work), own)
    rows, messages = read(batch).to_struct_array(), [Order.FromString(value) for value in values]
    write = ProtobufValues(ORDERS, b"\0\0\0\0\7" + ORDERS.prefix)
    assert write.encoded(rows).equals(batch["value"])
    own = best(rounds, lambda: write.encoded(rows))
    told("writing: Roster (ptars)", records, own, own)
    told(
        "writing: Google's library alone", records, best(rounds, lambda: [m.SerializeToString() for m in messages]), own
    )


def run(*, quick: bool = False, records: int = 100_000, rounds: int = 9) -> None:
    """Print the rates."""
    if quick:
        records, rounds = 20_000, 3
    of_avro("avro, flat", FLAT, flat, records, rounds)
    of_avro("avro, nested", NESTED, nested, records, rounds)
    of_protobuf(records, rounds)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=9)
    run(**vars(options.parse_args()))
