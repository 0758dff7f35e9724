/* Writes proofs of the library of stores for the test of the library of verifiers, which describes
 * the file: bindings/c-verify/tests/c/verify_test.c.
 *
 * usage: proofs FOLDER FILE, neither of which is there
 */
#define _POSIX_C_SOURCE 200809L
#include <sys/stat.h>

#include "check.h"

enum { MANY = 40, ROOT = 32 };

static FILE *file;

static void write_field(const void *bytes, size_t len) {
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)len >> 8 * i & 0xff), file);
    assert(fwrite(bytes, 1, len, file) == len);
}

static void write_record(int kind, const uint8_t *root, const char *key, const uint8_t *proof,
                         size_t proof_len, const size_t *offsets, size_t offset_count,
                         const char *value) {
    fputc(kind, file);
    write_field(root, ROOT);
    write_field(key, strlen(key));
    write_field(proof, proof_len);
    uint8_t numbers[17 * 8] = {0};
    assert(offset_count <= 17);
    for (size_t i = 0; i < offset_count * 8; i++)
        numbers[i] = (uint8_t)((uint64_t)offsets[i / 8] >> 8 * (i % 8));
    write_field(numbers, offset_count * 8);
    write_field(value, strlen(value));
}

/* Rows `<prefix>00`, `<prefix>01` and so on. */
static void fill(uint8_t *bytes, size_t *offsets, const char *prefix) {
    size_t len = strlen(prefix) + 2;
    for (size_t i = 0; i < MANY; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s%02zu", prefix, i);
        memcpy(bytes + i * len, text, len);
    }
    for (size_t i = 0; i <= MANY; i++) offsets[i] = i * len;
}

int main(int argc, char **argv) {
    assert(argc == 3 && mkdir(argv[1], 0777) == 0);
    file = fopen(argv[2], "wb");
    assert(file);
    char path[512];
    uint8_t keys[MANY * 32], values[MANY * 32], root[ROOT], proof[8192];
    size_t key_offsets[MANY + 1], value_offsets[MANY + 1], offsets[17], len, count;
    fill(values, value_offsets, "value ");

    snprintf(path, sizeof path, "%s/radix", argv[1]);
    struct terrane_radix *radix;
    struct terrane_radix_tree *tree;
    CHECK(terrane_radix_open(TEXT(path), TERRANE_EACH, &radix));
    CHECK(terrane_radix_tree_open(radix, TEXT("ledger"), &tree));
    CHECK(terrane_radix_empty_root(root));
    fill(keys, key_offsets, "address ");
    CHECK(terrane_radix_commit(tree, root, MANY, keys, key_offsets, values, value_offsets, 0, NULL,
                               NULL, root));
    for (int compact = 0; compact < 2; compact++) {
        const size_t one[] = {0, 10};
        CHECK(terrane_radix_prove(tree, root, 1, (const uint8_t *)"address 07", one, compact, proof,
                                  sizeof proof, &len));
        write_record(1, root, "address 07", proof, len, NULL, 0, "value 07");
        CHECK(terrane_radix_prove(tree, root, 1, (const uint8_t *)"address xx", one, compact, proof,
                                  sizeof proof, &len));
        write_record(1, root, "address xx", proof, len, NULL, 0, "");
    }
    terrane_radix_tree_free(tree);
    CHECK(terrane_radix_close(radix));

    snprintf(path, sizeof path, "%s/store", argv[1]);
    struct terrane_options options = terrane_options_default();
    options.create_dir = true;
    struct terrane_store *store;
    struct terrane_committed *table;
    CHECK(terrane_store_open(TEXT(path), &options, &store));
    CHECK(terrane_committed_open(store, TEXT("ledger"), &table));
    fill(keys, key_offsets, "key ");
    CHECK(terrane_committed_write(table, MANY, keys, key_offsets, values, value_offsets, 0, NULL,
                                  NULL, root));
    CHECK(terrane_committed_prove(table, TEXT("key 07"), 16, proof, sizeof proof, offsets, &count));
    write_record(2, root, "key 07", proof, offsets[count], offsets, count + 1, "value 07");
    CHECK(terrane_committed_prove(table, TEXT("none"), 16, proof, sizeof proof, offsets, &count));
    write_record(2, root, "none", proof, offsets[count], offsets, count + 1, "");
    terrane_committed_free(table);
    CHECK(terrane_store_close(store));

    snprintf(path, sizeof path, "%s/context", argv[1]);
    struct terrane_context *context;
    struct terrane_context_tree *work;
    CHECK(terrane_context_open(TEXT(path), TERRANE_EACH, &context));
    CHECK(terrane_context_checkout(context, NULL, &work));
    fill(keys, key_offsets, "data/a/");
    CHECK(terrane_context_put_many(work, MANY, keys, key_offsets, values, value_offsets));
    CHECK(terrane_context_root(work, root));
    const size_t path_offsets[] = {0, 9}, absent_offsets[] = {0, 6};
    CHECK(terrane_context_prove(work, 1, (const uint8_t *)"data/a/07", path_offsets, proof,
                                sizeof proof, &len));
    write_record(3, root, "data/a/07", proof, len, NULL, 0, "value 07");
    CHECK(terrane_context_prove(work, 1, (const uint8_t *)"data/b", absent_offsets, proof,
                                sizeof proof, &len));
    write_record(3, root, "data/b", proof, len, NULL, 0, "");
    terrane_context_tree_free(work);
    CHECK(terrane_context_close(context));
    assert(fclose(file) == 0);
    return 0;
}
