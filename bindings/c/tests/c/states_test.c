/* The C interface from outside: transactions, forks, differences, upkeep of stores, B+tree indexes,
 * and states with roots and proofs.
 *
 * `cargo xtask capi` builds it with AddressSanitizer and runs it; the argument is a folder to make.
 */
#define _POSIX_C_SOURCE 200809L
#include <sys/stat.h>

#include "check.h"

enum { MANY = 40, ROOT = 32 };

/* Rows of texts: `<prefix>00`, `<prefix>01` and so on. */
struct texts {
    uint8_t data[MANY * 32];
    size_t offsets[MANY + 1];
};

static void fill(struct texts *texts, const char *prefix) {
    texts->offsets[0] = 0;
    for (size_t i = 0; i < MANY; i++) {
        char text[32];
        int len = snprintf(text, sizeof text, "%s%02zu", prefix, i);
        memcpy(texts->data + texts->offsets[i], text, (size_t)len);
        texts->offsets[i + 1] = texts->offsets[i] + (size_t)len;
    }
}

/* Memory for the answers of `MANY` lookups. */
struct answers {
    uint8_t values[MANY * 64], found[MANY];
    size_t offsets[MANY + 1];
};

static void is_answer(const struct answers *answers, size_t at, const char *value) {
    assert(answers->found[at] == (value != NULL));
    size_t len = answers->offsets[at + 1] - answers->offsets[at];
    assert(len == (value ? strlen(value) : 0));
    assert(len == 0 || memcmp(answers->values + answers->offsets[at], value, len) == 0);
}

#define ROWS(texts) (texts).data, (texts).offsets
#define ANSWERS(answers) (answers).values, sizeof(answers).values, (answers).offsets, (answers).found

static void transactions(struct terrane_store *store, struct terrane_table *table) {
    struct texts keys, values;
    fill(&keys, "key ");
    fill(&values, "value ");
    struct answers answers;

    struct terrane_transaction *first, *second;
    CHECK(terrane_transaction_begin(store, &first));
    CHECK(terrane_transaction_begin(store, &second));
    CHECK(terrane_transaction_get_many(second, table, 1, ROWS(keys), ANSWERS(answers)));
    is_answer(&answers, 0, NULL);
    CHECK(terrane_transaction_put_many(first, table, MANY, ROWS(keys), ROWS(values)));
    CHECK(terrane_transaction_get_many(first, table, MANY, ROWS(keys), ANSWERS(answers)));
    is_answer(&answers, 7, "value 07");
    CHECK(terrane_transaction_delete_many(first, table, 1, ROWS(keys)));
    uint64_t commit = 0;
    CHECK(terrane_transaction_commit(first, &commit));
    assert(commit > 0);

    /* It has read a key that the other one wrote. */
    CHECK(terrane_transaction_put_many(second, table, 1, ROWS(keys), ROWS(values)));
    CHECK(terrane_table_get_many(table, 1, ROWS(keys), ANSWERS(answers)));
    is_answer(&answers, 0, NULL);
    CHECK(terrane_transaction_begin(store, &first));
    CHECK(terrane_transaction_get_many(first, table, MANY, ROWS(keys), ANSWERS(answers)));
    CHECK(terrane_transaction_put_many(first, table, 1, ROWS(keys), ROWS(values)));
    struct terrane_batch *batch;
    CHECK(terrane_batch_new(&batch));
    CHECK(terrane_batch_put(batch, table, TEXT("key 05"), TEXT("disturbed")));
    CHECK(terrane_store_write(store, batch, NULL));
    terrane_batch_free(batch);
    REFUSED(terrane_transaction_commit(first, NULL), TERRANE_CONFLICT);
    terrane_transaction_rollback(second);
    terrane_transaction_rollback(NULL);
    REFUSED(terrane_transaction_commit(NULL, NULL), TERRANE_BAD_INPUT);
}

/* Updates of mixed kinds, in their order. */
static void updates(struct terrane_store *store, struct terrane_table *table) {
    const uint8_t kinds[] = {TERRANE_PUT, TERRANE_DELETE_RANGE, TERRANE_PUT, TERRANE_DELETE_FROM,
                             TERRANE_PUT, TERRANE_DELETE, TERRANE_DELETE_RANGE};
    const char *keys = "abazbcc", *values = "1c2-34a";
    const size_t offsets[] = {0, 1, 2, 3, 4, 5, 6, 7};
    uint64_t commit;
    CHECK(terrane_table_update_many(store, table, 7, kinds, (const uint8_t *)keys, offsets,
                                    (const uint8_t *)values, offsets, &commit));
    struct answers answers;
    const size_t asked[] = {0, 1, 2, 3};
    CHECK(terrane_table_get_many(table, 3, (const uint8_t *)"abc", asked, ANSWERS(answers)));
    is_answer(&answers, 0, "2");
    is_answer(&answers, 1, "3");
    is_answer(&answers, 2, NULL);

    struct terrane_batch *batch;
    CHECK(terrane_batch_new(&batch));
    const uint8_t wrong[] = {TERRANE_PUT, 9};
    REFUSED(terrane_batch_update_many(batch, table, 2, wrong, (const uint8_t *)keys, offsets,
                                      (const uint8_t *)values, offsets), TERRANE_BAD_INPUT);
    size_t len = 7;
    CHECK(terrane_batch_len(batch, &len));
    assert(len == 0);
    CHECK(terrane_batch_delete_range(batch, table, TEXT("a"), TEXT("b")));
    CHECK(terrane_batch_delete_range(batch, table, TEXT("b"), NULL, 0));
    CHECK(terrane_store_write(store, batch, NULL));
    terrane_batch_free(batch);
    struct terrane_view *view;
    uint64_t count = 7;
    CHECK(terrane_table_view(table, &view));
    CHECK(terrane_view_digest(view, &count, NULL));
    assert(count == 0);
    terrane_view_free(view);
}

/* Updates of two tables in one call, and their conditions. */
static void updates_of_tables(struct terrane_store *store, struct terrane_table *table) {
    struct terrane_table *other;
    CHECK(terrane_table_open(store, TEXT("other"), true, &other));
    const struct terrane_table *tables[] = {table, other};
    const uint32_t table_of[] = {0, 1, 1, 0}, wrong[] = {0, 1, 2, 0};
    const uint8_t kinds[] = {TERRANE_PUT, TERRANE_PUT, TERRANE_DELETE, TERRANE_PUT};
    const uint8_t *keys = (const uint8_t *)"abbc", *values = (const uint8_t *)"12-3";
    const size_t offsets[] = {0, 1, 2, 3, 4};
    uint64_t commit = 0, last = 0;
    CHECK(terrane_store_update_many(store, 2, tables, 4, table_of, kinds, keys, offsets, values,
                                    offsets, NULL, &commit));
    CHECK(terrane_store_last_commit(store, &last));
    assert(commit > 0 && commit == last);
    struct answers answers;
    const size_t asked[] = {0, 1, 2, 3};
    CHECK(terrane_table_get_many(table, 3, (const uint8_t *)"abc", asked, ANSWERS(answers)));
    is_answer(&answers, 0, "1");
    is_answer(&answers, 1, NULL);
    is_answer(&answers, 2, "3");
    CHECK(terrane_table_get_many(other, 3, (const uint8_t *)"abc", asked, ANSWERS(answers)));
    is_answer(&answers, 1, NULL);

    /* No places: all are of the first table. A condition: only after that commit. */
    CHECK(terrane_store_update_many(store, 1, tables + 1, 2, NULL, kinds, keys, offsets, values,
                                    offsets, &last, &commit));
    REFUSED(terrane_store_update_many(store, 1, tables + 1, 2, NULL, kinds, keys, offsets, values,
                                      offsets, &last, NULL), TERRANE_CONFLICT);
    CHECK(terrane_table_get_many(other, 3, (const uint8_t *)"abc", asked, ANSWERS(answers)));
    is_answer(&answers, 0, "1");
    is_answer(&answers, 1, "2");

    REFUSED(terrane_store_update_many(store, 2, tables, 4, wrong, kinds, keys, offsets, values,
                                      offsets, NULL, NULL), TERRANE_BAD_INPUT);
    REFUSED(terrane_store_update_many(store, 0, NULL, 1, NULL, kinds, keys, offsets, values, offsets,
                                      NULL, NULL), TERRANE_BAD_INPUT);
    tables[1] = NULL;
    REFUSED(terrane_store_update_many(store, 2, tables, 4, table_of, kinds, keys, offsets, values,
                                      offsets, NULL, NULL), TERRANE_BAD_INPUT);
    CHECK(terrane_store_update_many(store, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                                    NULL));
    terrane_table_free(other);
    CHECK(terrane_table_drop(store, TEXT("other")));
    struct terrane_batch *batch;
    CHECK(terrane_batch_new(&batch));
    CHECK(terrane_batch_delete_range(batch, table, TEXT("a"), NULL, 0));
    CHECK(terrane_store_write(store, batch, NULL));
    terrane_batch_free(batch);
}

/* Memory for rows of a feed. */
struct feed_rows {
    struct terrane_change changes[16];
    uint8_t keys[256], values[256];
    size_t key_offsets[17], value_offsets[17], count;
};

#define FEED_ROWS(rows) \
    (rows).changes, (rows).keys, sizeof(rows).keys, (rows).key_offsets, (rows).values, \
        sizeof(rows).values, (rows).value_offsets, &(rows).count

static void is_change(const struct feed_rows *rows, size_t at, uint32_t kind, const char *key,
                      const char *value) {
    if (at >= rows->count || rows->changes[at].kind != kind) {
        fprintf(stderr, "row %zu of %zu: kind %u, not %u\n", at, rows->count,
                at < rows->count ? rows->changes[at].kind : 0, kind);
        exit(1);
    }
    size_t len = rows->key_offsets[at + 1] - rows->key_offsets[at];
    assert(len == strlen(key) && memcmp(rows->keys + rows->key_offsets[at], key, len) == 0);
    len = rows->value_offsets[at + 1] - rows->value_offsets[at];
    assert(len == strlen(value) && memcmp(rows->values + rows->value_offsets[at], value, len) == 0);
}

static void feeds(const char *dir) {
    char path[512];
    snprintf(path, sizeof path, "%s/feeds", dir);
    struct terrane_options options = terrane_options_default();
    options.create_dir = true;
    options.durability = TERRANE_EACH;
    struct terrane_store *store;
    struct terrane_table *table;
    struct terrane_changes *changes, *feed;
    CHECK(terrane_store_open(TEXT(path), &options, &store));
    CHECK(terrane_changes_new(store, 1, &changes));
    CHECK(terrane_feed_create(store, TEXT("copy"), 1, &feed));
    struct feed_rows rows = {.count = 7};
    CHECK(terrane_changes_next_chunk(changes, 0, 16, FEED_ROWS(rows)));
    assert(rows.count == 0);

    CHECK(terrane_table_open(store, TEXT("main"), true, &table));
    const uint8_t kinds[] = {TERRANE_PUT, TERRANE_DELETE, TERRANE_DELETE_RANGE, TERRANE_DELETE_FROM};
    const size_t offsets[] = {0, 1, 2, 3, 4};
    uint64_t commit = 0;
    CHECK(terrane_table_update_many(store, table, 4, kinds, (const uint8_t *)"abcy", offsets,
                                    (const uint8_t *)"1-d-", offsets, &commit));
    CHECK(terrane_table_rename(store, TEXT("main"), TEXT("other")));
    CHECK(terrane_changes_next_chunk(changes, 1000, 16, FEED_ROWS(rows)));
    is_change(&rows, 0, TERRANE_CHANGE_TABLE_CREATED, "main", "");
    is_change(&rows, 1, TERRANE_CHANGE_TABLE, "main", "");
    is_change(&rows, 2, TERRANE_CHANGE_PUT, "a", "1");
    is_change(&rows, 3, TERRANE_CHANGE_DELETE, "b", "");
    is_change(&rows, 4, TERRANE_CHANGE_DELETE_RANGE, "c", "d");
    is_change(&rows, 5, TERRANE_CHANGE_DELETE_FROM, "y", "");
    is_change(&rows, 6, TERRANE_CHANGE_COMMIT, "", "");
    is_change(&rows, 7, TERRANE_CHANGE_TABLE_RENAMED, "other", "main");
    assert(rows.count == 8 && rows.changes[2].table == rows.changes[0].table);
    assert(rows.changes[6].commit == commit && rows.changes[6].table == commit);
    CHECK(terrane_changes_next_chunk(changes, 1, 16, FEED_ROWS(rows)));
    assert(rows.count == 0);
    REFUSED(terrane_feed_acknowledge(changes, commit), TERRANE_BAD_INPUT);
    REFUSED(terrane_changes_next_chunk(changes, 0, 0, FEED_ROWS(rows)), TERRANE_BAD_INPUT);
    REFUSED(terrane_changes_next_chunk(NULL, 0, 16, FEED_ROWS(rows)), TERRANE_BAD_INPUT);
    terrane_changes_free(changes);
    terrane_changes_free(NULL);

    /* The same in small memory, row by row; then nothing of what was acknowledged. */
    REFUSED(terrane_changes_next_chunk(feed, 0, 1, rows.changes, rows.keys, 3, rows.key_offsets,
                                       rows.values, 0, rows.value_offsets, &rows.count),
            TERRANE_TOO_SMALL);
    assert(rows.key_offsets[1] == 4 && rows.value_offsets[1] == 0);
    size_t all = 0;
    do {
        CHECK(terrane_changes_next_chunk(feed, 0, 2, rows.changes, rows.keys, 5, rows.key_offsets,
                                         rows.values, 4, rows.value_offsets, &rows.count));
        all += rows.count;
    } while (rows.count > 0);
    assert(all == 8);
    REFUSED(terrane_feed_acknowledge(feed, commit + 1), TERRANE_BAD_INPUT);
    CHECK(terrane_feed_acknowledge(feed, commit));
    REFUSED(terrane_feed_open(store, TEXT("copy"), &changes), TERRANE_LOCKED);
    terrane_changes_free(feed);
    CHECK(terrane_feed_open(store, TEXT("copy"), &feed));
    CHECK(terrane_changes_next_chunk(feed, 0, 16, FEED_ROWS(rows)));
    for (size_t i = 0; i < rows.count; i++) assert(rows.changes[i].kind > TERRANE_CHANGE_COMMIT);
    terrane_changes_free(feed);
    CHECK(terrane_feed_drop(store, TEXT("copy")));
    REFUSED(terrane_feed_open(store, TEXT("copy"), &feed), TERRANE_NOT_FOUND);

    uint64_t version = 0;
    CHECK(terrane_version_retain(store, NULL, 0, &version));
    CHECK(terrane_store_last_commit(store, &commit));
    CHECK(terrane_changes_new(store, commit + 1, &changes));
    struct terrane_table *young;
    CHECK(terrane_table_open(store, TEXT("young"), true, &young));
    CHECK(terrane_store_roll_back(store, version, &commit));
    CHECK(terrane_changes_next_chunk(changes, 1000, 16, FEED_ROWS(rows)));
    /* The renaming was no commit, so it came after the last one. */
    is_change(&rows, 0, TERRANE_CHANGE_TABLE_RENAMED, "other", "main");
    is_change(&rows, 1, TERRANE_CHANGE_TABLE_CREATED, "young", "");
    is_change(&rows, 2, TERRANE_CHANGE_ROLLED_BACK, "", "");
    is_change(&rows, 3, TERRANE_CHANGE_TABLE_GONE, "young", "");
    assert(rows.changes[2].commit == commit && rows.changes[2].table == version);
    terrane_changes_free(changes);
    terrane_table_free(young);
    terrane_table_free(table);
    CHECK(terrane_store_close(store));
}

static void forks(struct terrane_store *store, struct terrane_table *table) {
    struct texts keys, values;
    fill(&keys, "key ");
    fill(&values, "forked ");
    struct terrane_view *before, *after;
    struct terrane_fork *fork;
    CHECK(terrane_table_view(table, &before));
    CHECK(terrane_view_fork(before, &fork));
    CHECK(terrane_fork_put_many(fork, 3, ROWS(keys), ROWS(values)));
    const size_t one[] = {0, 6};
    CHECK(terrane_fork_delete_many(fork, 1, (const uint8_t *)"key 09", one));
    CHECK(terrane_fork_view(fork, &after));

    /* Four keys differ; the memory takes two at a time. */
    struct terrane_diff *diff;
    CHECK(terrane_diff_new(before, after, &diff));
    uint8_t found[4], data[12], old_and_new[64];
    size_t key_offsets[3], value_offsets[5], rows = 0, all = 0;
    REFUSED(terrane_diff_next_chunk(diff, 2, data, 5, key_offsets, old_and_new, sizeof old_and_new,
                                    value_offsets, found, &rows), TERRANE_TOO_SMALL);
    assert(key_offsets[1] == 6);
    do {
        CHECK(terrane_diff_next_chunk(diff, 2, data, sizeof data, key_offsets, old_and_new,
                                      sizeof old_and_new, value_offsets, found, &rows));
        if (all == 0) {
            /* The first key was deleted before the fork. */
            assert(rows == 2 && found[0] == 0 && found[1] == 1 && value_offsets[1] == 0);
            assert(memcmp(old_and_new, "forked 00", 9) == 0);
        }
        all += rows;
    } while (rows > 0);
    assert(all == 4);
    terrane_diff_free(diff);
    terrane_diff_free(NULL);
    terrane_view_free(before);
    terrane_view_free(after);

    struct terrane_table *installed;
    CHECK(terrane_fork_save(fork, TEXT("fork"), TEXT("")));
    CHECK(terrane_store_install(store, TEXT("forked"), fork, &installed));
    REFUSED(terrane_store_install(store, TEXT("forked"), fork, &installed), TERRANE_ALREADY_EXISTS);
    terrane_fork_free(fork);
    terrane_fork_free(NULL);
    struct answers answers;
    CHECK(terrane_table_get_many(installed, MANY, ROWS(keys), ANSWERS(answers)));
    is_answer(&answers, 2, "forked 02");
    is_answer(&answers, 9, NULL);
    terrane_table_free(installed);
}

static void upkeep(struct terrane_store *store, struct terrane_table *table, const char *dir) {
    uint8_t names[64];
    size_t len = 0;
    REFUSED(terrane_table_list(store, names, 3, &len), TERRANE_TOO_SMALL);
    assert(len == sizeof "forked" + sizeof "main");
    CHECK(terrane_table_list(store, names, sizeof names, &len));
    assert(memcmp(names, "forked\0main\0", len) == 0);
    CHECK(terrane_table_rename(store, TEXT("forked"), TEXT("other")));
    REFUSED(terrane_table_rename(store, TEXT("forked"), TEXT("other")), TERRANE_NOT_FOUND);

    struct terrane_view *view;
    struct terrane_cursor *cursor;
    CHECK(terrane_table_view(table, &view));
    CHECK(terrane_cursor_new(view, NULL, 0, NULL, 0, &cursor));
    CHECK(terrane_cursor_seek_to_end(cursor));
    uint8_t keys[64], values[256];
    size_t key_offsets[3], value_offsets[3], rows = 0;
    CHECK(terrane_cursor_prev_chunk(cursor, 2, keys, sizeof keys, key_offsets, values, sizeof values,
                                    value_offsets, &rows));
    assert(rows == 2 && memcmp(keys, "key 39key 38", 12) == 0);
    CHECK(terrane_cursor_next_chunk(cursor, 2, keys, sizeof keys, key_offsets, values, sizeof values,
                                    value_offsets, &rows));
    assert(rows == 2 && memcmp(keys, "key 38key 39", 12) == 0);
    terrane_cursor_free(cursor);

    char path[512];
    snprintf(path, sizeof path, "%s/backup", dir);
    struct terrane_backup_report report;
    CHECK(terrane_store_back_up(store, TEXT(path), &report));
    assert(report.tables == 2 && report.bytes_copied > 0);
    CHECK(terrane_store_back_up(store, TEXT(path), NULL));
    struct terrane_store *backup;
    struct terrane_table *copy;
    struct terrane_view *copied;
    uint8_t digest[2][ROOT];
    uint64_t count[2];
    CHECK(terrane_store_open(TEXT(path), NULL, &backup));
    CHECK(terrane_table_open(backup, TEXT("main"), false, &copy));
    CHECK(terrane_table_view(copy, &copied));
    CHECK(terrane_view_digest(view, &count[0], digest[0]));
    CHECK(terrane_view_digest(copied, &count[1], digest[1]));
    assert(count[0] == MANY - 1 && count[1] == count[0]);
    assert(memcmp(digest[0], digest[1], ROOT) == 0);
    terrane_view_free(view);
    terrane_view_free(copied);
    terrane_table_free(copy);
    CHECK(terrane_store_close(backup));

    struct terrane_table_stats stats;
    CHECK(terrane_store_compact(store));
    CHECK(terrane_table_get_stats(table, &stats));
    assert(stats.entries == MANY - 1 && stats.updates > 0);
}

static void indexes(const char *dir) {
    char path[512];
    snprintf(path, sizeof path, "%s/index", dir);
    struct texts keys, values;
    fill(&keys, "object ");
    fill(&values, "offset ");
    struct terrane_index *index;
    CHECK(terrane_index_open(TEXT(path), 0, &index));
    CHECK(terrane_index_put_many(index, MANY, ROWS(keys), ROWS(values)));
    size_t removed = 0, rows = 0;
    CHECK(terrane_index_delete_many(index, 2, ROWS(keys), &removed));
    CHECK(terrane_index_delete_many(index, 2, ROWS(keys), NULL));
    uint64_t len = 0;
    CHECK(terrane_index_len(index, &len));
    assert(removed == 2 && len == MANY - 2);
    CHECK(terrane_index_flush(index, true));
    CHECK(terrane_index_close(index));

    CHECK(terrane_index_open(TEXT(path), 4 << 20, &index));
    struct answers answers;
    CHECK(terrane_index_get_many(index, 3, ROWS(keys), ANSWERS(answers)));
    is_answer(&answers, 1, NULL);
    is_answer(&answers, 2, "offset 02");
    struct terrane_index_cursor *cursor;
    CHECK(terrane_index_cursor_new(index, TEXT("object 05"), TEXT("object 08"), &cursor));
    uint8_t data[20], found[20];
    size_t key_offsets[9], value_offsets[9];
    REFUSED(terrane_index_cursor_next_chunk(cursor, 8, data, 3, key_offsets, found, sizeof found,
                                            value_offsets, &rows), TERRANE_TOO_SMALL);
    assert(key_offsets[1] == 9 && value_offsets[1] == 9);
    CHECK(terrane_index_cursor_next_chunk(cursor, 8, data, sizeof data, key_offsets, found,
                                          sizeof found, value_offsets, &rows));
    assert(rows == 2 && memcmp(data, "object 05object 06", 18) == 0);
    CHECK(terrane_index_cursor_next_chunk(cursor, 8, data, sizeof data, key_offsets, found,
                                          sizeof found, value_offsets, &rows));
    assert(rows == 1);
    CHECK(terrane_index_cursor_next_chunk(cursor, 8, data, sizeof data, key_offsets, found,
                                          sizeof found, value_offsets, &rows));
    assert(rows == 0);
    terrane_index_cursor_free(cursor);
    CHECK(terrane_index_close(index));
    CHECK(terrane_index_close(NULL));
}

static void radix_states(const char *dir) {
    char path[512];
    snprintf(path, sizeof path, "%s/radix", dir);
    struct texts keys, values;
    fill(&keys, "address ");
    fill(&values, "balance ");
    struct terrane_radix *state;
    struct terrane_radix_tree *tree;
    uint8_t empty[ROOT], first[ROOT], second[ROOT], proof[8192];
    CHECK(terrane_radix_open(TEXT(path), TERRANE_EACH, &state));
    CHECK(terrane_radix_tree_open(state, TEXT("ledger"), &tree));
    CHECK(terrane_radix_empty_root(empty));
    CHECK(terrane_radix_commit(tree, empty, MANY, ROWS(keys), ROWS(values), 0, NULL, NULL, first));
    CHECK(terrane_radix_commit(tree, first, 0, NULL, NULL, NULL, NULL, 2, ROWS(keys), second));
    REFUSED(terrane_radix_commit(tree, second, 0, NULL, NULL, NULL, NULL, 1, ROWS(keys), second),
            TERRANE_NOT_FOUND);
    struct answers answers;
    CHECK(terrane_radix_get_many(tree, second, 3, ROWS(keys), ANSWERS(answers)));
    is_answer(&answers, 1, NULL);
    is_answer(&answers, 2, "balance 02");

    for (int compact = 0; compact < 2; compact++) {
        size_t len = 0;
        REFUSED(terrane_radix_prove(tree, second, 3, ROWS(keys), compact, proof, 1, &len),
                TERRANE_TOO_SMALL);
        assert(len > 1 && len <= sizeof proof);
        CHECK(terrane_radix_prove(tree, second, 3, ROWS(keys), compact, proof, len, &len));
        CHECK(terrane_radix_verify(second, ROOT, proof, len, 3, ROWS(keys), ANSWERS(answers)));
        is_answer(&answers, 0, NULL);
        is_answer(&answers, 2, "balance 02");
        REFUSED(terrane_radix_verify(first, ROOT, proof, len, 3, ROWS(keys), ANSWERS(answers)),
                TERRANE_INVALID_PROOF);
    }
    CHECK(terrane_radix_prune(tree, first));
    REFUSED(terrane_radix_get_many(tree, first, 1, ROWS(keys), ANSWERS(answers)), TERRANE_NOT_FOUND);
    terrane_radix_tree_free(tree);
    CHECK(terrane_radix_close(state));
    CHECK(terrane_radix_close(NULL));
}

static void committed_tables(struct terrane_store *store) {
    struct texts keys, values;
    fill(&keys, "key ");
    fill(&values, "value ");
    struct terrane_committed *table;
    uint8_t empty[ROOT], root[ROOT], again[ROOT], nodes[8192];
    CHECK(terrane_committed_open(store, TEXT("ledger"), &table));
    CHECK(terrane_committed_root(table, empty));
    CHECK(terrane_committed_write(table, MANY, ROWS(keys), ROWS(values), 0, NULL, NULL, root));
    CHECK(terrane_committed_root(table, again));
    assert(memcmp(root, again, ROOT) == 0 && memcmp(root, empty, ROOT) != 0);

    size_t offsets[17], count = 0;
    struct answers answers;
    REFUSED(terrane_committed_prove(table, TEXT("key 07"), 0, nodes, sizeof nodes, offsets, &count),
            TERRANE_TOO_SMALL);
    assert(count > 0 && count <= 16);
    REFUSED(terrane_committed_prove(table, TEXT("key 07"), 16, nodes, 1, offsets, &count),
            TERRANE_TOO_SMALL);
    assert(offsets[count] > 1 && offsets[count] <= sizeof nodes);
    CHECK(terrane_committed_prove(table, TEXT("key 07"), 16, nodes, sizeof nodes, offsets, &count));
    CHECK(terrane_committed_verify(root, TEXT("key 07"), count, nodes, offsets, ANSWERS(answers)));
    is_answer(&answers, 0, "value 07");
    REFUSED(terrane_committed_verify(empty, TEXT("key 07"), count, nodes, offsets, ANSWERS(answers)),
            TERRANE_INVALID_PROOF);
    nodes[3] ^= 1;
    REFUSED(terrane_committed_verify(root, TEXT("key 07"), count, nodes, offsets, ANSWERS(answers)),
            TERRANE_INVALID_PROOF);

    struct terrane_table *entries;
    CHECK(terrane_committed_entries(table, &entries));
    CHECK(terrane_table_get_many(entries, 1, ROWS(keys), ANSWERS(answers)));
    is_answer(&answers, 0, "value 00");
    terrane_table_free(entries);
    CHECK(terrane_committed_write(table, 0, NULL, NULL, NULL, NULL, MANY, ROWS(keys), root));
    assert(memcmp(root, empty, ROOT) == 0);
    terrane_committed_free(table);
    terrane_committed_free(NULL);
}

static void ethereum_states(const char *dir) {
    char path[512];
    snprintf(path, sizeof path, "%s/ethereum", dir);
    struct terrane_mpt *state;
    CHECK(terrane_mpt_open(TEXT(path), TERRANE_GROUP, true, &state));
    uint8_t genesis[ROOT] = {0}, block[ROOT] = {9}, next[ROOT] = {8}, first[ROOT], root[ROOT];
    uint64_t height = 7;
    REFUSED(terrane_mpt_tip(state, &height, root), TERRANE_NOT_FOUND);

    struct terrane_mpt_account accounts[2] = {{.address = {1}, .nonce = 3, .balance = {[31] = 7}},
                                              {.address = {2}}};
    struct terrane_mpt_slot slot = {.address = {1}, .slot = {[31] = 5}, .value = {[31] = 6}};
    const size_t code[] = {0, 4};
    CHECK(terrane_mpt_commit(state, 0, genesis, block, 2, accounts, 1, &slot, 1,
                             (const uint8_t *)"code", code, first));
    CHECK(terrane_mpt_tip(state, &height, root));
    assert(height == 0 && memcmp(first, root, ROOT) == 0);
    struct terrane_mpt_account found;
    CHECK(terrane_mpt_get_account(state, accounts[0].address, &found));
    assert(found.nonce == 3 && found.balance[31] == 7 && !found.is_deleted);
    uint8_t value[ROOT];
    CHECK(terrane_mpt_get_slots(state, 1, slot.address, slot.slot, value));
    assert(value[31] == 6);

    uint8_t nodes[4096];
    size_t offsets[17], count;
    CHECK(terrane_mpt_prove(state, accounts[0].address, NULL, 16, nodes, sizeof nodes, offsets, &count));
    assert(count > 0);
    CHECK(terrane_mpt_prove(state, slot.address, slot.slot, 16, nodes, sizeof nodes, offsets, &count));
    assert(count == 1);

    accounts[0].is_deleted = true;
    REFUSED(terrane_mpt_commit(state, 1, genesis, next, 1, accounts, 0, NULL, 0, NULL, NULL, root),
            TERRANE_BAD_INPUT);
    CHECK(terrane_mpt_commit(state, 1, block, next, 1, accounts, 0, NULL, 0, NULL, NULL, root));
    assert(memcmp(first, root, ROOT) != 0);
    REFUSED(terrane_mpt_get_account(state, accounts[0].address, &found), TERRANE_NOT_FOUND);
    CHECK(terrane_mpt_reorg_to(state, 0, root));
    assert(memcmp(first, root, ROOT) == 0);
    CHECK(terrane_mpt_close(state));
    CHECK(terrane_mpt_close(NULL));
}

static void contexts(const char *dir) {
    char path[512];
    snprintf(path, sizeof path, "%s/context", dir);
    struct texts paths, values;
    fill(&paths, "data/contracts/");
    fill(&values, "balance ");
    struct terrane_context *store;
    struct terrane_context_tree *tree;
    CHECK(terrane_context_open(TEXT(path), TERRANE_EACH, &store));
    uint8_t commit[ROOT], root[ROOT], again[ROOT], proof[8192];
    REFUSED(terrane_context_checkout(store, (const uint8_t *)"no such commit, of 32 bytes long", &tree),
            TERRANE_NOT_FOUND);
    CHECK(terrane_context_checkout(store, NULL, &tree));
    CHECK(terrane_context_put_many(tree, MANY, ROWS(paths), ROWS(values)));
    CHECK(terrane_context_delete_many(tree, 1, ROWS(paths)));
    CHECK(terrane_context_root(tree, root));
    CHECK(terrane_context_commit(store, tree, 1, TEXT("author"), TEXT("genesis"), commit));
    terrane_context_tree_free(tree);
    CHECK(terrane_context_close(store));

    CHECK(terrane_context_open(TEXT(path), TERRANE_EACH, &store));
    CHECK(terrane_context_checkout(store, commit, &tree));
    CHECK(terrane_context_root(tree, again));
    assert(memcmp(root, again, ROOT) == 0);
    struct answers answers;
    CHECK(terrane_context_get_many(tree, 3, ROWS(paths), ANSWERS(answers)));
    is_answer(&answers, 0, NULL);
    is_answer(&answers, 2, "balance 02");
    size_t len = 0;
    REFUSED(terrane_context_prove(tree, 3, ROWS(paths), NULL, 0, &len), TERRANE_TOO_SMALL);
    assert(len > 0 && len <= sizeof proof);
    CHECK(terrane_context_prove(tree, 3, ROWS(paths), proof, sizeof proof, &len));
    CHECK(terrane_context_verify(root, proof, len, 3, ROWS(paths), ANSWERS(answers)));
    is_answer(&answers, 0, NULL);
    is_answer(&answers, 1, "balance 01");
    REFUSED(terrane_context_verify(commit, proof, len, 3, ROWS(paths), ANSWERS(answers)),
            TERRANE_INVALID_PROOF);
    /* A path that the proof does not show. */
    REFUSED(terrane_context_verify(root, proof, len, MANY, ROWS(paths), ANSWERS(answers)),
            TERRANE_INVALID_PROOF);
    terrane_context_tree_free(tree);
    terrane_context_tree_free(NULL);
    CHECK(terrane_context_close(store));
    CHECK(terrane_context_close(NULL));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s NEW_FOLDER\n", argv[0]);
        return 2;
    }
    assert(mkdir(argv[1], 0777) == 0);
    char path[512];
    snprintf(path, sizeof path, "%s/store", argv[1]);
    struct terrane_options options = terrane_options_default();
    options.create_dir = true;
    struct terrane_store *store;
    struct terrane_table *table;
    CHECK(terrane_store_open(TEXT(path), &options, &store));
    CHECK(terrane_table_open(store, TEXT("main"), true, &table));
    updates(store, table);
    updates_of_tables(store, table);
    transactions(store, table);
    forks(store, table);
    upkeep(store, table, argv[1]);
    committed_tables(store);
    terrane_table_free(table);
    CHECK(terrane_store_close(store));
    indexes(argv[1]);
    feeds(argv[1]);
    radix_states(argv[1]);
    ethereum_states(argv[1]);
    contexts(argv[1]);
    puts("states_test: every check held");
    return 0;
}
