/* Terrane: verifiers of proofs, without the engines.
 *
 * Written by cbindgen from bindings/c-verify/src: do not edit.
 *
 * Calls return a terrane_code; 0 is success. After another code, terrane_error_message() has the
 * message of the last failed call of the same thread. Any threads may call at a time. Bytes that a
 * function takes are only read, and only during the call.
 *
 * Rows are bytes one behind the other, and one offset more than there are rows: where each row
 * begins, and the end of the last. Offsets ascend from 0. Answers to lookups of keys are values as
 * rows, and for each key a 1 or 0 in `found`; an absent key has no bytes. If `capacity` is too
 * small, the call fails with TERRANE_TOO_SMALL, `value_offsets[count]` is how much is needed,
 * `value_offsets` and `found` are right, and the bytes of `values` are unspecified.
 */

#ifndef TERRANE_VERIFY_H
#define TERRANE_VERIFY_H



#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Bytes of a hash.
 */
#define HASH_BYTES 32

/*
 Outcome of a call. Numbers keep their meaning in all versions.
 */
typedef enum terrane_code {
  /*
   Success.
   */
  TERRANE_OK = 0,
  /*
   The request makes no sense: null, bytes that are not a name, offsets that do not ascend.
   */
  TERRANE_BAD_INPUT = 1,
  /*
   There is no such store, table, snapshot, version or key.
   */
  TERRANE_NOT_FOUND = 2,
  /*
   The name is taken.
   */
  TERRANE_ALREADY_EXISTS = 3,
  /*
   Stored bytes are not as they were written, or are gone.
   */
  TERRANE_CORRUPT = 4,
  /*
   Another process, or another handle of this one, holds the store.
   */
  TERRANE_LOCKED = 5,
  /*
   Another change came first.
   */
  TERRANE_CONFLICT = 6,
  /*
   The disk, the quota or the reserve is used up.
   */
  TERRANE_NO_SPACE = 7,
  /*
   The system does not allow it to this user.
   */
  TERRANE_PERMISSION = 8,
  /*
   The store was opened, or can only be opened, for reading.
   */
  TERRANE_READ_ONLY = 9,
  /*
   A format or a feature that this library or this system does not have.
   */
  TERRANE_UNSUPPORTED = 10,
  /*
   The store was closed.
   */
  TERRANE_CLOSED = 11,
  /*
   An earlier fsync failed: close the store and open it anew.
   */
  TERRANE_POISONED = 12,
  /*
   The caller stopped the work.
   */
  TERRANE_INTERRUPTED = 13,
  /*
   Any other failure of the system.
   */
  TERRANE_IO = 14,
  /*
   The caller's memory is too small; the call says how much is needed.
   */
  TERRANE_TOO_SMALL = 15,
  /*
   A proof proves something else, or nothing.
   */
  TERRANE_INVALID_PROOF = 16,
  /*
   A bug of the library. The handle must not be used any more, but for freeing it.
   */
  TERRANE_PANIC = 17,
} terrane_code;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the message of the last failed call of this thread; empty if none has failed. Valid
 until the next failed call of this thread, and owned by the library.
 */
const char *terrane_error_message(void);

/*
 Returns the version of the library, such as `0.1.0`. Static.
 */
const char *terrane_version(void);

/*
 Checks a proof of a radix state against `root` and gives the values of `count` addresses, which
 must be those of the proof, as rows. An address without a value is not found. A proof of
 anything else is `TERRANE_INVALID_PROOF`. `root_len` is 32.

 # Safety
 Pointers are valid as their types, lengths and counts say, or null.
 */
enum terrane_code terrane_radix_verify(const uint8_t *root,
                                       size_t root_len,
                                       const uint8_t *proof,
                                       size_t proof_len,
                                       size_t count,
                                       const uint8_t *addresses,
                                       const size_t *address_offsets,
                                       uint8_t *values,
                                       size_t capacity,
                                       size_t *value_offsets,
                                       uint8_t *found);

/*
 Checks the nodes on the path of a key of a Merkle-Patricia trie, from the root down, against
 `root` of 32 bytes, and gives the value of the key: answers for one key. Nodes are rows. Keys
 are those of the trie: a secure trie has hashed ones. Nodes that prove neither a value nor its
 absence are `TERRANE_INVALID_PROOF`.

 # Safety
 Pointers are valid as their types, lengths and counts say, or null; `root` for 32 bytes.
 */
enum terrane_code terrane_mpt_verify(const uint8_t *root,
                                     const uint8_t *key,
                                     size_t key_len,
                                     size_t node_count,
                                     const uint8_t *nodes,
                                     const size_t *node_offsets,
                                     uint8_t *value,
                                     size_t capacity,
                                     size_t *value_offsets,
                                     uint8_t *found);

/*
 Checks a proof of a table with a root, `terrane_committed_prove`, and gives the value of the
 key: as `terrane_mpt_verify`, but for a key as the table has it.

 # Safety
 The contract of `terrane_mpt_verify`.
 */
enum terrane_code terrane_committed_verify(const uint8_t *root,
                                           const uint8_t *key,
                                           size_t key_len,
                                           size_t node_count,
                                           const uint8_t *nodes,
                                           const size_t *node_offsets,
                                           uint8_t *value,
                                           size_t capacity,
                                           size_t *value_offsets,
                                           uint8_t *found);

/*
 Checks a proof of a context tree, `terrane_context_prove`, against `root` of 32 bytes and gives
 the values of `count` paths such as `data/contracts/a`, which are rows. A path that the proof
 does not show, and a proof of anything else, are `TERRANE_INVALID_PROOF`.

 # Safety
 Pointers are valid as their types, lengths and counts say, or null; `root` for 32 bytes.
 */
enum terrane_code terrane_context_verify(const uint8_t *root,
                                         const uint8_t *proof,
                                         size_t proof_len,
                                         size_t count,
                                         const uint8_t *paths,
                                         const size_t *path_offsets,
                                         uint8_t *values,
                                         size_t capacity,
                                         size_t *value_offsets,
                                         uint8_t *found);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERRANE_VERIFY_H */
