"""Common part of sinks that keep the positions of partitions beside the results: mode, keys, claim and the fence."""

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from typing_extensions import override

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.batch_sink import BatchSink, Source
from roster.pipeline.errors import PipelineError, SinkFencedError
from roster.pipeline.options import as_columns
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import SparkSession, StructType
from roster.state.keys import encode_keys
from roster.state.store import StateError

_MOST_SPANS = 8


class PositionedSink(BatchSink):
    """Sink into a table that has the next offset of each partition, and one row a key in upsert mode.

    A batch counts if each partition's position is the start of its range. So one of two owners of a partition wins,
    and the other reads again from the table's position.
    """

    accepts_part = True
    name = "table"

    def __init__(self, mode: str, keys: str | Sequence[str]) -> None:
        if mode not in ("append", "upsert"):
            raise PipelineError(f"{mode!r} is not possible", field="mode", fix="Use 'append' or 'upsert'")
        self._is_upsert, self._keys = mode == "upsert", as_columns(keys)
        if self._keys and not self._is_upsert:
            raise PipelineError("rows are appended, whatever their keys", field="keys", fix="Add mode='upsert'")
        self._starts: dict[TopicPartition, int] = {}
        self._dead_letters: str | None = None

    def positions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset of each partition that the table has results of.

        Raises PipelineError if the table cannot be read.
        """
        raise NotImplementedError

    def with_results_of(self, keys: Sequence[str], *, retracts: bool) -> None:
        """Learn which columns tell a stateful pipeline's results apart, and whether it retracts results.

        Raises PipelineError if the sink cannot take such results.
        """
        if retracts and not self._is_upsert:
            fix = f"Use {self.name}(…, mode='upsert'), KafkaSink, or results='final'"
            raise PipelineError("sessions take earlier results back", field="write", fix=fix)
        self._keys = self._keys or tuple(keys)
        if retracts and set(self._keys) != set(keys):
            raise PipelineError(
                f"sessions take results back by {', '.join(keys)}", field="keys", fix="Leave it out, or name these"
            )

    @override
    def open(self, spark: SparkSession, group: str, timeout_ms: int = 60_000) -> None:
        if self._is_upsert and not self._keys:
            raise PipelineError(
                "nothing says which columns tell the rows apart", field="keys", fix="Name them: keys=['id']"
            )
        self.positions(group, [])

    @override
    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        positions = self.positions(owner.group, partitions)
        # Another sink has done the work past the table's position.
        moved = {p: max(position, committed.get(p, position)) for p, position in positions.items()}
        self._starts.update(moved)
        return moved

    @override
    def bind(self, source: Source) -> Self:
        self._dead_letters = source.dead_letters
        return self

    def _refusal(self, target: str, reason: object, batch: Batch, changeable: str) -> PipelineError:
        """Return the error for a row that the target refuses. changeable: what of the target could be changed."""
        spans = [f"{partition} {span.start}-{span.end - 1}" for partition, span in sorted(batch.ranges.items())]
        more = [f"{len(spans) - _MOST_SPANS} more"] if len(spans) > _MOST_SPANS else []
        fix = f"Leave such rows out or correct them in map_arrow, or change {changeable}"
        if self._dead_letters is None:
            fix += "; in a pipeline without state, dead_letter_topic takes their records"
        shown = ", ".join(spans[:_MOST_SPANS] + more)
        return PipelineError(f"{target} refuses a row of {shown}{reason}", field=self.name, fix=fix)

    def _fence(self, positions: Mapping[TopicPartition, int], batch: Batch) -> None:
        """Raise SinkFencedError if a position found is not where the batch begins."""
        for partition, span in batch.ranges.items():
            position = positions.get(partition, span.start)
            if position == span.start or (position < span.start and self._starts.get(partition) == span.start):
                continue
            raise SinkFencedError(
                f"{partition} stands at {position}, not at {span.start}; the batch's results were dropped",
                field=self.name,
            )

    def _check_keys(self, schema: StructType) -> None:
        """Raise PipelineError if rows of these columns cannot be told apart by the keys."""
        if not self._is_upsert or not self._keys:
            return
        if missing := [name for name in self._keys if name not in schema.names]:
            problem = f"the rows have no column `{missing[0]}` (they have {', '.join(schema.names)})"
            raise PipelineError(problem, field="keys", fix="Name columns of the rows")
        try:
            encode_keys(arrow_schema(schema).empty_table(), self._keys)
        except StateError as error:
            problem = str(error).removeprefix("keys: ")
            raise PipelineError(problem, field="keys", fix="Convert it, or name other columns") from None

    @override
    def close(self) -> None:
        self._starts.clear()
