/* Checks of the tests: a call must succeed, or must fail with a code and a message. */
#ifndef CHECK_H
#define CHECK_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terrane.h"

#ifdef NDEBUG
#error "the checks are assertions"
#endif

#define TEXT(text) (const uint8_t *)(text), strlen(text)

static inline void check(enum terrane_code code, int line) {
    if (code != TERRANE_OK) {
        fprintf(stderr, "line %d: code %d: %s\n", line, (int)code, terrane_error_message());
        exit(1);
    }
}
#define CHECK(call) check((call), __LINE__)

/* A call that must fail with this code and say why. */
static inline void refused(enum terrane_code code, enum terrane_code expected, int line) {
    if (code != expected || strlen(terrane_error_message()) == 0) {
        fprintf(stderr, "line %d: code %d, not %d: %s\n", line, (int)code, (int)expected,
                terrane_error_message());
        exit(1);
    }
}
#define REFUSED(call, expected) refused((call), (expected), __LINE__)

#endif
