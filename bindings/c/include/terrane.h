/* Terrane: stores of named tables with atomic commits, batched lookups, cursors, versions.
 *
 * Written by cbindgen from bindings/c/src: do not edit.
 *
 * Calls return a terrane_code; 0 is success. After another code, terrane_error_message() has the
 * message of the last failed call of the same thread. Calls write to their out-parameters on success
 * only, unless their comment says otherwise.
 *
 * Handles are opaque. Each comes from one function and goes with the function that its type names.
 * Stores, tables and views may be shared by threads; batches and cursors belong to one thread at a
 * time. No handle may be used during or after the call that frees it.
 *
 * Bytes that a function takes are copied before the call returns. Rows are bytes one behind the
 * other, and one offset more than there are rows: where each row begins, and the end of the last.
 * Offsets ascend from 0.
 */

#ifndef TERRANE_H
#define TERRANE_H



#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

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

/*
 Failures that a commit survives, weakest first.
 */
typedef enum terrane_durability {
  /*
   Nothing, until a checkpoint. As the default of a store: no log is written.
   */
  TERRANE_NONE = 0,
  /*
   The end of the process.
   */
  TERRANE_BUFFERED = 1,
  /*
   A loss of power, once `terrane_store_sync_to` has waited for the commit; commits share an
   fsync.
   */
  TERRANE_GROUP = 2,
  /*
   A loss of power, when the call returns.
   */
  TERRANE_EACH = 3,
} terrane_durability;

/*
 Updates of any tables of one store, which own their bytes. Freed by `terrane_batch_free`. One
 thread at a time. A batch that holds updates keeps their store open.
 */
typedef struct terrane_batch terrane_batch;

/*
 A cursor over a range of a view. Freed by `terrane_cursor_free`. One thread at a time.
 */
typedef struct terrane_cursor terrane_cursor;

/*
 An open store. Freed by `terrane_store_close`. Threads may share it.
 */
typedef struct terrane_store terrane_store;

/*
 A named table of a store. Freed by `terrane_table_free`, before or after its store is closed.
 Threads may share it.
 */
typedef struct terrane_table terrane_table;

/*
 A table as of one commit, unchanged by later ones. Freed by `terrane_view_free`. Threads may
 share it.
 */
typedef struct terrane_view terrane_view;

/*
 Options of a store. Begin with `terrane_options_default`.
 */
typedef struct terrane_options {
  /*
   Whether to create a missing directory.
   */
  bool create_dir;
  /*
   Default durability of commits: a `terrane_durability`.
   */
  uint32_t durability;
  /*
   Bytes for write buffers, filters, indexes and cached pages of all tables; 0 for each table's
   own.
   */
  uint64_t memory_budget;
} terrane_options;

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
 Returns the options that `terrane_store_open` takes without any.
 */
struct terrane_options terrane_options_default(void);

/*
 Opens the store in a directory, or creates one in an empty directory. `options` may be null.
 The caller owns `*out`.

 Cost: reads the manifest and the log since the last checkpoint.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_store_open(const uint8_t *dir,
                                     size_t dir_len,
                                     const struct terrane_options *options,
                                     struct terrane_store **out);

/*
 Closes a store in good order and frees the handle, also if the call fails. Commits that were not
 durable are, unless it fails. Tables, views and cursors of the store answer `TERRANE_CLOSED`
 from then on and are still to be freed. Null is nothing.

 # Safety
 `store` is null, or a handle that nobody uses during or after the call.
 */
enum terrane_code terrane_store_close(struct terrane_store *store);

/*
 Writes all tables to disk and lets go of the log.

 # Safety
 `store` is a handle, or null.
 */
enum terrane_code terrane_store_checkpoint(const struct terrane_store *store);

/*
 Waits until a commit survives a loss of power, with an fsync that all share who wait.

 # Safety
 `store` is a handle, or null.
 */
enum terrane_code terrane_store_sync_to(const struct terrane_store *store, uint64_t commit);

/*
 Gives the number of the last commit.

 # Safety
 `store` is a handle and `out` valid for a write, or either is null.
 */
enum terrane_code terrane_store_last_commit(const struct terrane_store *store, uint64_t *out);

/*
 Opens a named table; `create` makes a missing one. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_table_open(const struct terrane_store *store,
                                     const uint8_t *name,
                                     size_t name_len,
                                     bool create,
                                     struct terrane_table **out);

/*
 Removes a named table with its entries, as a commit of its own.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_table_drop(const struct terrane_store *store,
                                     const uint8_t *name,
                                     size_t name_len);

/*
 Frees a table's handle; the table stays. Null is nothing.

 # Safety
 `table` is null, or a handle that nobody uses during or after the call.
 */
void terrane_table_free(struct terrane_table *table);

/*
 Makes an empty batch. The caller owns `*out`.

 # Safety
 `out` is valid for a write, or null.
 */
enum terrane_code terrane_batch_new(struct terrane_batch **out);

/*
 Frees a batch; its updates are gone. Null is nothing.

 # Safety
 `batch` is null, or a handle that nobody uses during or after the call.
 */
void terrane_batch_free(struct terrane_batch *batch);

/*
 Removes all updates and keeps the memory for others.

 # Safety
 `batch` is a handle that no other thread uses, or null.
 */
enum terrane_code terrane_batch_clear(struct terrane_batch *batch);

/*
 Sets the values of `count` keys. Keys and values are rows: bytes, and `count` + 1 offsets.

 # Safety
 Pointers are valid as their types and counts say, or null; no other thread uses `batch`.
 */
enum terrane_code terrane_batch_put_many(struct terrane_batch *batch,
                                         const struct terrane_table *table,
                                         size_t count,
                                         const uint8_t *keys,
                                         const size_t *key_offsets,
                                         const uint8_t *values,
                                         const size_t *value_offsets);

/*
 Removes `count` keys, rows as of `terrane_batch_put_many`. An absent key is no error.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
enum terrane_code terrane_batch_delete_many(struct terrane_batch *batch,
                                            const struct terrane_table *table,
                                            size_t count,
                                            const uint8_t *keys,
                                            const size_t *key_offsets);

/*
 Sets the value of one key.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
enum terrane_code terrane_batch_put(struct terrane_batch *batch,
                                    const struct terrane_table *table,
                                    const uint8_t *key,
                                    size_t key_len,
                                    const uint8_t *value,
                                    size_t value_len);

/*
 Removes one key. An absent key is no error.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
enum terrane_code terrane_batch_delete(struct terrane_batch *batch,
                                       const struct terrane_table *table,
                                       const uint8_t *key,
                                       size_t key_len);

/*
 Commits a batch, all of it or nothing, with the store's durability, and gives the number of the
 commit. The batch stays as it is. With `TERRANE_GROUP`, `terrane_store_sync_to` waits for the
 commit. `commit` may be null.

 # Safety
 Pointers are valid as their types say, or null; no other thread uses `batch`.
 */
enum terrane_code terrane_store_write(const struct terrane_store *store,
                                      const struct terrane_batch *batch,
                                      uint64_t *commit);

/*
 Commits like `terrane_store_write` if no commit came after `last_commit`; `TERRANE_CONFLICT`
 otherwise.

 # Safety
 The contract of `terrane_store_write`.
 */
enum terrane_code terrane_store_write_if(const struct terrane_store *store,
                                         const struct terrane_batch *batch,
                                         uint64_t last_commit,
                                         uint64_t *commit);

/*
 Gives the number of updates in a batch.

 # Safety
 Pointers are valid as their types say, or null; no other thread changes `batch`.
 */
enum terrane_code terrane_batch_len(const struct terrane_batch *batch, size_t *out);

/*
 Makes a view of a table as of the last commit. The caller owns `*out`.

 # Safety
 Pointers are valid as their types say, or null.
 */
enum terrane_code terrane_table_view(const struct terrane_table *table, struct terrane_view **out);

/*
 Frees a view. Null is nothing.

 # Safety
 `view` is null, or a handle that nobody uses during or after the call.
 */
void terrane_view_free(struct terrane_view *view);

/*
 Looks up `count` keys of a view. Keys are rows: bytes, and `count` + 1 offsets.

 Writes the values one behind the other to `values`, `count` + 1 offsets to `value_offsets`, and
 for each key 1 or 0 to `found`; an absent key has no bytes. If `capacity` is too small, the call
 fails with `TERRANE_TOO_SMALL`, `value_offsets[count]` is how much is needed, `value_offsets`
 and `found` are right, and the bytes of `values` are unspecified.

 Cost: one read of a page for each present key that no cache has, all in flight at once.

 # Safety
 Pointers are valid as their types and counts say, or null; nobody else uses the memory for
 answers during the call.
 */
enum terrane_code terrane_view_get_many(const struct terrane_view *view,
                                        size_t count,
                                        const uint8_t *keys,
                                        const size_t *key_offsets,
                                        uint8_t *values_out,
                                        size_t capacity,
                                        size_t *value_offsets,
                                        uint8_t *found);

/*
 Looks up `count` keys of a table as of its last commit: as `terrane_view_get_many`.

 # Safety
 The contract of `terrane_view_get_many`.
 */
enum terrane_code terrane_table_get_many(const struct terrane_table *table,
                                         size_t count,
                                         const uint8_t *keys,
                                         const size_t *key_offsets,
                                         uint8_t *values_out,
                                         size_t capacity,
                                         size_t *value_offsets,
                                         uint8_t *found);

/*
 Makes a cursor over the keys of a view from `from` on and below `to`, ascending. Null for `to`
 means to the last key. The cursor may outlive the view. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_cursor_new(const struct terrane_view *view,
                                     const uint8_t *from,
                                     size_t from_len,
                                     const uint8_t *to,
                                     size_t to_len,
                                     struct terrane_cursor **out);

/*
 Frees a cursor. Null is nothing.

 # Safety
 `cursor` is null, or a handle that nobody uses during or after the call.
 */
void terrane_cursor_free(struct terrane_cursor *cursor);

/*
 Writes the next entries of a cursor, as many as fit and at most `rows_max`, and passes them.
 Gives their number, which is 0 at the end of the range only.

 Keys and values are written one behind the other, with one offset more than there are entries;
 `key_offsets` and `value_offsets` have room for `rows_max` + 1. If the first entry alone does
 not fit, the call fails with `TERRANE_TOO_SMALL`, passes nothing, and `key_offsets[1]` and
 `value_offsets[1]` are how much it needs.

 # Safety
 Pointers are valid as their types and counts say, or null; nobody else uses the cursor or the
 memory during the call.
 */
enum terrane_code terrane_cursor_next_chunk(struct terrane_cursor *cursor,
                                            size_t rows_max,
                                            uint8_t *keys,
                                            size_t key_capacity,
                                            size_t *key_offsets,
                                            uint8_t *values,
                                            size_t value_capacity,
                                            size_t *value_offsets,
                                            size_t *rows);

/*
 Saves a table as a durable snapshot, which `terrane_snapshot_open` opens with the same label.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_snapshot_save(const struct terrane_table *table,
                                        const uint8_t *name,
                                        size_t name_len,
                                        const uint8_t *label,
                                        size_t label_len);

/*
 Opens a snapshot as a view. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_snapshot_open(const struct terrane_store *store,
                                        const uint8_t *name,
                                        size_t name_len,
                                        const uint8_t *label,
                                        size_t label_len,
                                        struct terrane_view **out);

/*
 Deletes a snapshot. Views of it stay.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_snapshot_delete(const struct terrane_store *store,
                                          const uint8_t *name,
                                          size_t name_len);

/*
 Retains all tables as of the last commit and gives the number of the version. A null `name`
 makes a version without a name.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_version_retain(const struct terrane_store *store,
                                         const uint8_t *name,
                                         size_t name_len,
                                         uint64_t *number);

/*
 Releases a version. Views of it stay.

 # Safety
 `store` is a handle, or null.
 */
enum terrane_code terrane_version_release(const struct terrane_store *store, uint64_t number);

/*
 Gives the numbers of all versions, oldest first, and how many there are in `*count`. If
 `capacity` is too small, the call fails with `TERRANE_TOO_SMALL` and `*count` is right.

 # Safety
 Pointers are valid as their types and counts say, or null.
 */
enum terrane_code terrane_version_list(const struct terrane_store *store,
                                       uint64_t *numbers,
                                       size_t capacity,
                                       size_t *count);

/*
 Opens a table of a version as a view. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
enum terrane_code terrane_version_view(const struct terrane_store *store,
                                       uint64_t number,
                                       const uint8_t *table,
                                       size_t table_len,
                                       struct terrane_view **out);

/*
 Makes all tables what they were in a version, as one commit, and gives its number. `commit` may
 be null.

 # Safety
 Pointers are valid as their types say, or null.
 */
enum terrane_code terrane_store_roll_back(const struct terrane_store *store,
                                          uint64_t number,
                                          uint64_t *commit);

/*
 Checks a proof of a radix state against `root` and gives the values of `count` addresses, which
 must be those of the proof: rows, as keys of `terrane_view_get_many`. Answers are as there;
 an address without a value is not found. A proof of anything else is `TERRANE_INVALID_PROOF`.

 # Safety
 The contract of `terrane_view_get_many`; `root` is valid for `root_len` bytes, `proof` for
 `proof_len`.
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
 `root` of 32 bytes, and gives the value of the key: answers as of one key of
 `terrane_view_get_many`. Nodes are rows. Keys are those of the trie: a secure trie has hashed
 ones. Nodes that prove neither a value nor its absence are `TERRANE_INVALID_PROOF`.

 # Safety
 The contract of `terrane_view_get_many`; `root` is valid for 32 bytes, `key` for `key_len`.
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERRANE_H */
