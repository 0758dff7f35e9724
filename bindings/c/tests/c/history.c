/* The history of bindings/c/examples/history.rs, run in C; that file describes it.
 *
 * usage: history FILE FOLDER, which is empty
 */
#include "check.h"

enum { MOST = 300, ROOT = 32, DELETE = 0, PUT = 1, DELETE_RANGE = 2, LOOK_UP = 3, COMMIT = 4 };

struct rows {
    uint8_t bytes[MOST * 256];
    size_t offsets[MOST + 1], count;
};

static void push(struct rows *rows, const uint8_t *bytes, size_t len) {
    assert(rows->count < MOST);
    memcpy(rows->bytes + rows->offsets[rows->count], bytes, len);
    rows->offsets[rows->count + 1] = rows->offsets[rows->count] + len;
    rows->count++;
}

#define ROWS(rows) (rows).bytes, (rows).offsets

static struct rows puts_, values, deletes, froms, tos, asked, answers;
static struct terrane_store *store;
static struct terrane_table *plain;
static struct terrane_committed *committed;
static struct terrane_radix_tree *tree;
static struct terrane_batch *batch;
static uint8_t root[ROOT];
static uint64_t fold = 0xcbf29ce484222325;

static void fold_byte(uint8_t byte) { fold = (fold ^ byte) * 0x100000001b3; }

static void commit(void) {
    CHECK(terrane_batch_clear(batch));
    CHECK(terrane_batch_put_many(batch, plain, puts_.count, ROWS(puts_), ROWS(values)));
    CHECK(terrane_batch_delete_many(batch, plain, deletes.count, ROWS(deletes)));
    CHECK(terrane_store_write(store, batch, NULL));
    for (size_t i = 0; i < froms.count; i++) {
        CHECK(terrane_batch_clear(batch));
        CHECK(terrane_batch_delete_range(batch, plain, froms.bytes + froms.offsets[i],
                                         froms.offsets[i + 1] - froms.offsets[i],
                                         tos.bytes + tos.offsets[i],
                                         tos.offsets[i + 1] - tos.offsets[i]));
        CHECK(terrane_store_write(store, batch, NULL));
    }
    uint8_t other[ROOT], found[MOST];
    CHECK(terrane_committed_write(committed, puts_.count, ROWS(puts_), ROWS(values), deletes.count,
                                  ROWS(deletes), other));
    CHECK(terrane_radix_commit(tree, root, puts_.count, ROWS(puts_), ROWS(values), deletes.count,
                               ROWS(deletes), root));
    CHECK(terrane_table_get_many(plain, asked.count, ROWS(asked), answers.bytes,
                                 sizeof answers.bytes, answers.offsets, found));
    for (size_t i = 0; i < asked.count; i++) {
        fold_byte(found[i]);
        for (size_t at = answers.offsets[i]; at < answers.offsets[i + 1]; at++)
            fold_byte(answers.bytes[at]);
    }
    puts_.count = values.count = deletes.count = froms.count = tos.count = asked.count = 0;
}

static void hex(const uint8_t *bytes) {
    for (int i = 0; i < ROOT; i++) printf("%02x", bytes[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    FILE *file = fopen(argv[1], "rb");
    assert(file);
    char path[512];
    struct terrane_options options = terrane_options_default();
    options.create_dir = true;
    options.durability = TERRANE_BUFFERED;
    snprintf(path, sizeof path, "%s/store", argv[2]);
    CHECK(terrane_store_open(TEXT(path), &options, &store));
    CHECK(terrane_table_open(store, TEXT("plain"), true, &plain));
    CHECK(terrane_committed_open(store, TEXT("committed"), &committed));
    CHECK(terrane_batch_new(&batch));
    struct terrane_radix *radix;
    snprintf(path, sizeof path, "%s/radix", argv[2]);
    CHECK(terrane_radix_open(TEXT(path), TERRANE_BUFFERED, &radix));
    CHECK(terrane_radix_tree_open(radix, TEXT("main"), &tree));
    CHECK(terrane_radix_empty_root(root));

    for (int kind = fgetc(file); kind != EOF; kind = fgetc(file)) {
        uint8_t key[255], value[255];
        size_t key_len = (size_t)fgetc(file);
        assert(key_len <= 255 && fread(key, 1, key_len, file) == key_len);
        size_t value_len = (size_t)fgetc(file);
        assert(value_len <= 255 && fread(value, 1, value_len, file) == value_len);
        if (kind == PUT) {
            push(&puts_, key, key_len);
            push(&values, value, value_len);
        } else if (kind == DELETE) {
            push(&deletes, key, key_len);
        } else if (kind == DELETE_RANGE) {
            push(&froms, key, key_len);
            push(&tos, value, value_len);
        } else if (kind == LOOK_UP) {
            push(&asked, key, key_len);
        } else {
            assert(kind == COMMIT);
            commit();
        }
    }
    fclose(file);

    struct terrane_view *view;
    uint64_t count = 0;
    uint8_t digest[ROOT], committed_root[ROOT];
    CHECK(terrane_table_view(plain, &view));
    CHECK(terrane_view_digest(view, &count, digest));
    CHECK(terrane_committed_root(committed, committed_root));
    printf("plain %llu ", (unsigned long long)count);
    hex(digest);
    printf("committed ");
    hex(committed_root);
    printf("radix ");
    hex(root);
    printf("answers %016llx\n", (unsigned long long)fold);
    terrane_view_free(view);
    terrane_batch_free(batch);
    terrane_table_free(plain);
    terrane_committed_free(committed);
    terrane_radix_tree_free(tree);
    CHECK(terrane_radix_close(radix));
    CHECK(terrane_store_close(store));
    return 0;
}
