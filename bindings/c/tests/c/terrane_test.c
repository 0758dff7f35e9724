/* The C interface from outside: every function, wrong arguments, memory that is too small.
 *
 * `cargo xtask capi` builds it with AddressSanitizer and runs it; the argument is an empty folder.
 */
#include "check.h"

enum { ROWS = 256, KEY = 8, VALUE = 5 };

/* Rows of keys `key 0000` to `key 0255` and values `v0000` to `v0255`. */
struct rows {
    uint8_t keys[ROWS * KEY], values[ROWS * VALUE];
    size_t key_offsets[ROWS + 1], value_offsets[ROWS + 1];
};

static void fill(struct rows *rows) {
    for (size_t i = 0; i < ROWS; i++) {
        char text[16];
        snprintf(text, sizeof text, "key %04zu", i);
        memcpy(rows->keys + i * KEY, text, KEY);
        snprintf(text, sizeof text, "v%04zu", i);
        memcpy(rows->values + i * VALUE, text, VALUE);
    }
    for (size_t i = 0; i <= ROWS; i++) {
        rows->key_offsets[i] = i * KEY;
        rows->value_offsets[i] = i * VALUE;
    }
}

static void put_and_commit(struct terrane_store *store, struct terrane_table *table,
                           const struct rows *rows) {
    struct terrane_batch *batch;
    CHECK(terrane_batch_new(&batch));
    CHECK(terrane_batch_put_many(batch, table, ROWS, rows->keys, rows->key_offsets, rows->values,
                                 rows->value_offsets));
    size_t len;
    CHECK(terrane_batch_len(batch, &len));
    assert(len == ROWS);
    uint64_t commit = 0, last = 0;
    CHECK(terrane_store_write(store, batch, &commit));
    CHECK(terrane_store_last_commit(store, &last));
    assert(commit > 0 && commit == last);
    CHECK(terrane_store_sync_to(store, commit));

    /* A batch stays as it is until it is cleared. */
    REFUSED(terrane_store_write_if(store, batch, commit - 1, NULL), TERRANE_CONFLICT);
    CHECK(terrane_store_write_if(store, batch, commit, &last));
    assert(last == commit + 1);
    CHECK(terrane_batch_clear(batch));
    CHECK(terrane_batch_put(batch, table, TEXT("one"), TEXT("")));
    CHECK(terrane_batch_put(batch, table, TEXT("two"), TEXT("2")));
    CHECK(terrane_batch_delete(batch, table, TEXT("two")));
    const size_t offsets[] = {0, KEY};
    CHECK(terrane_batch_delete_many(batch, table, 1, rows->keys, offsets));
    CHECK(terrane_store_write(store, batch, NULL));

    const size_t falling[] = {0, 3, 2}, late[] = {1, 2};
    REFUSED(terrane_batch_delete_many(batch, table, 2, rows->keys, falling), TERRANE_BAD_INPUT);
    REFUSED(terrane_batch_delete_many(batch, table, 1, rows->keys, late), TERRANE_BAD_INPUT);
    REFUSED(terrane_batch_put(NULL, table, TEXT("a"), TEXT("b")), TERRANE_BAD_INPUT);
    REFUSED(terrane_batch_put(batch, table, NULL, 3, TEXT("b")), TERRANE_BAD_INPUT);
    terrane_batch_free(batch);
    terrane_batch_free(NULL);
}

static void look_up(struct terrane_table *table, const struct rows *rows) {
    uint8_t values[ROWS * VALUE], found[ROWS];
    size_t offsets[ROWS + 1];
    CHECK(terrane_table_get_many(table, ROWS, rows->keys, rows->key_offsets, values, sizeof values,
                                 offsets, found));
    /* The first key was deleted. */
    assert(found[0] == 0 && offsets[1] == 0 && offsets[ROWS] == (ROWS - 1) * VALUE);
    for (size_t i = 1; i < ROWS; i++) {
        assert(found[i] == 1);
        assert(memcmp(values + offsets[i], rows->values + i * VALUE, VALUE) == 0);
    }

    /* Memory that is too small by one byte: offsets say how much is needed. */
    memset(offsets, 0xff, sizeof offsets);
    size_t needed = (ROWS - 1) * VALUE;
    uint8_t *exact = malloc(needed);
    REFUSED(terrane_table_get_many(table, ROWS, rows->keys, rows->key_offsets, exact, needed - 1,
                                   offsets, found), TERRANE_TOO_SMALL);
    assert(offsets[ROWS] == needed && found[1] == 1);
    CHECK(terrane_table_get_many(table, ROWS, rows->keys, rows->key_offsets, exact, needed, offsets,
                                 found));
    free(exact);

    /* No keys need no memory, and an empty value is found. */
    CHECK(terrane_table_get_many(table, 0, NULL, NULL, NULL, 0, offsets, NULL));
    const size_t one[] = {0, 3};
    CHECK(terrane_table_get_many(table, 1, (const uint8_t *)"one", one, NULL, 0, offsets, found));
    assert(found[0] == 1 && offsets[1] == 0);
}

/* Reads all entries in chunks of this many and returns how many there are. */
static size_t scan(struct terrane_view *view, size_t rows_max, const char *to) {
    struct terrane_cursor *cursor;
    const uint8_t *end = (const uint8_t *)to;
    CHECK(terrane_cursor_new(view, TEXT("key"), end, to ? strlen(to) : 0, &cursor));
    uint8_t keys[100], values[60], last[KEY] = {0};
    size_t key_offsets[ROWS + 1], value_offsets[ROWS + 1], all = 0, rows = 0;
    do {
        CHECK(terrane_cursor_next_chunk(cursor, rows_max, keys, sizeof keys, key_offsets, values,
                                        sizeof values, value_offsets, &rows));
        assert(rows <= rows_max && key_offsets[rows] <= sizeof keys);
        for (size_t i = 0; i < rows && key_offsets[i + 1] - key_offsets[i] == KEY; i++) {
            assert(memcmp(last, keys + key_offsets[i], KEY) < 0);
            memcpy(last, keys + key_offsets[i], KEY);
        }
        all += rows;
    } while (rows > 0);

    /* The end stays the end. */
    CHECK(terrane_cursor_next_chunk(cursor, rows_max, keys, sizeof keys, key_offsets, values,
                                    sizeof values, value_offsets, &rows));
    assert(rows == 0);
    terrane_cursor_free(cursor);
    return all;
}

static void cursors(struct terrane_table *table) {
    struct terrane_view *view;
    CHECK(terrane_table_view(table, &view));
    /* 255 keys and `one`; up to `key 0010` the first of them is gone. */
    assert(scan(view, 1, NULL) == ROWS && scan(view, 7, NULL) == ROWS);
    assert(scan(view, ROWS, NULL) == ROWS && scan(view, ROWS, "key 0010") == 9);

    struct terrane_cursor *cursor;
    CHECK(terrane_cursor_new(view, NULL, 0, NULL, 0, &cursor));
    terrane_view_free(view);
    uint8_t keys[KEY], values[VALUE];
    size_t key_offsets[2], value_offsets[2], rows = 77;
    REFUSED(terrane_cursor_next_chunk(cursor, 1, keys, KEY - 1, key_offsets, values, VALUE,
                                      value_offsets, &rows), TERRANE_TOO_SMALL);
    assert(key_offsets[1] == KEY && value_offsets[1] == VALUE && rows == 77);
    /* Nothing was passed. */
    CHECK(terrane_cursor_next_chunk(cursor, 1, keys, KEY, key_offsets, values, VALUE, value_offsets,
                                    &rows));
    assert(rows == 1 && memcmp(keys, "key 0001", KEY) == 0);
    REFUSED(terrane_cursor_next_chunk(cursor, 0, keys, KEY, key_offsets, values, VALUE,
                                      value_offsets, &rows), TERRANE_BAD_INPUT);
    terrane_cursor_free(cursor);
    terrane_cursor_free(NULL);
}

/* Whether a view has a key. */
static int has(struct terrane_view *view, const char *key) {
    const size_t offsets[] = {0, strlen(key)};
    size_t value_offsets[2];
    uint8_t value[16], found;
    CHECK(terrane_view_get_many(view, 1, (const uint8_t *)key, offsets, value, sizeof value,
                                value_offsets, &found));
    return found;
}

static void kept(struct terrane_store *store, struct terrane_table *table) {
    uint64_t number = 0, numbers[4] = {0};
    size_t count = 0;
    CHECK(terrane_version_retain(store, TEXT("first"), &number));
    CHECK(terrane_snapshot_save(table, TEXT("monday"), TEXT("accounts")));
    REFUSED(terrane_snapshot_save(table, TEXT("monday"), TEXT("accounts")), TERRANE_ALREADY_EXISTS);

    struct terrane_batch *batch;
    CHECK(terrane_batch_new(&batch));
    CHECK(terrane_batch_delete(batch, table, TEXT("one")));
    CHECK(terrane_store_write(store, batch, NULL));
    terrane_batch_free(batch);

    struct terrane_view *now, *version, *snapshot;
    CHECK(terrane_table_view(table, &now));
    CHECK(terrane_version_view(store, number, TEXT("accounts"), &version));
    CHECK(terrane_snapshot_open(store, TEXT("monday"), TEXT("accounts"), &snapshot));
    assert(!has(now, "one") && has(version, "one") && has(snapshot, "one"));
    terrane_view_free(now);
    terrane_view_free(version);
    terrane_view_free(snapshot);
    REFUSED(terrane_snapshot_open(store, TEXT("monday"), TEXT("other"), &snapshot),
            TERRANE_BAD_INPUT);

    uint64_t commit = 0;
    CHECK(terrane_store_roll_back(store, number, &commit));
    assert(commit > number);
    CHECK(terrane_table_view(table, &now));
    assert(has(now, "one"));
    terrane_view_free(now);

    REFUSED(terrane_version_list(store, NULL, 0, &count), TERRANE_TOO_SMALL);
    assert(count == 1);
    CHECK(terrane_version_list(store, numbers, 4, &count));
    assert(count == 1 && numbers[0] == number);
    CHECK(terrane_version_release(store, number));
    REFUSED(terrane_version_release(store, number), TERRANE_NOT_FOUND);
    CHECK(terrane_snapshot_delete(store, TEXT("monday")));
    REFUSED(terrane_snapshot_delete(store, TEXT("monday")), TERRANE_NOT_FOUND);
}

/* The empty trie of Ethereum has no key; its empty proof shows that, and one of another root not. */
static void verifiers(void) {
    uint8_t root[32] = {0x56, 0xe8, 0x1f, 0x17, 0x1b, 0xcc, 0x55, 0xa6, 0xff, 0x83, 0x45,
                        0xe6, 0x92, 0xc0, 0xf8, 0x6e, 0x5b, 0x48, 0xe0, 0x1b, 0x99, 0x6c,
                        0xad, 0xc0, 0x01, 0x62, 0x2f, 0xb5, 0xe3, 0x63, 0xb4, 0x21};
    size_t offsets[2];
    uint8_t found = 7;
    CHECK(terrane_mpt_verify(root, TEXT("key"), 0, NULL, NULL, NULL, 0, offsets, &found));
    assert(found == 0 && offsets[1] == 0);
    root[0] ^= 1;
    REFUSED(terrane_mpt_verify(root, TEXT("key"), 0, NULL, NULL, NULL, 0, offsets, &found),
            TERRANE_INVALID_PROOF);

    const uint8_t address = 0xab;
    const size_t addresses[] = {0, 1};
    REFUSED(terrane_radix_verify(root, 32, TEXT("no proof"), 1, &address, addresses, NULL, 0,
                                 offsets, &found), TERRANE_INVALID_PROOF);
    REFUSED(terrane_radix_verify(root, 31, TEXT("no proof"), 1, &address, addresses, NULL, 0,
                                 offsets, &found), TERRANE_BAD_INPUT);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s EMPTY_FOLDER\n", argv[0]);
        return 2;
    }
    assert(strlen(terrane_version()) > 0 && strlen(terrane_error_message()) == 0);

    struct terrane_options options = terrane_options_default();
    struct terrane_store *store, *second;
    options.durability = 9;
    REFUSED(terrane_store_open(TEXT(argv[1]), &options, &store), TERRANE_BAD_INPUT);
    options = terrane_options_default();
    options.create_dir = true;
    options.memory_budget = 64 << 20;
    CHECK(terrane_store_open(TEXT(argv[1]), &options, &store));
    REFUSED(terrane_store_open(TEXT(argv[1]), NULL, &second), TERRANE_LOCKED);
    REFUSED(terrane_store_open(TEXT(argv[1]), NULL, NULL), TERRANE_LOCKED);

    struct terrane_table *table, *other;
    REFUSED(terrane_table_open(store, TEXT("accounts"), false, &table), TERRANE_NOT_FOUND);
    REFUSED(terrane_table_open(store, TEXT("\xff"), true, &table), TERRANE_BAD_INPUT);
    CHECK(terrane_table_open(store, TEXT("accounts"), true, &table));
    CHECK(terrane_table_open(store, TEXT("other"), true, &other));

    struct rows rows;
    fill(&rows);
    put_and_commit(store, table, &rows);
    look_up(table, &rows);
    cursors(table);
    kept(store, table);
    verifiers();
    CHECK(terrane_table_drop(store, TEXT("other")));
    terrane_table_free(other);
    CHECK(terrane_store_checkpoint(store));
    CHECK(terrane_store_close(store));

    /* A handle outlives its store and says so. */
    struct terrane_view *view;
    REFUSED(terrane_table_view(table, &view), TERRANE_CLOSED);
    terrane_table_free(table);
    CHECK(terrane_store_close(NULL));

    CHECK(terrane_store_open(TEXT(argv[1]), NULL, &store));
    CHECK(terrane_table_open(store, TEXT("accounts"), false, &table));
    look_up(table, &rows);
    terrane_table_free(table);
    CHECK(terrane_store_close(store));
    puts("terrane_test: every check held");
    return 0;
}
