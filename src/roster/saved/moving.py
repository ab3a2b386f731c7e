"""An import with another number of partitions: what changes, and the offsets that the group goes on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from roster.client import Admin
from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import parse_starting_offsets
from roster.pipeline.pipeline_options import StartingOffsets
from roster.pipeline.tasks.reader import ReaderConfig, ReadError
from roster.saved.export import Export
from roster.saved.job import SMALL_RECORDS, Sessions, run_job
from roster.saved.tasks.moving import Placed, PlacedTask, Proven, ProveTask, SeenTask, Source
from roster.state.definition import STATE_KEY, OtherDefinitionError
from roster.state.saved.folder import Written
from roster.state.saved.manifest import Manifest, SavedStore
from roster.state.saved.parts import merged_marks
from roster.stateful.tasks.placement import Placement, PlacementError, Proof, SeenKeys, placements, placing_keys

_EARLIEST, _LATEST = -2, -1
_FEW = 200_000
"""Offsets that the driver reads sooner than a Spark job."""
_OFFSETS = "Say where the group goes on (offsets): 'earliest', 'latest', a moment, or offsets by partition"


class MisplacedError(PipelineError):
    """An unread record is not in the partition that its state goes to."""


@dataclass(frozen=True)
class KeyedBy:
    """What the user says of the input topics' record keys; see `import_state`."""

    columns: Sequence[str] = ()
    partitioner: str | None = None


def new_partition_counts(
    manifest: Manifest, counts: Mapping[str, int], repartitions: Mapping[str, int]
) -> dict[str, int]:
    """Return how many partitions each changelog and repartition topic gets, by its name in the export.

    counts: of the cluster's topics. repartitions: of repartition topics that get another number. A store has as many
    as the input topics that its task reads; another repartition topic keeps its number unless it is read beside one
    that does not. Raises PipelineError if these topics have different numbers.
    """
    if strange := sorted(repartitions.keys() - manifest.on_their_way.keys()):
        fix = f"It has {', '.join(sorted(manifest.on_their_way)) or 'none'}"
        raise PipelineError(f"the group has no repartition topic {strange[0]!r}", field="partitions", fix=fix)
    partitions = {topic: repartitions.get(topic, count) for topic, (count, _) in manifest.on_their_way.items()}
    for name, store in manifest.stores.items():
        inputs = _inputs(manifest, name)
        own = inputs & manifest.on_their_way.keys()
        outer = {topic: counts[topic] for topic in sorted(inputs - own) if topic in counts}
        outer |= {topic: repartitions[topic] for topic in sorted(own) if topic in repartitions}
        if len(set(outer.values())) > 1:
            shown = ", ".join(f"{topic!r} has {count}" for topic, count in outer.items())
            problem = f"{name!r} reads topics with different numbers of partitions: {shown}"
            raise PipelineError(problem, field="bootstrap", fix="Give them the same number")
        partitions[store.changelog] = next(
            iter([*outer.values(), *(partitions[topic] for topic in own), store.partitions])
        )
        partitions.update(dict.fromkeys(own, partitions[store.changelog]))
    return partitions


def _inputs(manifest: Manifest, name: str) -> set[str]:
    """Return the topics that the tasks of a store read.

    Those of a store without a batch are not known: with repartition topics it is behind one of them, else it reads
    what the group reads.
    """
    beside = [
        record
        for other, store in manifest.stores.items()
        for record in store.notes.values()
        if name in record.definition.document.get("stores", [other])
    ]
    inputs = {topic for record in beside for topic in record.inputs}
    return inputs if inputs or manifest.on_their_way else {partition.topic for partition in manifest.offsets}


def checked_offsets(
    admin: Admin, manifest: Manifest, counts: Mapping[str, int], given: StartingOffsets | None
) -> dict[TopicPartition, int]:
    """Return where the group goes on in the input topics.

    given: None for the export's offsets, and 0 in partitions that were added since. Raises PipelineError for offsets
    that the topics do not have.
    """
    saved = {
        partition: offset
        for partition, offset in manifest.offsets.items()
        if partition.topic not in manifest.on_their_way
    }
    topics = sorted({partition.topic for partition in saved})
    try:
        wanted = saved if given is None else parse_starting_offsets(given)
    except PipelineError as error:
        raise PipelineError(error.problem, field="offsets", fix=error.fix) from None
    absent = sorted(topic for topic in topics if topic not in counts)
    explicit: Mapping[TopicPartition, int] = wanted if isinstance(wanted, Mapping) else {}
    missing = sorted(partition for partition in explicit if partition.partition >= counts.get(partition.topic, 0))
    if missing or absent:
        raise PipelineError(
            f"the state belongs to offsets of {missing[0] if missing else absent[0]}, which this cluster does not have",
            field="offsets" if given is not None else "bootstrap",
            fix="Import where the input is" if given is not None or absent else _OFFSETS,
        )
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
    added = [partition for partition in partitions if partition not in saved]
    if given is None and added and manifest.cluster != admin.cluster_id():
        raise PipelineError(
            f"{added[0].topic!r} has {counts[added[0].topic]} partitions in this cluster, and the export's offsets are"
            " of another cluster and another number",
            field="offsets",
            fix=_OFFSETS,
        )
    begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    offsets = resolved_offsets(admin, wanted, partitions, begins, ends)
    for partition, offset in sorted(offsets.items()):
        if not begins[partition] <= offset <= ends[partition]:
            raise PipelineError(
                f"the state goes on at offset {offset} of {partition}, which has {begins[partition]} to"
                f" {ends[partition]}",
                field="offsets" if given is not None else "bootstrap",
                fix=f"Import where the input is, as long as it has these records. {_OFFSETS}",
            )
    return offsets


def resolved_offsets(
    admin: Admin,
    wanted: str | int | Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offsets of these partitions that are wanted: `starting_offsets`, checked."""
    if isinstance(wanted, int):
        at_time = admin.offsets_for_times(dict.fromkeys(partitions, wanted))
        return {
            partition: ends[partition] if (offset := at_time[partition]) is None else offset for partition in partitions
        }
    if isinstance(wanted, str):
        return dict(begins if wanted == "earliest" else ends)
    named = {_EARLIEST: begins, _LATEST: ends}
    return {
        partition: named[offset][partition] if (offset := wanted.get(partition, 0)) in named else offset
        for partition in partitions
    }


def common_marks(name: str, store: SavedStore, count: int) -> Mapping[bytes, bytes]:
    """Return the marks that all partitions of a store get: its tasks' marks, merged.

    Raises PipelineError if the tasks' entries are of different releases.
    """
    notes = list(store.notes.values())
    try:
        if any(record.definition != notes[0].definition for record in notes):
            raise OtherDefinitionError("some partitions have entries of an earlier release")
        marks = merged_marks([store.marks.get(number, {}) for number in store.notes])
    except OtherDefinitionError as error:
        problem = f"{name!r} cannot have {count} partitions instead of {store.partitions}: {error}"
        fix = "Export when each partition has had a record with the present release"
        raise PipelineError(problem, field="folder", fix=fix) from None
    return {**marks, STATE_KEY: notes[0].encode()}


def files_to_split(name: str, store: SavedStore, logs: Sequence[int]) -> list[Source]:
    """Return the files of a store whose rows get other partitions."""
    files = files_by_number(store)
    return [
        Source(name, number, store.partitions, logs, files.get(number, {}), placing_keys(noted.definition))
        for number, noted in store.notes.items()
    ]


def files_by_number(store: SavedStore) -> dict[int, dict[str, Written]]:
    """Return the files of each partition, by part."""
    files: dict[int, dict[str, Written]] = {}
    for part, written in store.files.items():
        for file in written:
            files.setdefault(number_of(file), {})[part] = file
    return files


def number_of(file: Written) -> int:
    """Return the partition that a file is of."""
    return int(file.path.rpartition("/")[2].removesuffix(".parquet"))


def proven_placements(
    spark: Sessions, export: Export, sources: Sequence[Source], keyed_by: KeyedBy, *, is_small: bool
) -> dict[str, Placement]:
    """Return how the keys of each store are placed. Raises PipelineError if its keys do not prove it."""
    among = {}
    for source in sources:
        try:
            assert source.keys is not None  # a store's
            among[source.name] = placements(source.keys, keyed_by.columns, keyed_by.partitioner)
        except PlacementError as error:
            raise PipelineError(str(error), field="keyed_by") from None
    what = f"the look at the keys of {export.manifest.group}"
    results: list[Proven] = run_job(
        spark, what, len(sources), lambda done: ProveTask(sources, export.folder, among, done), None, is_small=is_small
    )
    placed = {}
    for name in among:
        mine = [result for result in results if result.name == name]
        if problem := next((result.problem for result in mine if result.problem), ""):
            raise PipelineError(f"{name!r}, {problem}", field="folder")
        if proofs := [result.proof for result in mine if result.proof is not None]:
            source = next(source for source in sources if source.name == name)
            placed[name] = _chosen(source, proofs, keyed_by)
    return placed


def _chosen(source: Source, proofs: Sequence[Proof], keyed_by: KeyedBy) -> Placement:
    try:
        return Proof.all_of(proofs).chosen(source.before, len(source.logs), is_named=bool(keyed_by.columns))
    except PlacementError as error:
        raise PipelineError(
            f"{source.name!r} cannot have {len(source.logs)} partitions instead of {source.before}: {error}",
            field="keyed_by",
            fix="Name the key columns that the records of the input have as key, as in keyed_by='shop', and the"
            " partitioner (murmur2, or crc32 of librdkafka)",
        ) from None


def check_unread(
    spark: Sessions,
    config: ReaderConfig,
    unread: Sequence[Split],
    counts: Mapping[str, int],
    partitioners: Mapping[str, str],
) -> None:
    """Raise MisplacedError if a record that the group has not read is not in the partition that its state goes to."""
    looks = [(split, counts[split.topic], counts[split.topic]) for split in unread if not split.is_empty]
    for (split, *_), by_partitioner in zip(
        looks, places_of_unread(spark, config, looks, [*{*partitioners.values()}]), strict=True
    ):
        if until := by_partitioner[partitioners[split.topic]].until:
            raise MisplacedError(
                f"the record at offset {until - 1} of {split.topic}-{split.partition} has a key of another one of"
                f" {counts[split.topic]} partitions: it was written before the topic grew, and the group has not read"
                " it",
                field="offsets",
                fix="Start an application of the group, which reads what was written before, and then export again",
            )


def seen_keys(spark: Sessions, config: ReaderConfig, unread: Sequence[tuple[Split, int]]) -> list[SeenKeys]:
    """Return the keys of records, each partition's for itself. Raises PipelineError."""
    task = SeenTask(replace(config, include_headers=False, dead_letters=None), unread)
    try:
        if sum(split.end - split.start for split, _ in unread) <= _FEW:
            return list(task(range(len(unread))))
        return run_job(spark, "the look at record keys", len(unread), lambda _: task, None)
    except ReadError as error:
        raise PipelineError(str(error), field="topics") from error


def places_of_unread(
    spark: Sessions, config: ReaderConfig, unread: Sequence[tuple[Split, int, int]], partitioners: Sequence[str]
) -> list[dict[str, Placed]]:
    """Return where partitioners place the keys of unread records. Raises PipelineError."""
    config, what = replace(config, include_headers=False, dead_letters=None), "the look at unread records"
    try:
        is_small = sum(split.end - split.start for split, *_ in unread) <= SMALL_RECORDS
        return run_job(
            spark,
            what,
            len(unread),
            lambda done: PlacedTask(config, unread, partitioners, done),
            None,
            is_small=is_small,
        )
    except ReadError as error:
        raise PipelineError(str(error), field="offsets") from None
