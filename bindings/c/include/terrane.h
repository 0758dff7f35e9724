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
#include "terrane_verify.h"

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
 Kinds of updates of `terrane_batch_update_many`.
 */
typedef enum terrane_update {
  /*
   Remove the key; the value means nothing.
   */
  TERRANE_DELETE = 0,
  /*
   Set the value of the key.
   */
  TERRANE_PUT = 1,
  /*
   Remove all keys from the key on that are below the value.
   */
  TERRANE_DELETE_RANGE = 2,
  /*
   Remove all keys from the key on; the value means nothing.
   */
  TERRANE_DELETE_FROM = 3,
} terrane_update;

/*
 Kinds of rows of a change feed.
 */
typedef enum terrane_change_kind {
  /*
   The key was removed.
   */
  TERRANE_CHANGE_DELETE = 0,
  /*
   The key got the value.
   */
  TERRANE_CHANGE_PUT = 1,
  /*
   All keys from the key on that are below the value were removed.
   */
  TERRANE_CHANGE_DELETE_RANGE = 2,
  /*
   All keys from the key on were removed.
   */
  TERRANE_CHANGE_DELETE_FROM = 3,
  /*
   The value was merged into that of the key.
   */
  TERRANE_CHANGE_UPSERT = 4,
  /*
   The value is the blob of the key of the row before, which put it.
   */
  TERRANE_CHANGE_BLOB = 5,
  /*
   The rows that follow, to the next row of this kind, are updates of this table; the key is
   its name.
   */
  TERRANE_CHANGE_TABLE = 6,
  /*
   The rows above are all of the commit. `table` is the first commit that they stand for: the
   same, or an earlier one where only the difference between two versions is known.
   */
  TERRANE_CHANGE_COMMIT = 16,
  /*
   An empty table was made; the key is its name.
   */
  TERRANE_CHANGE_TABLE_CREATED = 17,
  /*
   A table was dropped; the key is its name.
   */
  TERRANE_CHANGE_TABLE_DROPPED = 18,
  /*
   A table got another name: the key is the new one, the value the old one.
   */
  TERRANE_CHANGE_TABLE_RENAMED = 19,
  /*
   A table came with entries that the feed does not tell; the key is its name. Read the table.
   */
  TERRANE_CHANGE_TABLE_LOADED = 20,
  /*
   The commit made all tables what they were in a version, whose number is `table`. Rows of
   tables that went and of tables that came back follow.
   */
  TERRANE_CHANGE_ROLLED_BACK = 21,
  /*
   A table went with the roll-back; the key is its name.
   */
  TERRANE_CHANGE_TABLE_GONE = 22,
  /*
   A table came back with the roll-back; the key is its name.
   */
  TERRANE_CHANGE_TABLE_BACK = 23,
} terrane_change_kind;

/*
 Updates of any tables of one store, which own their bytes. Freed by `terrane_batch_free`. One
 thread at a time. A batch that holds updates keeps their store open.
 */
typedef struct terrane_batch terrane_batch;

/*
 A change feed. Freed by `terrane_changes_free`; until then the store keeps its log from the
 feed's place on. One thread at a time.
 */
typedef struct terrane_changes terrane_changes;

/*
 A table of a store whose entries have a root: that of a Merkle-Patricia trie over the hashes of
 the keys. Freed by `terrane_committed_free`. Threads may share it; of two commits at once one
 fails.
 */
typedef struct terrane_committed terrane_committed;

/*
 A context store. Freed by `terrane_context_close`. Threads may share it.
 */
typedef struct terrane_context terrane_context;

/*
 A working tree, with the commit that it came from. Freed by `terrane_context_tree_free`, before
 its store is closed. One thread at a time.
 */
typedef struct terrane_context_tree terrane_context_tree;

/*
 A cursor over a range of a view. Freed by `terrane_cursor_free`. One thread at a time.
 */
typedef struct terrane_cursor terrane_cursor;

/*
 The keys whose values differ between two views, ascending. Freed by `terrane_diff_free`. One
 thread at a time.
 */
typedef struct terrane_diff terrane_diff;

/*
 A fork of a table, which goes its own way. Its entries are gone with it unless a snapshot or
 `terrane_store_install` keeps them. Freed by `terrane_fork_free`. One thread at a time.
 */
typedef struct terrane_fork terrane_fork;

/*
 A B+tree index: a map on disk for one writer and many reader processes. Freed by
 `terrane_index_close`. Threads may share it.
 */
typedef struct terrane_index terrane_index;

/*
 A cursor over a range of an index as it was when the cursor was made. Freed by
 `terrane_index_cursor_free`. One thread at a time.
 */
typedef struct terrane_index_cursor terrane_index_cursor;

/*
 The state of an Ethereum chain. Freed by `terrane_mpt_close`. Threads may share it; they take
 turns.
 */
typedef struct terrane_mpt terrane_mpt;

/*
 The radix state of a directory. Freed by `terrane_radix_close`. Threads may share it.
 */
typedef struct terrane_radix terrane_radix;

/*
 A named tree of a radix state. Freed by `terrane_radix_tree_free`, before or after its state is
 closed; the directory stays locked until then. Threads may share it.
 */
typedef struct terrane_radix_tree terrane_radix_tree;

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
 A transaction: reads of one moment, and writes. Ended by `terrane_transaction_commit` or
 `terrane_transaction_rollback`. One thread at a time.
 */
typedef struct terrane_transaction terrane_transaction;

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

/*
 A row of a change feed, with a key and a value beside it.
 */
typedef struct terrane_change {
  /*
   Number of the commit; 0 where there is none.
   */
  uint64_t commit;
  /*
   Number of the table, which no other table gets, unless the kind says otherwise.
   */
  uint64_t table;
  /*
   A `terrane_change_kind`.
   */
  uint32_t kind;
} terrane_change;

/*
 Report of a backup.
 */
typedef struct terrane_backup_report {
  /*
   Number of the last commit in the backup.
   */
  uint64_t commit;
  /*
   Number of its tables.
   */
  uint64_t tables;
  /*
   Number of its retained versions.
   */
  uint64_t versions;
  /*
   Number of its snapshots.
   */
  uint64_t snapshots;
  /*
   Bytes of files that were written.
   */
  uint64_t bytes_copied;
  /*
   Bytes of files that were there from an earlier backup.
   */
  uint64_t bytes_shared;
} terrane_backup_report;

/*
 Shape of a table, and what it has counted since it was opened.
 */
typedef struct terrane_table_stats {
  /*
   Entries at most: a key counts once for each run that has it.
   */
  uint64_t entries;
  /*
   Number of runs.
   */
  uint64_t runs;
  /*
   Memory of memtable, filters, indexes and cached pages.
   */
  uint64_t memory_bytes;
  /*
   Memory of filters.
   */
  uint64_t filter_bytes;
  /*
   Memory of indexes.
   */
  uint64_t index_bytes;
  /*
   Memory of cached pages.
   */
  uint64_t cache_bytes;
  /*
   Pages of compaction that are not done yet.
   */
  uint64_t merge_debt_pages;
  /*
   Keys that were looked up.
   */
  uint64_t lookups;
  /*
   Keys that were there.
   */
  uint64_t found;
  /*
   Pages that lookups have read from disk.
   */
  uint64_t lookup_reads;
  /*
   Updates of keys.
   */
  uint64_t updates;
  /*
   Bytes of their keys and values.
   */
  uint64_t update_bytes;
  /*
   Bytes that flushes and compactions have written.
   */
  uint64_t written_bytes;
} terrane_table_stats;

/*
 A change of an account.
 */
typedef struct terrane_mpt_account {
  /*
   Address.
   */
  uint8_t address[20];
  /*
   Whether the account goes, with all its storage; the fields that follow mean nothing then.
   */
  bool is_deleted;
  /*
   Count of transactions sent, or of contracts created.
   */
  uint64_t nonce;
  /*
   Balance in wei, big-endian.
   */
  uint8_t balance[32];
  /*
   Keccak-256 of the code; all zero for none.
   */
  uint8_t code_hash[32];
} terrane_mpt_account;

/*
 A change of a slot.
 */
typedef struct terrane_mpt_slot {
  /*
   Address of the account, which exists after the block.
   */
  uint8_t address[20];
  /*
   Slot, big-endian.
   */
  uint8_t slot[32];
  /*
   New value, big-endian; zero deletes the slot.
   */
  uint8_t value[32];
} terrane_mpt_slot;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

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
terrane_code terrane_store_open(const uint8_t *dir,
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
terrane_code terrane_store_close(struct terrane_store *store);

/*
 Writes all tables to disk and lets go of the log.

 # Safety
 `store` is a handle, or null.
 */
terrane_code terrane_store_checkpoint(const struct terrane_store *store);

/*
 Waits until a commit survives a loss of power, with an fsync that all share who wait.

 # Safety
 `store` is a handle, or null.
 */
terrane_code terrane_store_sync_to(const struct terrane_store *store, uint64_t commit);

/*
 Gives the number of the last commit.

 # Safety
 `store` is a handle and `out` valid for a write, or either is null.
 */
terrane_code terrane_store_last_commit(const struct terrane_store *store, uint64_t *out);

/*
 Opens a named table; `create` makes a missing one. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_table_open(const struct terrane_store *store,
                                const uint8_t *name,
                                size_t name_len,
                                bool create,
                                struct terrane_table **out);

/*
 Removes a named table with its entries, as a commit of its own.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_table_drop(const struct terrane_store *store,
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
terrane_code terrane_batch_new(struct terrane_batch **out);

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
terrane_code terrane_batch_clear(struct terrane_batch *batch);

/*
 Sets the values of `count` keys. Keys and values are rows: bytes, and `count` + 1 offsets.

 # Safety
 Pointers are valid as their types and counts say, or null; no other thread uses `batch`.
 */
terrane_code terrane_batch_put_many(struct terrane_batch *batch,
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
terrane_code terrane_batch_delete_many(struct terrane_batch *batch,
                                       const struct terrane_table *table,
                                       size_t count,
                                       const uint8_t *keys,
                                       const size_t *key_offsets);

/*
 Adds `count` updates of mixed kinds to a batch, in their order: for each a byte of `kinds`, a
 `terrane_update`, and rows of keys and values as of `terrane_batch_put_many`.

 # Safety
 The contract of `terrane_batch_put_many`; `kinds` is valid for `count` bytes.
 */
terrane_code terrane_batch_update_many(struct terrane_batch *batch,
                                       const struct terrane_table *table,
                                       size_t count,
                                       const uint8_t *kinds,
                                       const uint8_t *keys,
                                       const size_t *key_offsets,
                                       const uint8_t *values,
                                       const size_t *value_offsets);

/*
 Commits `count` updates of one table, as a batch of `terrane_batch_update_many` in one call, and
 gives the number of the commit. `commit` may be null.

 # Safety
 The contract of `terrane_batch_update_many`.
 */
terrane_code terrane_table_update_many(const struct terrane_store *store,
                                       const struct terrane_table *table,
                                       size_t count,
                                       const uint8_t *kinds,
                                       const uint8_t *keys,
                                       const size_t *key_offsets,
                                       const uint8_t *values,
                                       const size_t *value_offsets,
                                       uint64_t *commit);

/*
 Commits `count` updates of `table_count` tables in one call, all of them or nothing, and gives
 the number of the commit. `table_of` has the place of each update's table in `tables`; null
 means the first. Kinds and rows are as of `terrane_batch_update_many`. If `last_commit` is not
 null, the call fails with `TERRANE_CONFLICT` once a later commit is there. `commit` may be null.

 # Safety
 The contract of `terrane_batch_update_many`; `tables` is valid for `table_count` handles,
 `table_of` for `count` numbers.
 */
terrane_code terrane_store_update_many(const struct terrane_store *store,
                                       size_t table_count,
                                       const struct terrane_table *const *tables,
                                       size_t count,
                                       const uint32_t *table_of,
                                       const uint8_t *kinds,
                                       const uint8_t *keys,
                                       const size_t *key_offsets,
                                       const uint8_t *values,
                                       const size_t *value_offsets,
                                       const uint64_t *last_commit,
                                       uint64_t *commit);

/*
 Removes all keys from `from` on and below `to`, at the cost of one update. Null for `to` means
 to the last key.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_batch_delete_range(struct terrane_batch *batch,
                                        const struct terrane_table *table,
                                        const uint8_t *from,
                                        size_t from_len,
                                        const uint8_t *to,
                                        size_t to_len);

/*
 Sets the value of one key.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_batch_put(struct terrane_batch *batch,
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
terrane_code terrane_batch_delete(struct terrane_batch *batch,
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
terrane_code terrane_store_write(const struct terrane_store *store,
                                 const struct terrane_batch *batch,
                                 uint64_t *commit);

/*
 Commits like `terrane_store_write` if no commit came after `last_commit`; `TERRANE_CONFLICT`
 otherwise.

 # Safety
 The contract of `terrane_store_write`.
 */
terrane_code terrane_store_write_if(const struct terrane_store *store,
                                    const struct terrane_batch *batch,
                                    uint64_t last_commit,
                                    uint64_t *commit);

/*
 Gives the number of updates in a batch.

 # Safety
 Pointers are valid as their types say, or null; no other thread changes `batch`.
 */
terrane_code terrane_batch_len(const struct terrane_batch *batch, size_t *out);

/*
 Makes a view of a table as of the last commit. The caller owns `*out`.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_table_view(const struct terrane_table *table, struct terrane_view **out);

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
terrane_code terrane_view_get_many(const struct terrane_view *view,
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
terrane_code terrane_table_get_many(const struct terrane_table *table,
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
terrane_code terrane_cursor_new(const struct terrane_view *view,
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
terrane_code terrane_cursor_next_chunk(struct terrane_cursor *cursor,
                                       size_t rows_max,
                                       uint8_t *keys,
                                       size_t key_capacity,
                                       size_t *key_offsets,
                                       uint8_t *values,
                                       size_t value_capacity,
                                       size_t *value_offsets,
                                       size_t *rows);

/*
 Goes behind the last entry of the range of a cursor, for `terrane_cursor_prev_chunk`. Reads
 nothing.

 # Safety
 `cursor` is a handle that no other thread uses, or null.
 */
terrane_code terrane_cursor_seek_to_end(struct terrane_cursor *cursor);

/*
 Writes the entries before the position of a cursor, the nearest first, and passes them: as
 `terrane_cursor_next_chunk` downwards.

 # Safety
 The contract of `terrane_cursor_next_chunk`.
 */
terrane_code terrane_cursor_prev_chunk(struct terrane_cursor *cursor,
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
terrane_code terrane_snapshot_save(const struct terrane_table *table,
                                   const uint8_t *name,
                                   size_t name_len,
                                   const uint8_t *label,
                                   size_t label_len);

/*
 Opens a snapshot as a view. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_snapshot_open(const struct terrane_store *store,
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
terrane_code terrane_snapshot_delete(const struct terrane_store *store,
                                     const uint8_t *name,
                                     size_t name_len);

/*
 Retains all tables as of the last commit and gives the number of the version. A null `name`
 makes a version without a name.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_version_retain(const struct terrane_store *store,
                                    const uint8_t *name,
                                    size_t name_len,
                                    uint64_t *number);

/*
 Releases a version. Views of it stay.

 # Safety
 `store` is a handle, or null.
 */
terrane_code terrane_version_release(const struct terrane_store *store, uint64_t number);

/*
 Gives the numbers of all versions, oldest first, and how many there are in `*count`. If
 `capacity` is too small, the call fails with `TERRANE_TOO_SMALL` and `*count` is right.

 # Safety
 Pointers are valid as their types and counts say, or null.
 */
terrane_code terrane_version_list(const struct terrane_store *store,
                                  uint64_t *numbers,
                                  size_t capacity,
                                  size_t *count);

/*
 Opens a table of a version as a view. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_version_view(const struct terrane_store *store,
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
terrane_code terrane_store_roll_back(const struct terrane_store *store,
                                     uint64_t number,
                                     uint64_t *commit);

/*
 Begins a transaction at the last commit. Tables that are made later are not seen. The caller
 owns `*out`.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_transaction_begin(const struct terrane_store *store,
                                       struct terrane_transaction **out);

/*
 Looks up `count` keys as the transaction sees them, its own writes included: as
 `terrane_view_get_many`. The commit fails if another commit has changed any of them.

 # Safety
 The contract of `terrane_view_get_many`.
 */
terrane_code terrane_transaction_get_many(const struct terrane_transaction *transaction,
                                          const struct terrane_table *table,
                                          size_t count,
                                          const uint8_t *keys,
                                          const size_t *key_offsets,
                                          uint8_t *values_out,
                                          size_t capacity,
                                          size_t *value_offsets,
                                          uint8_t *found);

/*
 Sets the values of `count` keys: rows as of `terrane_batch_put_many`.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_transaction_put_many(const struct terrane_transaction *transaction,
                                          const struct terrane_table *table,
                                          size_t count,
                                          const uint8_t *keys,
                                          const size_t *key_offsets,
                                          const uint8_t *values,
                                          const size_t *value_offsets);

/*
 Removes `count` keys: rows as of `terrane_batch_delete_many`.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_transaction_delete_many(const struct terrane_transaction *transaction,
                                             const struct terrane_table *table,
                                             size_t count,
                                             const uint8_t *keys,
                                             const size_t *key_offsets);

/*
 Commits and frees a transaction, also if the call fails, and gives the number of the commit.
 `TERRANE_CONFLICT` if another commit has changed what was read: begin anew. `commit` may be
 null.

 # Safety
 `transaction` is a handle that nobody uses during or after the call, or null; `commit` is valid
 for a write, or null.
 */
terrane_code terrane_transaction_commit(struct terrane_transaction *transaction, uint64_t *commit);

/*
 Frees a transaction; its writes are gone. Null is nothing.

 # Safety
 `transaction` is null, or a handle that nobody uses during or after the call.
 */
void terrane_transaction_rollback(struct terrane_transaction *transaction);

/*
 Makes a fork of a view. It shares all data. The caller owns `*out`.

 Cost: no I/O.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_view_fork(const struct terrane_view *view, struct terrane_fork **out);

/*
 Frees a fork. Null is nothing.

 # Safety
 `fork` is null, or a handle that nobody uses during or after the call.
 */
void terrane_fork_free(struct terrane_fork *fork);

/*
 Sets the values of `count` keys of a fork: rows as of `terrane_batch_put_many`.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_fork_put_many(struct terrane_fork *fork,
                                   size_t count,
                                   const uint8_t *keys,
                                   const size_t *key_offsets,
                                   const uint8_t *values,
                                   const size_t *value_offsets);

/*
 Removes `count` keys of a fork: rows as of `terrane_batch_delete_many`.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_fork_delete_many(struct terrane_fork *fork,
                                      size_t count,
                                      const uint8_t *keys,
                                      const size_t *key_offsets);

/*
 Makes a view of a fork as it is now. The caller owns `*out`.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_fork_view(const struct terrane_fork *fork, struct terrane_view **out);

/*
 Saves a fork as a durable snapshot: as `terrane_snapshot_save`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_fork_save(const struct terrane_fork *fork,
                               const uint8_t *name,
                               size_t name_len,
                               const uint8_t *label,
                               size_t label_len);

/*
 Names a fork as a new table, durably. The fork stays and goes its own way. The caller owns
 `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_store_install(const struct terrane_store *store,
                                   const uint8_t *name,
                                   size_t name_len,
                                   const struct terrane_fork *fork,
                                   struct terrane_table **out);

/*
 Begins the difference of two views of one store. Both may be freed. The caller owns `*out`.

 Cost: reads nothing yet; then what the views do not share.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_diff_new(const struct terrane_view *older,
                              const struct terrane_view *newer,
                              struct terrane_diff **out);

/*
 Frees a difference. Null is nothing.

 # Safety
 `diff` is null, or a handle that nobody uses during or after the call.
 */
void terrane_diff_free(struct terrane_diff *diff);

/*
 Writes the next changes, as many as fit and at most `rows_max`, and passes them. Gives their
 number, which is 0 at the end only.

 `values` has two rows for each change, the older value and the newer one, and `value_offsets`
 has room for 2 `rows_max` + 1. `found` has two bytes for each change: whether each value is
 there. `key_offsets` has room for `rows_max` + 1. If the first change alone does not fit, the
 call fails with `TERRANE_TOO_SMALL`, passes nothing, and `key_offsets[1]` and `value_offsets[2]`
 are how much it needs.

 # Safety
 Pointers are valid as their types and counts say, or null; nobody else uses the difference or
 the memory during the call.
 */
terrane_code terrane_diff_next_chunk(struct terrane_diff *diff,
                                     size_t rows_max,
                                     uint8_t *keys,
                                     size_t key_capacity,
                                     size_t *key_offsets,
                                     uint8_t *values,
                                     size_t value_capacity,
                                     size_t *value_offsets,
                                     uint8_t *found,
                                     size_t *rows);

/*
 Begins a change feed with a commit: 1 for everything, and the last commit + 1 for what is still
 to come. Only what is durable is told. If the store has let go of that part of its log, the call
 fails, and its message names the first commit that is there. The caller owns `*out`.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_changes_new(const struct terrane_store *store,
                                 uint64_t from_commit,
                                 struct terrane_changes **out);

/*
 Makes a feed with a name, durably, that begins with a commit, or with what is still to come if
 `from_commit` is 0. From then on the store keeps its log for it, up to a limit, also while it is
 closed. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_feed_create(const struct terrane_store *store,
                                 const uint8_t *name,
                                 size_t name_len,
                                 uint64_t from_commit,
                                 struct terrane_changes **out);

/*
 Opens a feed by its name, behind the commit that was acknowledged last. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_feed_open(const struct terrane_store *store,
                               const uint8_t *name,
                               size_t name_len,
                               struct terrane_changes **out);

/*
 Removes a feed by its name. The store lets go of the log that only this feed needed.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_feed_drop(const struct terrane_store *store,
                               const uint8_t *name,
                               size_t name_len);

/*
 Says that the consumer of a feed with a name is done with all commits up to this one, durably:
 no later opening of the feed tells them. `commit` is that of a `TERRANE_CHANGE_COMMIT` row.

 Cost: one write and one fsync of a file of 1 KiB.

 # Safety
 `changes` is a handle that no other thread uses, or null.
 */
terrane_code terrane_feed_acknowledge(struct terrane_changes *changes, uint64_t commit);

/*
 Frees a feed; one with a name stays in its store. Null is nothing.

 # Safety
 `changes` is null, or a handle that nobody uses during or after the call.
 */
void terrane_changes_free(struct terrane_changes *changes);

/*
 Writes the next rows of a feed, as many as fit and at most `rows_max`, and passes them. Gives
 their number. If there is none, the call waits up to `timeout_ms` milliseconds for a commit to
 become durable, and the number is 0 if none came.

 Keys and values are as of `terrane_cursor_next_chunk`, a row that has none has no bytes there;
 `changes_out` has room for `rows_max`. If the first row alone does not fit, the call fails with
 `TERRANE_TOO_SMALL`, passes nothing, and `key_offsets[1]` and `value_offsets[1]` are how much it
 needs. After another failure, the rows since the last `TERRANE_CHANGE_COMMIT` are told again.

 Cost: reads the log once, in pieces.

 # Safety
 Pointers are valid as their types and counts say, or null; nobody else uses the feed or the
 memory during the call.
 */
terrane_code terrane_changes_next_chunk(struct terrane_changes *changes,
                                        uint64_t timeout_ms,
                                        size_t rows_max,
                                        struct terrane_change *changes_out,
                                        uint8_t *keys,
                                        size_t key_capacity,
                                        size_t *key_offsets,
                                        uint8_t *values,
                                        size_t value_capacity,
                                        size_t *value_offsets,
                                        size_t *rows);

/*
 Gives the names of all tables, sorted, each followed by a zero byte, and the bytes of all in
 `*len`. If `capacity` is too small, the call fails with `TERRANE_TOO_SMALL` and `*len` is right.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_table_list(const struct terrane_store *store,
                                uint8_t *names,
                                size_t capacity,
                                size_t *len);

/*
 Renames a table. Handles of the table stay.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_table_rename(const struct terrane_store *store,
                                  const uint8_t *from,
                                  size_t from_len,
                                  const uint8_t *to,
                                  size_t to_len);

/*
 Makes or renews a backup in a directory, while commits go on. `report` may be null.

 Cost: a checkpoint; reads and writes each file that is not there yet once.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_store_back_up(const struct terrane_store *store,
                                   const uint8_t *dir,
                                   size_t dir_len,
                                   struct terrane_backup_report *report);

/*
 Merges the runs of all tables, so that nothing is left of deleted and overwritten entries.

 Cost: reads and writes every table once.

 # Safety
 `store` is a handle, or null.
 */
terrane_code terrane_store_compact(const struct terrane_store *store);

/*
 Gives the number of entries of a view, and the SHA-256 of its canonical export, 32 bytes. Either
 may be null.

 Cost: a scan of the whole view.

 # Safety
 Pointers are valid as their types say, or null; `digest` for writes of 32 bytes.
 */
terrane_code terrane_view_digest(const struct terrane_view *view, uint64_t *count, uint8_t *digest);

/*
 Gives the shape of a table and what it has counted.

 Cost: no I/O.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_table_get_stats(const struct terrane_table *table,
                                     struct terrane_table_stats *out);

/*
 Opens the index of a directory for writing, or makes one for keys and values of any length.
 `memory_bytes` is for its pages and updates; 0 for the default. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_index_open(const uint8_t *dir,
                                size_t dir_len,
                                size_t memory_bytes,
                                struct terrane_index **out);

/*
 Flushes and closes an index and frees the handle, also if the call fails. Null is nothing.

 # Safety
 `index` is null, or a handle that nobody uses during or after the call.
 */
terrane_code terrane_index_close(struct terrane_index *index);

/*
 Sets the values of `count` keys, all or none: rows as of `terrane_batch_put_many`. The update is
 visible at once, and durable after `terrane_index_flush`.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_index_put_many(const struct terrane_index *index,
                                    size_t count,
                                    const uint8_t *keys,
                                    const size_t *key_offsets,
                                    const uint8_t *values,
                                    const size_t *value_offsets);

/*
 Removes `count` keys, all or none, and gives how many were there. `removed` may be null.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_index_delete_many(const struct terrane_index *index,
                                       size_t count,
                                       const uint8_t *keys,
                                       const size_t *key_offsets,
                                       size_t *removed);

/*
 Looks up `count` keys: as `terrane_view_get_many`.

 # Safety
 The contract of `terrane_view_get_many`.
 */
terrane_code terrane_index_get_many(const struct terrane_index *index,
                                    size_t count,
                                    const uint8_t *keys,
                                    const size_t *key_offsets,
                                    uint8_t *values_out,
                                    size_t capacity,
                                    size_t *value_offsets,
                                    uint8_t *found);

/*
 Gives the number of entries. Costs nothing.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_index_len(const struct terrane_index *index, uint64_t *out);

/*
 Shows all updates to readers in other processes; with `sync`, they survive a loss of power, too.

 # Safety
 `index` is a handle, or null.
 */
terrane_code terrane_index_flush(const struct terrane_index *index, bool sync);

/*
 Makes a cursor over the keys from `from` on and below `to`, ascending. Null for `to` means to
 the last key. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_index_cursor_new(const struct terrane_index *index,
                                      const uint8_t *from,
                                      size_t from_len,
                                      const uint8_t *to,
                                      size_t to_len,
                                      struct terrane_index_cursor **out);

/*
 Frees a cursor. Null is nothing.

 # Safety
 `cursor` is null, or a handle that nobody uses during or after the call.
 */
void terrane_index_cursor_free(struct terrane_index_cursor *cursor);

/*
 Writes the next entries and passes them: as `terrane_cursor_next_chunk`.

 # Safety
 The contract of `terrane_cursor_next_chunk`.
 */
terrane_code terrane_index_cursor_next_chunk(struct terrane_index_cursor *cursor,
                                             size_t rows_max,
                                             uint8_t *keys,
                                             size_t key_capacity,
                                             size_t *key_offsets,
                                             uint8_t *values,
                                             size_t value_capacity,
                                             size_t *value_offsets,
                                             size_t *rows);

/*
 Opens the radix state of a directory, whatever its back-end, or makes one over LSM tables.
 `durability_of_commits` is a `terrane_durability`. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_radix_open(const uint8_t *dir,
                                size_t dir_len,
                                uint32_t durability_of_commits,
                                struct terrane_radix **out);

/*
 Closes a radix state and frees the handle, also if the call fails. Null is nothing.

 # Safety
 `state` is null, or a handle that nobody uses during or after the call.
 */
terrane_code terrane_radix_close(struct terrane_radix *state);

/*
 Opens a named tree, or makes one. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_radix_tree_open(const struct terrane_radix *state,
                                     const uint8_t *name,
                                     size_t name_len,
                                     struct terrane_radix_tree **out);

/*
 Frees a tree's handle; the tree stays. Null is nothing.

 # Safety
 `tree` is null, or a handle that nobody uses during or after the call.
 */
void terrane_radix_tree_free(struct terrane_radix_tree *tree);

/*
 Gives the root of the empty state, 32 bytes.

 # Safety
 `root` is valid for writes of 32 bytes, or null.
 */
terrane_code terrane_radix_empty_root(uint8_t *root);

/*
 Sets the values of `count` addresses and deletes those of `delete_count`, on top of the retained
 root `parent`, and gives the new root. All are rows as of `terrane_batch_put_many`. An address
 that is deleted must have a value; none is named twice. Roots have 32 bytes; `root` may be
 `parent`.

 Cost: reads the nodes on the paths, level by level, and writes the new ones.

 # Safety
 Pointers are valid as their types and counts say, or null.
 */
terrane_code terrane_radix_commit(const struct terrane_radix_tree *tree,
                                  const uint8_t *parent,
                                  size_t count,
                                  const uint8_t *set_addresses,
                                  const size_t *set_offsets,
                                  const uint8_t *values,
                                  const size_t *value_offsets,
                                  size_t delete_count,
                                  const uint8_t *delete_addresses,
                                  const size_t *delete_offsets,
                                  uint8_t *root);

/*
 Looks up `count` addresses in the state of a root: as `terrane_view_get_many`.

 # Safety
 The contract of `terrane_view_get_many`; `root` is valid for reads of 32 bytes.
 */
terrane_code terrane_radix_get_many(const struct terrane_radix_tree *tree,
                                    const uint8_t *root,
                                    size_t count,
                                    const uint8_t *keys,
                                    const size_t *key_offsets,
                                    uint8_t *values_out,
                                    size_t capacity,
                                    size_t *value_offsets,
                                    uint8_t *found);

/*
 Proves the values of `count` addresses in the state of a root, or that they have none, for
 `terrane_radix_verify`. `compact` chooses the smaller form. If `capacity` is too small, the call
 fails with `TERRANE_TOO_SMALL` and `*len` is how much is needed.

 # Safety
 Pointers are valid as their types and counts say, or null; `root` for reads of 32 bytes.
 */
terrane_code terrane_radix_prove(const struct terrane_radix_tree *tree,
                                 const uint8_t *root,
                                 size_t count,
                                 const uint8_t *keys,
                                 const size_t *key_offsets,
                                 bool compact,
                                 uint8_t *proof,
                                 size_t capacity,
                                 size_t *len);

/*
 Removes a version of a tree. Nodes that no other version reaches go with it.

 # Safety
 `tree` is a handle and `root` valid for reads of 32 bytes, or either is null.
 */
terrane_code terrane_radix_prune(const struct terrane_radix_tree *tree, const uint8_t *root);

/*
 Opens a table with a root, or makes one. The caller owns `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_committed_open(const struct terrane_store *store,
                                    const uint8_t *name,
                                    size_t name_len,
                                    struct terrane_committed **out);

/*
 Frees a table's handle; the table stays. Null is nothing.

 # Safety
 `table` is null, or a handle that nobody uses during or after the call.
 */
void terrane_committed_free(struct terrane_committed *table);

/*
 Gives the entries as a table, for reading only: a change of theirs would not change the root.
 The caller owns `*out`.

 # Safety
 Pointers are valid as their types say, or null.
 */
terrane_code terrane_committed_entries(const struct terrane_committed *table,
                                       struct terrane_table **out);

/*
 Gives the root, 32 bytes.

 # Safety
 `table` is a handle and `root` valid for writes of 32 bytes, or either is null.
 */
terrane_code terrane_committed_root(const struct terrane_committed *table, uint8_t *root);

/*
 Sets the values of `count` keys and deletes `delete_count` keys in one commit, with the store's
 durability, and gives the new root. All are rows as of `terrane_batch_put_many`; no key is named
 twice. Deleting an absent key changes nothing. `TERRANE_CONFLICT` if another commit of the store
 came between: do it again.

 # Safety
 Pointers are valid as their types and counts say, or null; `root` for writes of 32 bytes.
 */
terrane_code terrane_committed_write(const struct terrane_committed *table,
                                     size_t count,
                                     const uint8_t *keys,
                                     const size_t *key_offsets,
                                     const uint8_t *values,
                                     const size_t *value_offsets,
                                     size_t delete_count,
                                     const uint8_t *delete_keys,
                                     const size_t *delete_offsets,
                                     uint8_t *root);

/*
 Proves the value of a key, or its absence, for `terrane_committed_verify`: the nodes on its
 path, from the root down, as rows, and their number in `*node_count`. `node_offsets` has room
 for `nodes_max` + 1. If either memory is too small, the call fails with `TERRANE_TOO_SMALL`;
 `*node_count` is right then, and if that is at most `nodes_max`, so is
 `node_offsets[*node_count]`.

 # Safety
 Pointers are valid as their types and counts say, or null.
 */
terrane_code terrane_committed_prove(const struct terrane_committed *table,
                                     const uint8_t *key,
                                     size_t key_len,
                                     size_t nodes_max,
                                     uint8_t *nodes,
                                     size_t capacity,
                                     size_t *node_offsets,
                                     size_t *node_count);

/*
 Opens the state of a directory, or makes one. `durability_of_blocks` is a `terrane_durability`.
 With `history`, blocks keep what `terrane_mpt_reorg_to` and older heights need. The caller owns
 `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_mpt_open(const uint8_t *dir,
                              size_t dir_len,
                              uint32_t durability_of_blocks,
                              bool history,
                              struct terrane_mpt **out);

/*
 Closes a state and frees the handle, also if the call fails. Null is nothing.

 # Safety
 `state` is null, or a handle that nobody uses during or after the call.
 */
terrane_code terrane_mpt_close(struct terrane_mpt *state);

/*
 Commits a block: accounts in their order, then slots, and codes as rows. `parent` is the hash of
 the block before, all zero for the first one; `block` is the hash of this one. Gives the new
 root. Hashes have 32 bytes.

 # Safety
 Pointers are valid as their types and counts say, or null.
 */
terrane_code terrane_mpt_commit(const struct terrane_mpt *state,
                                uint64_t height,
                                const uint8_t *parent,
                                const uint8_t *block,
                                size_t account_count,
                                const struct terrane_mpt_account *accounts,
                                size_t slot_count,
                                const struct terrane_mpt_slot *slots,
                                size_t code_count,
                                const uint8_t *codes,
                                const size_t *code_offsets,
                                uint8_t *root);

/*
 Gives the root after the last block, and the height of that block; `TERRANE_NOT_FOUND` before
 the first one. Either may be null.

 # Safety
 Pointers are valid as their types say, or null; `root` for writes of 32 bytes.
 */
terrane_code terrane_mpt_tip(const struct terrane_mpt *state, uint64_t *height, uint8_t *root);

/*
 Looks up `count` slots, each of an account: values of 32 bytes, big-endian, zero for an absent
 one. `addresses` has 20 bytes for each, `slots` 32.

 # Safety
 Pointers are valid for as many bytes as `count` says, or null.
 */
terrane_code terrane_mpt_get_slots(const struct terrane_mpt *state,
                                   size_t count,
                                   const uint8_t *addresses,
                                   const uint8_t *slots,
                                   uint8_t *values);

/*
 Gives an account; `TERRANE_NOT_FOUND` if there is none. `address` has 20 bytes.

 # Safety
 Pointers are valid as their types say, or null; `address` for reads of 20 bytes.
 */
terrane_code terrane_mpt_get_account(const struct terrane_mpt *state,
                                     const uint8_t *address,
                                     struct terrane_mpt_account *out);

/*
 Proves an account, or one of its slots if `slot` is not null, at the last block: nodes as of
 `terrane_committed_prove`, for `terrane_mpt_verify`. The key of an account is the Keccak-256 of
 its address, under the root of the state. That of a slot is the Keccak-256 of the slot, under
 the storage root in the account's leaf.

 # Safety
 Pointers are valid as their types and counts say, or null; `address` for reads of 20 bytes,
 `slot` of 32.
 */
terrane_code terrane_mpt_prove(const struct terrane_mpt *state,
                               const uint8_t *address,
                               const uint8_t *slot,
                               size_t nodes_max,
                               uint8_t *nodes,
                               size_t capacity,
                               size_t *node_offsets,
                               size_t *node_count);

/*
 Goes back to the state after an earlier block and gives its root.

 # Safety
 `state` is a handle and `root` valid for writes of 32 bytes, or either is null.
 */
terrane_code terrane_mpt_reorg_to(const struct terrane_mpt *state, uint64_t height, uint8_t *root);

/*
 Opens the context store of a directory, or makes one, with the rules of Tezos and a B+tree as
 the index of its commits. `durability_of_commits` is a `terrane_durability`. The caller owns
 `*out`.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_context_open(const uint8_t *dir,
                                  size_t dir_len,
                                  uint32_t durability_of_commits,
                                  struct terrane_context **out);

/*
 Closes a context store and frees the handle, also if the call fails. Null is nothing.

 # Safety
 `store` is null, or a handle that nobody uses during or after the call.
 */
terrane_code terrane_context_close(struct terrane_context *store);

/*
 Gives the tree of a commit, 32 bytes; null for the empty tree. `TERRANE_NOT_FOUND` if there is
 no such commit. The caller owns `*out`.

 # Safety
 Pointers are valid as their types say, or null; `commit` for reads of 32 bytes.
 */
terrane_code terrane_context_checkout(const struct terrane_context *store,
                                      const uint8_t *commit,
                                      struct terrane_context_tree **out);

/*
 Frees a working tree. Null is nothing.

 # Safety
 `tree` is null, or a handle that nobody uses during or after the call.
 */
void terrane_context_tree_free(struct terrane_context_tree *tree);

/*
 Binds `count` paths to values: rows as of `terrane_batch_put_many`. A path is text such as
 `data/contracts/a`. If the call fails, the paths before the failing one are bound.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_context_put_many(struct terrane_context_tree *tree,
                                      size_t count,
                                      const uint8_t *paths,
                                      const size_t *path_offsets,
                                      const uint8_t *values,
                                      const size_t *value_offsets);

/*
 Unbinds `count` paths, values and whole trees alike: rows as of `terrane_context_put_many`. An
 absent path is no error.

 # Safety
 The contract of `terrane_batch_put_many`.
 */
terrane_code terrane_context_delete_many(struct terrane_context_tree *tree,
                                         size_t count,
                                         const uint8_t *paths,
                                         const size_t *path_offsets);

/*
 Looks up the values of `count` paths: as `terrane_view_get_many`. A directory has no value.

 # Safety
 The contract of `terrane_view_get_many`.
 */
terrane_code terrane_context_get_many(const struct terrane_context_tree *tree,
                                      size_t count,
                                      const uint8_t *paths,
                                      const size_t *path_offsets,
                                      uint8_t *values_out,
                                      size_t capacity,
                                      size_t *value_offsets,
                                      uint8_t *found);

/*
 Gives the hash of a working tree, 32 bytes: the root that proofs are checked against.

 # Safety
 `tree` is a handle and `root` valid for writes of 32 bytes, or either is null.
 */
terrane_code terrane_context_root(const struct terrane_context_tree *tree, uint8_t *root);

/*
 Commits a working tree and gives the hash of the commit, 32 bytes. The next commit of the tree
 is a child of this one. `date` is in seconds since the Unix epoch.

 # Safety
 Pointers are valid as their types and lengths say, or null.
 */
terrane_code terrane_context_commit(const struct terrane_context *store,
                                    struct terrane_context_tree *tree,
                                    int64_t date,
                                    const uint8_t *author,
                                    size_t author_len,
                                    const uint8_t *message,
                                    size_t message_len,
                                    uint8_t *commit);

/*
 Proves the values of `count` paths, or that they have none, for `terrane_context_verify`. If
 `capacity` is too small, the call fails with `TERRANE_TOO_SMALL` and `*len` is how much is
 needed.

 # Safety
 Pointers are valid as their types and counts say, or null.
 */
terrane_code terrane_context_prove(const struct terrane_context_tree *tree,
                                   size_t count,
                                   const uint8_t *paths,
                                   const size_t *path_offsets,
                                   uint8_t *proof,
                                   size_t capacity,
                                   size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERRANE_H */
