"""Cost of the Python interface beside Rust, RocksDict and py-lmdb: the table of README.md.

Processor time of the process, because other work on the machine does not disturb it. Batches of 256
keys of 32 bytes with values of 60 bytes, all in memory, without fsync; the least of five rounds.

    cd bindings/python && cargo build --release --example cost && maturin develop --release
    pip install rocksdict lmdb numpy && python bench/cost.py target/release/examples/cost
"""

import resource
import subprocess
import sys
import tempfile
import time

import numpy

import terrane

ROWS, KEY, VALUE = 256, 32, 60
ROUNDS = 5

KEYS = [bytes([row * 37 % 256, row]) + bytes([row * 37 % 256]) * (KEY - 2) for row in range(ROWS)]
VALUES = [bytes([row]) * VALUE for row in range(ROWS)]
KEY_ARRAY = numpy.frombuffer(b"".join(KEYS), numpy.uint8).reshape(ROWS, KEY)
VALUE_ARRAY = numpy.frombuffer(b"".join(VALUES), numpy.uint8).reshape(ROWS, VALUE)


def cost(call, times):
    """Nanoseconds of processor time of one call."""
    call()
    rounds = []
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        for _ in range(times):
            call()
        rounds.append((time.process_time_ns() - begun) / times)
    return min(rounds)


def rust(program, work, times):
    """The same of the Rust program, as the difference of two runs."""

    def run(times):
        with tempfile.TemporaryDirectory() as folder:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([program, folder, work, str(times)], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
        return used * 1e9

    return min((run(2 * times) - run(times)) / times for _ in range(ROUNDS))


def terrane_costs(folder):
    store = terrane.open(folder, durability="none")
    table = store.table()
    key, value = KEYS[7], VALUES[7]
    table.put_many(KEYS, VALUES)
    return {
        "get": cost(lambda: table.get(key), 20_000),
        "put": cost(lambda: table.put(key, value), 20_000),
        "get_many, list": cost(lambda: table.get_many(KEYS), 500) / ROWS,
        "get_many, list to list": cost(lambda: table.get_many(KEYS).to_list(), 500) / ROWS,
        "get_many, NumPy": cost(lambda: table.get_many(KEY_ARRAY), 500) / ROWS,
        "put_many, list": cost(lambda: table.put_many(KEYS, VALUES), 500) / ROWS,
        "put_many, NumPy": cost(lambda: table.put_many(KEY_ARRAY, VALUE_ARRAY), 500) / ROWS,
    }


def rocksdict_costs(folder):
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    store = rocksdict.Rdict(folder, options)
    unsynced = rocksdict.WriteOptions()
    unsynced.disable_wal = True
    store.set_write_options(unsynced)

    def put_many():
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in zip(KEYS, VALUES):
            batch.put(key, value)
        store.write(batch)

    put_many()
    key, value = KEYS[7], VALUES[7]

    def put():
        store[key] = value

    return {
        "get": cost(lambda: store[key], 20_000),
        "put": cost(put, 20_000),
        "get_many, list to list": cost(lambda: store[KEYS], 500) / ROWS,
        "put_many, list": cost(put_many, 500) / ROWS,
    }


def lmdb_costs(folder):
    import lmdb

    store = lmdb.open(folder, sync=False, map_size=1 << 28)

    def get(key):
        with store.begin() as transaction:
            return transaction.get(key)

    def put(key, value):
        with store.begin(write=True) as transaction:
            transaction.put(key, value)

    def put_many():
        with store.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(zip(KEYS, VALUES))

    def get_many():
        with store.begin() as transaction, transaction.cursor() as cursor:
            return cursor.getmulti(KEYS)

    put_many()
    return {
        "get": cost(lambda: get(KEYS[7]), 20_000),
        "put": cost(lambda: put(KEYS[7], VALUES[7]), 2_000),
        "get_many, list to list": cost(get_many, 500) / ROWS,
        "put_many, list": cost(put_many, 200) / ROWS,
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    one, many = 200_000, 2_000
    costs = {}
    for name, measure in [
        ("Terrane", terrane_costs), ("RocksDict", rocksdict_costs), ("py-lmdb", lmdb_costs)
    ]:
        with tempfile.TemporaryDirectory() as folder:
            costs[name] = measure(folder)
    get = rust(sys.argv[1], "get", many) / ROWS
    put = rust(sys.argv[1], "put", many) / ROWS
    costs["Rust"] = {
        "get": rust(sys.argv[1], "get-one", one),
        "put": rust(sys.argv[1], "put-one", one),
        **{work: get for work in costs["Terrane"] if work.startswith("get_many")},
        **{work: put for work in costs["Terrane"] if work.startswith("put_many")},
    }

    names = ["Rust", "Terrane", "RocksDict", "py-lmdb"]
    print("| work, ns | Rust | Python | Python / Rust | RocksDict | py-lmdb |")
    print("|---|--:|--:|--:|--:|--:|")
    for work in costs["Terrane"]:
        cells = [costs[name].get(work) for name in names]
        ratio = f"{cells[1] / cells[0]:.2f}"
        texts = ["" if cell is None else f"{cell:,.0f}" for cell in cells]
        unit = "a row" if "many" in work else "a call"
        print(f"| `{work}`, {unit} | {texts[0]} | {texts[1]} | {ratio} | {texts[2]} | {texts[3]} |")


if __name__ == "__main__":
    main()
