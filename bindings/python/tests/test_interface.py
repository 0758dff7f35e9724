"""What the model does not show: forms of rows, memory without copies, errors, threads, states."""

import asyncio
import concurrent.futures
import ctypes
import doctest
import gc
import json
import os
import pathlib
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import terrane
import terrane.aio
import terrane.results

KEYS = [f"key {n:04}".encode() for n in range(300)]
VALUES = [f"v{n}".encode() * (n % 5) for n in range(300)]


@pytest.fixture
def store(tmp_path):
    with terrane.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def table(store):
    table = store.table("t")
    table.put_many(KEYS, VALUES)
    return table


def offsets_of(rows):
    return np.cumsum([0, *map(len, rows)], dtype=np.int64)


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        lambda keys: [key.decode() for key in keys],
        lambda keys: [bytearray(key) for key in keys],
        lambda keys: (b"".join(keys), offsets_of(keys)),
        lambda keys: (bytearray(b"".join(keys)), offsets_of(keys).astype(np.uint64)),
        lambda keys: np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1),
        lambda keys: np.array(keys, dtype="S8"),
        lambda keys: pa.array(keys),
        lambda keys: pa.array(keys, type=pa.large_binary()),
        lambda keys: pa.array(keys, type=pa.binary(8)),
        lambda keys: pa.array([key.decode() for key in keys]),
        lambda keys: pa.array(keys).slice(0),
    ],
)
def test_keys_come_in_many_forms(store, form):
    table = store.table("forms")
    table.put_many(form(KEYS), VALUES)
    assert list(table.items()) == list(zip(KEYS, VALUES))
    assert table.get_many(form(KEYS[7:9])).to_list() == VALUES[7:9]
    table.delete_many(form(KEYS[:299]))
    assert list(table) == KEYS[299:]


def test_rows_are_read_in_place(table):
    rows = table.get_many([*KEYS, b"absent"])
    assert len(rows) == 301 and rows[-1] is None and rows[1] == VALUES[1] and list(rows)[:3] == VALUES[:3]
    data, offsets, found = (np.asarray(part) for part in (rows.data, rows.offsets, rows.found))
    assert data.dtype == np.uint8 and offsets.dtype == np.int64 and found.dtype == np.bool_
    assert not data.flags.owndata and not data.flags.writeable
    assert bytes(data) == b"".join(VALUES) and found.sum() == 300 and offsets[-1] == len(data)
    with pytest.raises(IndexError):
        rows[301]
    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_char * len(rows.data)).from_buffer(rows.data)

    array = pa.array(rows)
    assert array.type == pa.large_binary() and array.null_count == 1
    assert array.buffers()[2].address == data.__array_interface__["data"][0], "the same memory"
    del rows, table
    gc.collect()
    assert array.to_pylist() == [*VALUES, None] and bytes(data) == b"".join(VALUES)


def test_rows_go_back_in_without_a_copy(store, table):
    copy = store.table("copy")
    for chunk in table.scan_chunks(rows=64):
        assert len(chunk) <= 64
        copy.put_many(chunk.keys, chunk.values)
    assert copy.digest() == table.digest()


def test_chunks_are_a_stream_of_arrow(table):
    read = pa.table(table.scan_chunks(KEYS[10], KEYS[20], rows=4))
    assert read.column("key").to_pylist() == KEYS[10:20]
    assert read.column("value").to_pylist() == VALUES[10:20]
    chunks = table.scan_chunks()
    assert pa.record_batch(next(chunks)).num_rows == 300
    assert pa.table(chunks).num_rows == 0
    with pytest.raises(terrane.InvalidInputError, match="taken"):
        next(chunks)
    assert list(read.to_pandas().columns) == ["key", "value"]


def test_large_values_end_a_chunk(store):
    table = store.table("large")
    table.put_many([b"a", b"b", b"c"], [b"x" * 60000] * 3)
    assert [len(chunk) for chunk in table.scan_chunks(max_bytes=100_000)] == [2, 1]


def test_one_of_many_threads_takes_a_key(store):
    table = store.table("queue")
    keys = [f"{number:03}" for number in range(200)]
    table.put_many(keys, keys)

    def take(number):
        """Pops and deletes keys in its own order, and returns those that it got."""
        taken = []
        for key in keys[number * 50 :] + keys[: number * 50]:
            if number % 2 == 0:
                taken.append(table.pop(key, None))
                continue
            try:
                del table[key]
                taken.append(key.encode())
            except KeyError:
                pass
        return [key for key in taken if key is not None]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        taken = [key for keys in pool.map(take, range(4)) for key in keys]
    assert sorted(taken) == [key.encode() for key in keys]
    assert table.count() == 0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t[3], TypeError),
        (lambda t: t["absent"], KeyError),
        (lambda t: t.pop("absent"), KeyError),
        (lambda t: t.get_many("not rows"), TypeError),
        (lambda t: t.get_many([b"a", 3]), TypeError),
        (lambda t: t.get_many((b"abc", np.array([0, 4]))), ValueError),
        (lambda t: t.get_many((b"abc", np.array([0, 2, 1, 3]))), ValueError),
        (lambda t: t.get_many((b"abc", np.array([0, -1, 3]))), ValueError),
        (lambda t: t.get_many(np.zeros((2, 3, 4), np.uint8)), TypeError),
        (lambda t: t.get_many(np.zeros(5, np.float64)), TypeError),
        (lambda t: t.get_many(np.zeros((4, 6), np.uint8)[:, ::2]), ValueError),
        (lambda t: t.get_many(np.zeros((4, 0), np.uint8)), ValueError),
        (lambda t: t.get_many(pa.array([1, 2])), TypeError),
        (lambda t: t.get_many(pa.array([b"a", None])), ValueError),
        (lambda t: t.put_many([b"a"], []), ValueError),
        (lambda t: t.put("k" * 70_000, ""), terrane.InvalidInputError),
        (lambda t: t.items("a", prefix="a"), ValueError),
        (lambda t: t.scan_chunks(rows=0), ValueError),
        (lambda t: t.save_snapshot("no/name"), terrane.InvalidInputError),
    ],
)
def test_bad_input_is_refused(table, call, error):
    before = table.digest()
    with pytest.raises(error):
        call(table)
    assert table.digest() == before


def test_errors_have_a_kind(store, tmp_path):
    with pytest.raises(terrane.LockedError) as locked:
        terrane.open(tmp_path / "store")
    assert locked.value.kind == "locked" and str(locked.value)
    for call in [
        lambda: store.table("absent", create=False),
        lambda: store.version(99),
        lambda: store.open_snapshot("absent"),
        lambda: terrane.open(tmp_path / "absent", create=False),
        lambda: terrane.inspect(tmp_path / "absent"),
    ]:
        with pytest.raises(LookupError) as absent:
            call()
        assert isinstance(absent.value, terrane.NotFoundError)
    with pytest.raises(ValueError, match="durability"):
        terrane.open(tmp_path / "other", durability="maybe")
    table = store.table()
    store.close()
    with pytest.raises(terrane.ClosedError):
        table.get("a")


def test_a_store_comes_back(tmp_path):
    with terrane.open(tmp_path / "s") as store:
        table = store.table("t")
        commit = table.put("a", "1", sync=True)
        assert store.durable_commit >= commit == store.last_commit
        table.save_snapshot("first", "kind")
        version = store.retain("genesis")
        table["b"] = "2"
        fork = table.fork()
        fork["c"] = "3"
        store.install("forked", fork)
        report = store.back_up(tmp_path / "backup")
        assert report["tables"] == 2 and report["versions"] == 1 and report["snapshots"] == 1
    for path in ["s", "backup"]:
        with terrane.open(tmp_path / path, create=False) as store:
            assert store.tables() == ["forked", "t"] and store.snapshots() == ["first"]
            assert dict(store.table("forked").items()) == {b"a": b"1", b"b": b"2", b"c": b"3"}
            assert list(store.open_snapshot("first", "kind")) == [b"a"]
            assert store.versions() == [terrane.Version(version, "genesis", ["t"])]
            assert list(store.version(version, "t")) == [b"a"]
            store.rename_table("t", "u")
            store.drop_table("forked")
            assert store.tables() == ["u"]
            store.delete_snapshot("first")
            store.release(version)
            store.compact()
            assert terrane.stats(store.table("u"))["levels"] is not None and store.stats()


def test_a_commit_can_depend_on_the_last_one(store, table):
    batch = store.batch()
    batch.put(table, "a", "1")
    with pytest.raises(terrane.ConflictError):
        batch.commit(if_last_commit=store.last_commit - 1)
    assert len(batch) == 1 and "a" not in table
    batch.commit(if_last_commit=store.last_commit)
    assert len(batch) == 0 and table["a"] == b"1"


def test_transactions_of_threads_lose_nothing(store):
    counters = store.table("counters")

    def count():
        def body(tx):
            tx.put(counters, "n", str(int(tx.get(counters, "n", b"0")) + 1))

        done = 0
        while done < 25:
            try:
                terrane.transact(store, body, sync=False)
                done += 1
            except terrane.ConflictError:
                pass

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters["n"] == b"100"


def test_buffers_that_change_meanwhile_are_read_once(store):
    table = store.table("busy")
    keys = np.zeros((256, 8), np.uint8)
    stop = threading.Event()

    def scribble():
        while not stop.is_set():
            keys[:] += 1

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for _ in range(50):
            table.put_many(keys, [b"v"] * 256)
            table.get_many(keys)
    finally:
        stop.set()
        thread.join()
    assert all(len(key) == 8 for key in table)


def test_asyncio(tmp_path):
    async def main():
        async with await terrane.aio.open(tmp_path / "s") as store:
            table = await store.table("t")
            await table.put_many(KEYS, VALUES, sync=True)
            assert await asyncio.gather(*(table.get(key, b"none") for key in [*KEYS, b"x"])) == [*VALUES, b"none"]
            chunks = [chunk async for chunk in table.scan_chunks(rows=100)]
            assert [len(chunk) for chunk in chunks] == [100, 100, 100]
            # One bad key among good ones has an error of its own.
            good, bad = await asyncio.gather(table.get(KEYS[0]), table.get(3), return_exceptions=True)
            assert good == VALUES[0] and isinstance(bad, TypeError)
            batch = store.store.batch()
            batch.delete_many(table.table, KEYS[1:])
            await store.commit(batch, sync=True)
            assert (await table.get_many(KEYS[:2])).to_list() == [VALUES[0], None]
            assert await store.transact(lambda tx: tx.get(table.table, KEYS[0])) == VALUES[0]
            cancelled = asyncio.ensure_future(table.get(KEYS[0]))
            await asyncio.sleep(0)
            cancelled.cancel()
            await table.put("a", "1")
            await table.delete("a")
            await table.delete_many([b"b"])
            await store.sync()
        with pytest.raises(terrane.ClosedError):
            await table.get("a")
        with pytest.raises(terrane.NotFoundError):
            await terrane.aio.open(tmp_path / "absent", create=False)

    asyncio.run(main())


def test_a_committed_table_proves_its_entries(store):
    table = store.committed_table("ledger")
    empty = table.root()
    root = table.commit(KEYS[:20], VALUES[:20])
    assert root == table.root() != empty and table.entries[KEYS[3]] == VALUES[3]
    for key, value in [(KEYS[3], VALUES[3]), (KEYS[0], VALUES[0]), (b"absent", None)]:
        proof = table.prove(key)
        assert terrane.verify_committed_proof(root, key, proof) == value
        with pytest.raises(terrane.InvalidProofError):
            terrane.verify_committed_proof(empty, key, proof)
    flipped = [bytes([proof[0][0] ^ 1]) + proof[0][1:], *proof[1:]]
    with pytest.raises(terrane.InvalidProofError):
        terrane.verify_committed_proof(root, b"absent", flipped)
    assert table.commit([], [], KEYS[:20], sync=True) == empty


def test_a_radix_state_proves_its_values(tmp_path):
    addresses = [bytes([n, n + 1, 7]) for n in range(30)]
    with terrane.RadixState(tmp_path / "radix") as state:
        tree = state.tree()
        first = tree.commit(tree.EMPTY_ROOT, addresses, VALUES[1:31])
        second = tree.commit(first, addresses[:1], [b"new"], deletes=addresses[1:3])
        asked = [*addresses[:3], b"\xff"]
        assert tree.get_many(second, asked).to_list() == [b"new", None, None, None]
        assert tree.get_many(first, asked[:1]).to_list() == VALUES[1:2]
        for compact in [True, False]:
            proof = tree.prove(second, asked, compact=compact)
            assert terrane.verify_radix_proof(second, proof, asked).to_list() == [b"new", None, None, None]
            with pytest.raises(terrane.InvalidProofError):
                terrane.verify_radix_proof(first, proof, asked)
            with pytest.raises(terrane.InvalidProofError):
                terrane.verify_radix_proof(second, proof[:-1], asked)
        assert state.trees() == ["main"] and set(tree.roots()) == {first, second}
        tree.prune(first)
        assert tree.roots() == [second]
        with pytest.raises(terrane.NotFoundError):
            tree.get_many(first, asked)
        with pytest.raises(terrane.InvalidInputError):
            tree.get_many(b"short", asked)
        with pytest.raises(terrane.InvalidInputError):
            tree.commit(second, [b"x" * 36], [b"too long"])


def test_bytes_that_are_no_proof_are_refused():
    root = bytes(32)
    for proof in [b"", b"\x00", b"\x01" * 200]:
        with pytest.raises(terrane.InvalidProofError):
            terrane.verify_radix_proof(root, proof, [b"a"])
        with pytest.raises(terrane.InvalidProofError):
            terrane.verify_mpt_proof(root, b"a", [proof])
        with pytest.raises(terrane.InvalidProofError):
            terrane.verify_context_proof(root, proof, ["data/a"])
    with pytest.raises(terrane.InvalidInputError):
        terrane.verify_mpt_proof(b"short", b"a", [])


def test_inspect_and_results(tmp_path):
    with terrane.open(tmp_path / "s") as store:
        store.table("t")["a"] = "1"
    described = terrane.inspect(tmp_path / "s")
    flat = terrane.results.flatten(described)
    assert flat["kind"] == "session" and pd.json_normalize(described).shape[0] == 1

    report = {"command": "bench", "phases": [{"wall_s": 1.5, "p": {"p50": 2}}, {"wall_s": 2.5}]}
    (tmp_path / "a.json").write_text(json.dumps(report))
    (tmp_path / "b.json").write_text('{"wall_s": 1}\n{"wall_s": 2}\n')
    frame = terrane.results.frame(tmp_path / "a.json", explode="phases")
    assert list(frame["phases.wall_s"]) == [1.5, 2.5] and frame["phases.p.p50"][0] == 2
    assert [row["wall_s"] for row in terrane.results.load(str(tmp_path / "b*.json"))] == [1, 2]


def test_a_store_stays_with_its_process(store, table):
    child = os.fork()
    if child == 0:
        try:
            table.get(KEYS[0])
        except terrane.ClosedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    table["after"] = b"the fork"
    assert table.get(KEYS[1]) == VALUES[1]


def test_recorded_results_become_a_table():
    results = pathlib.Path(__file__).parents[3] / "bench" / "results"
    frame = terrane.results.frame(str(results / "*.json"))
    assert len(frame) > 10 and {"file", "command", "wall_s"} <= set(frame.columns)


@pytest.mark.parametrize("module", [terrane, terrane.aio, terrane.results])
def test_examples_of_the_documentation(module):
    results = doctest.testmod(module)
    assert results.attempted > 0 and results.failed == 0


def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
    programs = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    assert programs
    for program in programs:
        exec(compile(program, "README.md", "exec"), {})


def test_stubs_name_everything():
    stubs = (pathlib.Path(terrane.__file__).parent / "__init__.pyi").read_text()
    for name in terrane.__all__:
        assert f"class {name}" in stubs or f"def {name}" in stubs or f"{name}:" in stubs, name
    for cls in [terrane.Store, terrane.Table, terrane.Reader, terrane.Batch, terrane.RadixTree]:
        for name in vars(cls):
            if not name.startswith("_") and not name.endswith("_json"):
                assert f"def {name}(" in stubs or f"{name}:" in stubs, f"{cls.__name__}.{name}"
