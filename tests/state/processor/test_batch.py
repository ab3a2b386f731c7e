"""Batches with variables, time to live and timers against plain dictionaries; the store is opened anew for each."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.lmdb_store import LmdbStore
from roster.state.processor.batch import SWEPT_KEY, Plan, TimeMode, take
from roster.state.processor.states import ListState, MapState, ValueState
from roster.state.processor.variables import FIRST, LAST, REGISTRY_KEY
from tests.examples_tried import examples

NUMBER = pa.schema([("n", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("said", pa.string())])
TTL = 30


class Recorder:
    """Code of a user's that does what the rows say and tells what it sees."""

    def __init__(self, ttl=None, schema=NUMBER):
        self._ttl, self._schema, self.said = ttl, schema, []

    def open(self, state, table):
        self.state, self.table = state, table
        self.value = state.value(ValueState, "value", self._schema, self._ttl)
        self.list = state.list(ListState, "list", self._schema, self._ttl)
        self.map = state.map(MapState, "map", NUMBER, self._schema, self._ttl)

    def rows(self, key, begin, end, now, *, is_new):
        for row in self.table.slice(begin, end - begin).to_pylist():
            self.say(key, act(self, row["op"], row["n"], now))

    def timer(self, key, at, now):
        self.say(key, ("timer", at, tuple(now), self.value.get(), list(self.state.list_timers())))
        self.state.delete_timer(at)

    @staticmethod
    def threshold(now):
        return now

    def say(self, key, what):
        self.said.append((key[0], str(what)))

    def close(self):
        return pa.table(list(zip(*self.said, strict=True)) or [[], []], schema=OUTPUT)


def act(to, op, n, now):
    """One call of each kind, and what it returns."""
    if op == "look":
        return (
            to.value.get(),
            to.value.exists(),
            list(to.list.get()),
            to.list.exists(),
            sorted(to.map.iterator()),
            to.map.exists(),
            to.map.getValue((n,)),
            to.map.containsKey((n,)),
            sorted(to.map.keys()),
            sorted(to.map.values()),
        )
    actions = {
        "update": lambda: to.value.update((n,)),
        "clear value": to.value.clear,
        "append": lambda: to.list.appendValue((n,)),
        "append list": lambda: to.list.appendList([(n,), (n + 1,)]),
        "put": lambda: to.list.put([(n,)]),
        "put nothing": lambda: to.list.put([]),
        "clear list": to.list.clear,
        "set": lambda: to.map.updateValue((n,), (n * 2,)),
        "remove": lambda: to.map.removeKey((n,)),
        "clear map": to.map.clear,
    }
    timed = {
        "register": lambda: to.state.register_timer(now.processing + n * 10),
        "delete": lambda: to.state.delete_timer(now.processing + n * 10),
        "timers": lambda: list(to.state.list_timers()),
    }
    return (actions | timed)[op]()


OPERATIONS = [
    *("look", "update", "clear value", "append", "append list", "put", "put nothing", "clear list"),
    *("set", "remove", "clear map"),
]


class Plain:
    """The same in dictionaries: each row has the time at which it is over."""

    def __init__(self, ttl):
        self.ttl, self.now = ttl, 0
        self.values, self.lists, self.maps = {}, defaultdict(list), defaultdict(dict)
        self.timers = defaultdict(set)

    def end(self):
        return float("inf") if self.ttl is None else self.now + self.ttl

    def look(self, key, n):
        value = next((row for row, end in [self.values.get(key, (None, 0))] if end > self.now), None)
        rows = [row for row, end in self.lists[key] if end > self.now]
        entries = sorted(((k,), row) for k, (row, end) in self.maps[key].items() if end > self.now)
        found = dict(entries).get((n,))
        keys, values = [k for k, _ in entries], sorted(row for _, row in entries)
        has = found is not None
        return (value, value is not None, rows, bool(rows), entries, bool(entries), found, has, keys, values)

    def act(self, key, op, n):
        if op == "look":
            return self.look(key, n)
        if op == "update":
            self.values[key] = (n,), self.end()
        elif op == "clear value":
            self.values.pop(key, None)
        elif op in ("append", "append list"):
            self.lists[key] += [((each,), self.end()) for each in ([n] if op == "append" else [n, n + 1])]
        elif op in ("put", "put nothing", "clear list"):
            self.lists[key] = [((n,), self.end())] if op == "put" else []
        elif op == "set":
            self.maps[key][n] = (n * 2,), self.end()
        elif op == "remove":
            self.maps[key].pop(n, None)
        elif op == "clear map":
            self.maps[key].clear()
        return self.timed(key, op, n)

    def timed(self, key, op, n):
        at = self.now + n * 10
        if op == "register":
            self.timers[key].add(at)
        elif op == "delete":
            self.timers[key].discard(at)
        return sorted(self.timers[key]) if op == "timers" else None

    def fire(self):
        """What timers say that are due, in the order of time."""
        for at, key in sorted((at, key) for key, times in self.timers.items() for at in times if at <= self.now):
            value = self.look(key, 0)[0]
            yield key, str(("timer", at, (self.now, -1), value, sorted(self.timers[key])))
            self.timers[key].discard(at)


def table(rows):
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    return pa.table(
        [pa.array(c, t) for c, t in zip(columns, [pa.string(), pa.string(), pa.int64()], strict=True)],
        ["key", "op", "n"],
    )


def process_batch(place, rows, plan, now, code):
    with LmdbStore(place) as store:
        with store.snapshot() as snapshot:
            update = take(table(rows), snapshot, plan, code, clock=lambda: now)
        store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position())
    return update


def entries(place):
    with LmdbStore(place) as store:
        return [key for key, _ in store.scan(stop=b"\xff")]


def in_order(said, key):
    return [what for of, what in said if of == key]


rows_of = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from([*OPERATIONS, "look"]), st.integers(0, 3)), max_size=9
)


@given(st.lists(rows_of, min_size=1, max_size=5))
@settings(max_examples=examples(40))
def test_variables_are_what_dictionaries_are(tmp_path_factory, batches):
    place, plain = tmp_path_factory.mktemp("s"), Plain(None)
    for batch in [*batches, [(key, "look", 1) for key in ("", "a", "b")]]:
        code = Recorder()
        process_batch(place, batch, Plan(("key",)), 0, code)
        expected = [(key, str(plain.act(key, op, n))) for key, op, n in batch]
        for key in ("", "a", "b"):
            assert in_order(code.said, key) == in_order(expected, key)
    live = sum(1 for row in plain.values.values() if row) + sum(map(bool, plain.lists.values()))
    assert len(entries(place)) == live + sum(map(len, plain.maps.values()))


timed_rows = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b"]),
        st.sampled_from([*OPERATIONS, "look", "register", "register", "delete", "timers"]),
        st.integers(0, 3),
    ),
    max_size=9,
)


@given(st.lists(st.tuples(timed_rows, st.integers(1, 25)), min_size=1, max_size=6))
@settings(max_examples=examples(40))
def test_time_to_live_and_timers_are_kept(tmp_path_factory, batches):
    place, plain = tmp_path_factory.mktemp("s"), Plain(TTL)
    plan = Plan(("key",), TimeMode.PROCESSING)
    last = [(key, "look", 1) for key in ("", "a", "b")]
    for batch, pause in [*batches, (last, 1), (last, 200), ([], 200)]:
        plain.now += pause
        code = Recorder(TTL)
        update = process_batch(place, batch, plan, plain.now, code)
        expected = [(key, str(plain.act(key, op, n))) for key, op, n in batch] + list(plain.fire())
        following = min((at for times in plain.timers.values() for at in times), default=None)
        assert update.timer_in_ms == (None if following is None else following - plain.now)
        for key in ("", "a", "b"):
            assert in_order(code.said, key) == in_order(expected, key)
    assert entries(place) == [], "all is over, and swept"


def test_expired_entries_are_swept_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr("roster.state.processor.batch._LEAST", 4)
    plan = Plan(("key",), TimeMode.PROCESSING)
    process_batch(tmp_path, [(f"k{number}", "update", 1) for number in range(10)], plan, 0, Recorder(TTL))
    left = []
    for now in range(40, 90, 10):
        process_batch(tmp_path, [], plan, now, Recorder(TTL))
        left.append(len(entries(tmp_path)))
    assert left[-1] == 0
    assert left == sorted(left, reverse=True)
    assert len(set(left)) > 2
    with LmdbStore(tmp_path) as store:
        (swept,) = store.multi_get([SWEPT_KEY])
    assert swept is not None


def test_what_does_not_change_makes_no_record(tmp_path):
    plan = Plan(("key",), TimeMode.PROCESSING)
    process_batch(tmp_path, [("a", "update", 1), ("a", "register", 3)], plan, 0, Recorder())
    again = [("a", "update", 1), ("a", "look", 1), ("a", "register", 3), ("b", "clear value", 0), ("b", "remove", 0)]
    assert process_batch(tmp_path, again, plan, 0, Recorder()).changes.num_rows == 0
    both = [("b", "register", 2), ("b", "delete", 2), ("b", "append", 2), ("b", "clear list", 0)]
    assert process_batch(tmp_path, both, plan, 0, Recorder()).changes.num_rows == 0


def test_each_changed_key_of_a_variable_is_one_record(tmp_path):
    rows = [("a", op, n) for op in ("update", "append", "set") for n in (1, 2, 1)]
    update = process_batch(tmp_path, rows, Plan(("key",)), 0, Recorder())
    keys = update.changes["key"].to_pylist()
    assert keys.count(REGISTRY_KEY) == 1
    assert len(keys) == 1 + 1 + 1 + 2


def test_fields_may_be_added_to_a_schema(tmp_path):
    plan = Plan(("key",))
    process_batch(tmp_path, [("a", op, 5) for op in ("update", "append", "set")], plan, 0, Recorder())
    wider = pa.schema([("more", pa.string()), ("n", pa.int64())])

    class Wider(Recorder):
        def rows(self, key, begin, end, now, *, is_new):
            self.say(key, (self.value.get(), list(self.list.get()), list(self.map.iterator())))
            self.list.appendValue(("x", 6))
            self.value.update(("y", 7))

    code = Wider(schema=wider)
    process_batch(tmp_path, [("a", "look", 1)], plan, 0, code)
    assert code.said == [("a", str(((None, 5), [(None, 5)], [((5,), (None, 10))])))]
    code = Wider(schema=wider)
    process_batch(tmp_path, [("a", "look", 1)], plan, 0, code)
    assert code.said == [("a", str((("y", 7), [(None, 5), ("x", 6)], [((5,), (None, 10))])))]
    with pytest.raises(StateError, match=r"'value': a newer release has added its field 'more'\. Stop this release"):
        process_batch(tmp_path, [], plan, 0, Recorder())
    other = pa.schema([("more", pa.int64()), ("n", pa.int64())])
    with pytest.raises(StateError, match="'more' was written as string and is int64; types may become wider only"):
        process_batch(tmp_path, [], plan, 0, Recorder(schema=other))


TYPES = {
    "n": [pa.int8(), pa.int32(), pa.int64(), pa.float64()],
    "f": [pa.float32(), pa.float64()],
    "d": [pa.decimal128(4, 2), pa.decimal128(9, 3)],
    "s": [pa.string()],
}
"""Types of fields, each wider than those before."""
SAMPLES = {"n": st.integers(-9, 9), "f": st.sampled_from([0.5, 2.0]), "d": st.sampled_from([Decimal("1.25")])}
SCHEMAS = st.permutations(list(TYPES)).flatmap(
    lambda names: st.tuples(st.just(names), st.integers(1, 4), st.tuples(*(st.integers(0, 1) for _ in names)))
)


def evolved(script):
    """Schemas of fields that come, go and become wider."""
    level, schemas = dict.fromkeys(TYPES, 0), []
    for names, count, steps in script:
        for name, step in zip(names, steps, strict=True):
            level[name] = min(level[name] + step, len(TYPES[name]) - 1)
        schemas.append(pa.schema([(name, TYPES[name][level[name]]) for name in names[:count]]))
    return schemas


@given(st.data(), st.lists(SCHEMAS, min_size=1, max_size=6))
@settings(max_examples=examples(40))
def test_fields_come_and_go_and_become_wider_and_values_stay(tmp_path_factory, data, script):
    place, plan = tmp_path_factory.mktemp("s"), Plan(("key",))
    value, rows, entry, had = None, [], None, []

    def seen(schema, row):
        return None if row is None else tuple(row.get(name) for name in schema.names)

    for schema in evolved(script):
        new = {name: data.draw(st.none() | SAMPLES.get(name, st.just("x"))) for name in schema.names}
        update, append = data.draw(st.booleans()), data.draw(st.booleans())

        class Code(Recorder):
            def rows(self, key, begin, end, now, *, is_new):
                self.found = self.value.get(), list(self.list.get()), self.map.getValue((1,))
                given = seen(self._schema, self.new)
                if self.update:
                    self.value.update(given)
                    self.map.updateValue((1,), given)
                if self.append:
                    self.list.appendValue(given)

        code = Code(schema=schema)
        code.new, code.update, code.append = new, update, append
        is_back = had and schema in had and set(had[-1].names) - set(schema.names)
        if is_back:
            with pytest.raises(StateError, match="a newer release has added its field"):
                process_batch(place, [("a", "look", 1)], plan, 0, code)
            continue
        process_batch(place, [("a", "look", 1)], plan, 0, code)
        had.append(schema)
        assert code.found == (seen(schema, value), [seen(schema, row) for row in rows], seen(schema, entry))
        if update:
            value = entry = new
        if append:  # which writes the whole list under the present schema
            rows = [dict(zip(schema.names, seen(schema, row), strict=True)) for row in [*rows, new]]


def test_integers_are_floats_where_the_field_is_double(tmp_path):
    class Code(Recorder):
        def rows(self, key, begin, end, now, *, is_new):
            self.say(key, self.value.get())
            self.value.update((5,))

    process_batch(tmp_path, [("a", "look", 1)], Plan(("key",)), 0, Code())
    code = Code(schema=pa.schema([("n", pa.float64())]))
    process_batch(tmp_path, [("a", "look", 1)], Plan(("key",)), 0, code)
    assert code.said == [("a", "(5.0,)")]


def test_the_time_to_live_of_what_is_written_may_change(tmp_path):
    plan = Plan(("key",), TimeMode.PROCESSING)
    alive = []
    for now, ttl, key in [(0, 100, "long"), (10, 20, "short"), (20, None, "ever"), (25, 50, "later")]:
        process_batch(tmp_path, [(key, "update", 1)], plan, now, Recorder(ttl))
    for now in (26, 40, 80, 200):
        code = Recorder(50)
        process_batch(tmp_path, [(key, "look", 1) for key in ("long", "short", "ever", "later")], plan, now, code)
        alive.append([key for key, said in code.said if said.startswith("((1,), True")])
    assert alive == [["long", "short", "ever", "later"], ["long", "ever", "later"], ["long", "ever"], ["ever"]]


class Declaring(Recorder):
    def __init__(self, declare):
        super().__init__()
        self._declare = declare

    def open(self, state, table):
        self.state = state
        self._declare(state)

    def rows(self, key, begin, end, now, *, is_new):
        pass


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda state: state.list(ListState, "value", NUMBER), "'value': the store has a value of this name, no list"),
        (lambda state: state.value(ValueState, "x", NUMBER, 5), "'x': a time to live needs time mode ProcessingTime"),
        (lambda state: [state.value(ValueState, "x", NUMBER) for _ in "12"], "'x': it is declared already"),
        (lambda state: state.value(ValueState, "", NUMBER), "'': the name must not be empty"),
        (lambda state: state.list(ListState, " x", NUMBER), "' x': the name must not be empty, nor begin or end with"),
        (lambda state: state.value(ValueState, "$t", NUMBER), r"'\$t': Spark has names that begin with \$"),
        (lambda state: state.value(ValueState, "default", NUMBER), "'default': Spark has names that"),
        (lambda state: state.value(ValueState, "x", pa.schema([("u", pa.uint64())])), "field 'u': a state variable"),
        (lambda state: state.map(MapState, "map", OUTPUT, NUMBER), "'map': its map's keys were written with another"),
        (lambda state: state.value(ValueState, "x", NUMBER).get(), "'x': there is no key in init"),
        (lambda state: state.register_timer(1), "timers need time mode"),
        (
            lambda state: [state.value(ValueState, f"x{n}", NUMBER) for n in range(LAST - FIRST + 2)],
            "a processor can have 224 state variables",
        ),
    ],
)
def test_wrong_declarations_are_named(tmp_path, declare, problem):
    process_batch(tmp_path, [("a", "set", 1)], Plan(("key",)), 0, Recorder())
    with pytest.raises(StateError, match=problem):
        process_batch(tmp_path, [], Plan(("key",)), 0, Declaring(declare))


def test_variables_are_declared_in_init_only_and_may_be_removed_there(tmp_path):
    process_batch(tmp_path, [("a", op, 1) for op in ("update", "append", "set")], Plan(("key",)), 0, Recorder())

    class Late(Recorder):
        def rows(self, key, begin, end, now, *, is_new):
            self.state.value(ValueState, "late", NUMBER)

    with pytest.raises(StateError, match="'late': declare and remove it in init"):
        process_batch(tmp_path, [("a", "look", 1)], Plan(("key",)), 0, Late())

    def removing(state):
        state.remove("map")
        state.remove("unknown")
        assert list(state.variables.declared) == []
        state.map(MapState, "map", OUTPUT, NUMBER)
        state.value(ValueState, "value", NUMBER)

    with pytest.raises(StateError, match=r"'list': the store has it and init\(\) does not declare it; .* up by delete"):
        process_batch(tmp_path, [], Plan(("key",)), 0, Declaring(removing))
    assert len(entries(tmp_path)) == 3

    def all_of_them(state):
        removing(state)
        state.list(ListState, "list", NUMBER)

    process_batch(tmp_path, [], Plan(("key",)), 0, Declaring(all_of_them))
    assert len(entries(tmp_path)) == 2


def test_rows_up_to_the_watermark_are_late_and_timers_follow_it(tmp_path):
    plan = Plan(("key",), TimeMode.EVENT, "time", timedelta(seconds=5))
    second = 1_000

    class Watching(Recorder):
        def rows(self, key, begin, end, now, *, is_new):
            self.say(key, (end - begin, now.watermark))
            for at in self.table["time"].slice(begin, end - begin).cast(pa.int64()).to_pylist():
                if at is not None:
                    self.state.register_timer(at // 1000)

        def timer(self, key, at, now):
            self.say(key, ("timer", at, now.watermark))
            self.state.delete_timer(at)

    def batch(*times):
        code = Watching()
        rows = pa.table(
            {
                "key": pa.array(["a"] * len(times), pa.string()),
                "time": pa.array([None if t is None else t * 1_000_000 for t in times], pa.int64()).cast(
                    pa.timestamp("us", "UTC")
                ),
            }
        )
        with LmdbStore(tmp_path) as store:
            update = take(rows, store, plan, code, clock=lambda: 99)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position())
        return [eval(said) for _, said in code.said], update.late

    assert batch(3, 10, None) == ([(3, 0), ("timer", 3 * second, 5 * second)], 0)
    assert batch(5, 6, 4) == ([(1, 5 * second)], 2), "6 is later than the watermark; 5 and 4 are not"
    assert batch(16) == ([(1, 5 * second), ("timer", 6 * second, 11 * second), ("timer", 10 * second, 11 * second)], 0)
    assert batch(11) == ([], 1)
    assert batch() == ([], 0)


def test_plans_name_what_is_missing():
    with pytest.raises(StateError, match="event_time: time mode EventTime needs the column"):
        Plan(("key",), TimeMode.EVENT)
    with pytest.raises(StateError, match="delay: datetime"):
        Plan(("key",), delay=timedelta(seconds=-1))
