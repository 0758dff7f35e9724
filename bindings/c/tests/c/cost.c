/* Work of the C interface, whose cost README.md has beside that of examples/cost.rs. That file
 * describes the work and the output.
 *
 * usage: cost EMPTY_FOLDER get|put|get-one|put-one TIMES
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terrane.h"

enum { ROWS = 256, KEY = 32, VALUE = 60 };

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != TERRANE_OK) {                                                                \
            fprintf(stderr, "%s\n", terrane_error_message());                                      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    struct terrane_options options = terrane_options_default();
    options.create_dir = true;
    options.durability = TERRANE_NONE;
    struct terrane_store *store;
    struct terrane_table *table;
    struct terrane_batch *batch;
    MUST(terrane_store_open((const uint8_t *)argv[1], strlen(argv[1]), &options, &store));
    MUST(terrane_table_open(store, (const uint8_t *)"main", 4, true, &table));
    MUST(terrane_batch_new(&batch));

    static uint8_t keys[ROWS * KEY], values[ROWS * VALUE], answers[ROWS * VALUE], found[ROWS];
    static size_t key_offsets[ROWS + 1], value_offsets[ROWS + 1], answer_offsets[ROWS + 1];
    for (size_t i = 0; i < ROWS; i++) {
        memset(keys + i * KEY, (int)(i * 37), KEY);
        keys[i * KEY + 1] = (uint8_t)i;
        memset(values + i * VALUE, (int)i, VALUE);
    }
    for (size_t i = 0; i <= ROWS; i++) {
        key_offsets[i] = i * KEY;
        value_offsets[i] = i * VALUE;
    }
    MUST(terrane_batch_put_many(batch, table, ROWS, keys, key_offsets, values, value_offsets));
    MUST(terrane_store_write(store, batch, NULL));

    const int times = atoi(argv[3]);
    size_t sum = 0;
    for (int n = 0; n < times; n++) {
        const size_t row = (size_t)n % ROWS, one_key[] = {0, KEY};
        if (strcmp(argv[2], "get") == 0) {
            MUST(terrane_table_get_many(table, ROWS, keys, key_offsets, answers, sizeof answers,
                                        answer_offsets, found));
            for (size_t i = 0; i < ROWS; i++) sum += found[i] ? answers[answer_offsets[i]] : 0;
        } else if (strcmp(argv[2], "get-one") == 0) {
            MUST(terrane_table_get_many(table, 1, keys + row * KEY, one_key, answers,
                                        sizeof answers, answer_offsets, found));
            sum += found[0] ? answers[0] : 0;
        } else if (strcmp(argv[2], "put-one") == 0) {
            const uint8_t kind = TERRANE_PUT;
            const size_t one_value[] = {0, VALUE};
            MUST(terrane_table_update_many(store, table, 1, &kind, keys + row * KEY, one_key,
                                           values + row * VALUE, one_value, NULL));
        } else if (strcmp(argv[2], "put") == 0) {
            MUST(terrane_batch_clear(batch));
            MUST(terrane_batch_put_many(batch, table, ROWS, keys, key_offsets, values,
                                        value_offsets));
            MUST(terrane_store_write(store, batch, NULL));
        } else {
            return 2;
        }
    }
    volatile size_t kept = sum; /* so that the compiler keeps the loop */
    (void)kept;

    MUST(terrane_table_get_many(table, ROWS, keys, key_offsets, answers, sizeof answers,
                                answer_offsets, found));
    uint64_t fold = 0xcbf29ce484222325;
    for (size_t i = 0; i < answer_offsets[ROWS]; i++) fold = (fold ^ answers[i]) * 0x100000001b3;
    printf("%016llx\n", (unsigned long long)fold);
    terrane_batch_free(batch);
    terrane_table_free(table);
    return terrane_store_close(store) == TERRANE_OK ? 0 : 1;
}
