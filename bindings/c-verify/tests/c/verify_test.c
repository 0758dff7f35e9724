/* The library of verifiers alone: it checks proofs that the library of stores has made, refuses
 * forged ones, and knows no store.
 *
 * `cargo xtask capi` builds it with AddressSanitizer. The argument is a file of proofs, which
 * bindings/c/tests/c/proofs.c writes. Each record has a kind (1 radix, 2 table with a root, 3
 * context), then five byte strings, each after its length in 8 bytes, little-endian: root, key,
 * proof, offsets of the proof's nodes in 8 bytes each (none but for kind 2), value.
 */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terrane_verify.h"

#ifdef NDEBUG
#error "the checks are assertions"
#endif

enum { FIELDS = 5, MOST = 1 << 16 };

struct field {
    uint8_t bytes[MOST];
    size_t len;
};

struct record {
    int kind;
    struct field root, key, proof, offsets, value;
};

static uint64_t number(const uint8_t *bytes) {
    uint64_t number = 0;
    for (int i = 7; i >= 0; i--) number = number << 8 | bytes[i];
    return number;
}

static int read_record(FILE *file, struct record *record) {
    record->kind = fgetc(file);
    if (record->kind == EOF) return 0;
    struct field *fields[FIELDS] = {&record->root, &record->key, &record->proof, &record->offsets,
                                    &record->value};
    for (int i = 0; i < FIELDS; i++) {
        uint8_t len[8];
        assert(fread(len, 1, sizeof len, file) == sizeof len);
        fields[i]->len = (size_t)number(len);
        assert(fields[i]->len <= MOST);
        assert(fread(fields[i]->bytes, 1, fields[i]->len, file) == fields[i]->len);
    }
    return 1;
}

static enum terrane_code verify(const struct record *record, uint8_t *value, size_t capacity,
                                size_t *value_offsets, uint8_t *found) {
    const size_t one[] = {0, record->key.len};
    size_t offsets[64], nodes = record->offsets.len / 8;
    switch (record->kind) {
    case 1:
        return terrane_radix_verify(record->root.bytes, record->root.len, record->proof.bytes,
                                    record->proof.len, 1, record->key.bytes, one, value, capacity,
                                    value_offsets, found);
    case 2:
        assert(nodes > 1 && nodes <= 64);
        for (size_t i = 0; i < nodes; i++) offsets[i] = number(record->offsets.bytes + 8 * i);
        return terrane_committed_verify(record->root.bytes, record->key.bytes, record->key.len,
                                        nodes - 1, record->proof.bytes, offsets, value, capacity,
                                        value_offsets, found);
    default:
        assert(record->kind == 3);
        return terrane_context_verify(record->root.bytes, record->proof.bytes, record->proof.len, 1,
                                      record->key.bytes, one, value, capacity, value_offsets, found);
    }
}

static void is_proved(const struct record *record) {
    uint8_t value[MOST], found = 7;
    size_t offsets[2];
    enum terrane_code code = verify(record, value, sizeof value, offsets, &found);
    if (code != TERRANE_OK) {
        fprintf(stderr, "kind %d: code %d: %s\n", record->kind, (int)code, terrane_error_message());
        exit(1);
    }
    /* No value stands for a key that is proved to be absent. */
    assert(found == (record->value.len > 0));
    assert(offsets[1] == record->value.len);
    assert(memcmp(value, record->value.bytes, record->value.len) == 0);
    if (record->value.len > 0) {
        code = verify(record, value, record->value.len - 1, offsets, &found);
        assert(code == TERRANE_TOO_SMALL && offsets[1] == record->value.len);
    }
}

/* A forged proof is refused, or proves what is so. */
static void is_not_forged(struct record *record) {
    for (size_t at = 0; at < record->proof.len; at++) {
        record->proof.bytes[at] ^= 1 << at % 8;
        uint8_t value[MOST], found = 7;
        size_t offsets[2];
        enum terrane_code code = verify(record, value, sizeof value, offsets, &found);
        if (code == TERRANE_OK) {
            assert(found == (record->value.len > 0) && offsets[1] == record->value.len);
            assert(memcmp(value, record->value.bytes, record->value.len) == 0);
        } else {
            assert(code == TERRANE_INVALID_PROOF && strlen(terrane_error_message()) > 0);
        }
        record->proof.bytes[at] ^= 1 << at % 8;
    }
    record->root.bytes[0] ^= 1;
    uint8_t value[8], found;
    size_t offsets[2];
    assert(verify(record, value, sizeof value, offsets, &found) == TERRANE_INVALID_PROOF);
    record->root.bytes[0] ^= 1;
}

int main(int argc, char **argv) {
    assert(argc == 2 && strlen(terrane_version()) > 0);
    FILE *file = fopen(argv[1], "rb");
    assert(file);
    static struct record record;
    int kinds[4] = {0};
    while (read_record(file, &record)) {
        is_proved(&record);
        is_not_forged(&record);
        kinds[record.kind]++;
    }
    fclose(file);
    assert(kinds[1] && kinds[2] && kinds[3]);

    uint8_t value[1], found;
    size_t offsets[2];
    assert(terrane_mpt_verify(NULL, NULL, 0, 0, NULL, NULL, value, 1, offsets, &found)
           == TERRANE_BAD_INPUT);
    return 0;
}
