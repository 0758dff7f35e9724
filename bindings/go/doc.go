// Package terrane is the Go interface of Terrane, an embedded store for ledger state, over its C
// library.
//
// A [Store] has named tables. A [Batch] collects updates of any of its tables in Go memory, and
// [Store.Write] hands all of them to the engine in one call. [Rows] and [Answers] are contiguous
// memory, so that a batch of lookups is one call, too, and allocates nothing for a row. [Scan]
// gives ranges as iter.Seq2.
//
//	file            contents
//	doc.go          this page, and where the C library is
//	errors.go       codes and errors
//	handle.go       objects of the C library: who may use them, who frees them, long calls
//	rows.go         rows of bytes, answers of lookups
//	store.go        stores and their options
//	table.go        tables, views, lookups
//	batch.go        batches and commits
//	scan.go         cursors and ranges
//	kept.go         snapshots and versions
//	transaction.go  optimistic transactions
//	fork.go         forks, differences of views
//	changes.go      change feeds
//	upkeep.go       backups, compaction, statistics
//	index.go        B+tree indexes
//	radix.go        radix states
//	mpt.go          tables with a root, Ethereum states
//	context.go      Merkle context stores
//	verify.go       proofs, checked without a store
//
// # Contexts
//
// A call fails with the error of its context if the context has ended before the call begins. The
// engine cannot stop in the middle of a call. Therefore a call that may take long (an fsync, a
// backup, a compaction) runs on a goroutine of its own if its context can end; once the context has
// ended, the method returns, and the engine finishes behind it. Scans look at their context before
// each chunk.
//
// # Goroutines
//
// Goroutines may share stores, tables, views, indexes and states. A batch, rows, answers and a
// cursor belong to one goroutine at a time. Close waits for calls that are under way; later calls
// fail with [ErrClosed].
package terrane

/*
#cgo CFLAGS: -I${SRCDIR}/../c/include -I${SRCDIR}/../c-verify/include
#cgo LDFLAGS: -lterrane_c -lpthread -ldl -lm

// Calls that take memory of Go for rows. They keep none of it and never call back.
#cgo noescape terrane_store_update_many
#cgo nocallback terrane_store_update_many
#cgo noescape terrane_table_get_many
#cgo nocallback terrane_table_get_many
#cgo noescape terrane_view_get_many
#cgo nocallback terrane_view_get_many
#cgo noescape terrane_cursor_next_chunk
#cgo nocallback terrane_cursor_next_chunk
#cgo noescape terrane_cursor_prev_chunk
#cgo nocallback terrane_cursor_prev_chunk

#include "terrane.h"
*/
import "C"

// Version returns the version of the C library, such as "0.1.0".
func Version() string {
	return C.GoString(C.terrane_version())
}
