"""The history of bindings/c/examples/history.rs, run in Python; that file describes it.

    python bench/history.py FILE EMPTY_FOLDER
"""

import sys

import terrane

DELETE, PUT, DELETE_RANGE, LOOK_UP, COMMIT = range(5)


def records(history):
    """Kind, key and value of each record."""
    at = 0
    while at < len(history):
        kind, key_len = history[at], history[at + 1]
        key = history[at + 2 : at + 2 + key_len]
        at += 2 + key_len
        value = history[at + 1 : at + 1 + history[at]]
        at += 1 + history[at]
        yield kind, key, value


def fold(number, data):
    for byte in data:
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number


def run(history, folder):
    with (
        terrane.open(f"{folder}/store", durability="buffered") as store,
        terrane.RadixState(f"{folder}/radix", durability="buffered") as radix,
    ):
        plain, committed = store.table("plain"), store.committed_table("committed")
        tree = radix.tree("main")
        root, answers = tree.EMPTY_ROOT, 0xCBF29CE484222325
        pending = [[] for _ in range(4)]
        for kind, key, value in records(history):
            if kind != COMMIT:
                pending[kind].append((key, value))
                continue
            keys, values = [key for key, _ in pending[PUT]], [value for _, value in pending[PUT]]
            deletes = [key for key, _ in pending[DELETE]]
            with store.batch() as batch:
                batch.put_many(plain, keys, values)
                batch.delete_many(plain, deletes)
            for start, stop in pending[DELETE_RANGE]:
                if start < stop:
                    plain.delete_range(start, stop)
            committed.commit(keys, values, deletes)
            root = tree.commit(root, keys, values, deletes)
            for found in plain.get_many([key for key, _ in pending[LOOK_UP]]).to_list():
                answers = fold(answers, b"\0" if found is None else b"\1" + found)
            pending = [[] for _ in range(4)]
        count, digest = plain.view().digest()
        print("plain", count, digest)
        print("committed", committed.root().hex())
        print("radix", root.hex())
        print(f"answers {answers:016x}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as file:
        run(file.read(), sys.argv[2])
