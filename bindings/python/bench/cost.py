"""Costs of Rust, C, Go and Python, of RocksDict and py-lmdb: the tables of the READMEs of bindings.

Each measurement is the processor time of all threads of a process of its own, over an empty folder,
for many calls. Programs of other languages run once more without calls, which is taken off. The
subjects take turns, in another order each round. One table has the least of all rounds: other
machines on a shared processor add to a round, and nothing takes from it. Another has the medians,
with the medians of the ratios to Rust in the same round. At its end each process prints the FNV-1a
of all values: they must be equal, or the run fails.

Work: batches of 256 keys of 32 bytes with values of 60 bytes, and single keys. All entries are in
memory. Nothing is durable: no log in Terrane and RocksDB, no sync in LMDB, which has no log.

    cargo xtask bindings --cost       # builds all, then: python bench/cost.py RUST C GO
    python bench/cost.py run SUBJECT EMPTY_FOLDER get|put|get-one|put-one TIMES
"""

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROWS, KEY, VALUE = 256, 32, 60
ROUNDS = 21
#: Calls of a measurement.
TIMES = {"get": 10_000, "put": 10_000, "get-one": 200_000, "put-one": 200_000}
#: The same of RocksDict and py-lmdb, a batch of which takes ten times as long; a commit of LMDB
#: rewrites pages.
TIMES_PEERS = {**TIMES, "get": 1_000, "put": 1_000}
TIMES_LMDB = {**TIMES_PEERS, "put-one": 20_000}

KEYS = [bytes([row * 37 % 256, row]) + bytes([row * 37 % 256]) * (KEY - 2) for row in range(ROWS)]
VALUES = [bytes([row]) * VALUE for row in range(ROWS)]


def terrane_lists(folder):
    import terrane

    table = terrane.open(folder, durability="none").table()
    return (
        lambda: table.get_many(KEYS).to_list(),
        lambda: table.put_many(KEYS, VALUES),
        table.get,
        table.put,
    )


def terrane_arrays(folder):
    # Its threads spin for a while after they have started, which is processor time, too.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy
    import terrane

    table = terrane.open(folder, durability="none").table()
    keys = numpy.frombuffer(b"".join(KEYS), numpy.uint8).reshape(ROWS, KEY)
    values = numpy.frombuffer(b"".join(VALUES), numpy.uint8).reshape(ROWS, VALUE)

    def get_many():
        rows = table.get_many(keys)
        return numpy.asarray(rows.data), numpy.asarray(rows.offsets)

    return get_many, lambda: table.put_many(keys, values), table.get, table.put


def rocksdict(folder):
    import rocksdict

    store = rocksdict.Rdict(folder, rocksdict.Options(raw_mode=True))
    options = rocksdict.WriteOptions()
    options.disable_wal = True
    store.set_write_options(options)

    def put_many():
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in zip(KEYS, VALUES):
            batch.put(key, value)
        store.write(batch, options)

    return lambda: store[KEYS], put_many, store.get, store.put


def lmdb(folder):
    import lmdb

    store = lmdb.open(folder, sync=False, map_size=1 << 28)

    def get_many():
        with store.begin() as transaction, transaction.cursor() as cursor:
            return [value for _, value in cursor.getmulti(KEYS)]

    def put_many():
        with store.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(zip(KEYS, VALUES))

    def get(key):
        with store.begin() as transaction:
            return transaction.get(key)

    def put(key, value):
        with store.begin(write=True) as transaction:
            transaction.put(key, value)

    return get_many, put_many, get, put


SUBJECTS = {
    "Python, lists": terrane_lists,
    "Python, NumPy": terrane_arrays,
    "RocksDict": rocksdict,
    "py-lmdb": lmdb,
}


def run(subject, folder, work, times):
    """Does the work, and prints the fold of all values and the cost."""
    get_many, put_many, get, put = SUBJECTS[subject](folder)
    put_many()

    begun = time.process_time_ns()
    if work == "get":
        for _ in range(times):
            get_many()
    elif work == "put":
        for _ in range(times):
            put_many()
    elif work == "get-one":
        for call in range(times):
            get(KEYS[call % ROWS])
    elif work == "put-one":
        for call in range(times):
            put(KEYS[call % ROWS], VALUES[call % ROWS])
    else:
        sys.exit(__doc__)
    used = time.process_time_ns() - begun

    found = get_many()
    if subject == "Python, NumPy":
        data, ends = found
        found = [data[ends[row] : ends[row + 1]].tobytes() for row in range(ROWS)]
    # One by one, too: what a call with many keys gives must be what a call with one does.
    assert found == [get(key) for key in KEYS], "lookups differ"
    fold = 0xCBF29CE484222325
    for byte in b"".join(found):
        fold = (fold ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    print(f"{fold:016x}", used, flush=True)
    # Closing is no part of the work, and RocksDB would compact.
    os._exit(0)


def measured(command):
    """What a process prints, and the nanoseconds of its processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    return output.split(), used * 1e9


def cost(command, work, times):
    """Nanoseconds of ``times`` calls, and the fold of all values."""
    with tempfile.TemporaryDirectory() as folder:
        words, used = measured([*command, f"{folder}/calls", work, str(times)])
        if len(words) == 2:
            return int(words[1]), words[0]
        _, start = measured([*command, f"{folder}/none", work, "0"])
    return used - start, words[0]


def measure(subjects):
    """Nanoseconds of a call, by work and subject: a list, one of each round."""
    costs = {work: {subject: [] for subject in subjects} for work in TIMES}
    folds = set()
    for turn in range(ROUNDS):
        names = list(subjects)
        names = names[turn % len(names) :] + names[: turn % len(names)]
        for work in TIMES:
            for subject in names:
                times = {"RocksDict": TIMES_PEERS, "py-lmdb": TIMES_LMDB}.get(subject, TIMES)[work]
                used, fold = cost(subjects[subject], work, times)
                folds.add(fold)
                costs[work][subject].append(used / times)
    if len(folds) != 1:
        sys.exit(f"values differ: {sorted(folds)}")
    return costs


def main(rust, c, go):
    subjects = {"Rust": [rust], "C": [c], "Go": [go]}
    for subject in SUBJECTS:
        subjects[subject] = [sys.executable, __file__, "run", subject]
    costs = measure(subjects)

    import importlib.metadata as packages

    versions = ", ".join(f"{name} {packages.version(name)}" for name in ["rocksdict", "lmdb", "numpy"])
    print(f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores; {ROUNDS} rounds")
    print()
    names = {"get": "look up, a row of 256", "put": "commit, a row of 256",
             "get-one": "look up, a call", "put-one": "commit, a call"}  # fmt: skip
    for title, middle in {"least": min, "median": statistics.median}.items():
        print(f"| work, ns of processor time, {title} |" + "".join(f" {subject} |" for subject in subjects))
        print("|---|" + "--:|" * len(subjects))
        for work, name in names.items():
            rows = 1 if "one" in work else ROWS
            of_rust = costs[work]["Rust"]
            cells = []
            for subject, rounds in costs[work].items():
                ratio = min(rounds) / min(of_rust)
                if title == "median":
                    ratio = statistics.median(one / rust for one, rust in zip(rounds, of_rust))
                brackets = "" if subject == "Rust" else f" ({ratio:.2f})"
                cells.append(f" {middle(rounds) / rows:,.1f}{brackets} |")
            print(f"| {name} |" + "".join(cells))
        print()
    print("In brackets: by Rust. All rounds, ns a call:")
    for work, rounds in costs.items():
        for subject, calls in rounds.items():
            print(f"{work:8} {subject:14}", *(f"{call:.0f}" for call in calls))


if __name__ == "__main__":
    if len(sys.argv) == 6 and sys.argv[1] == "run":
        run(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    elif len(sys.argv) == 4:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
