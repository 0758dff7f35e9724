// The change feed of a store: every durable commit in order, as rows.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
	"iter"
	"time"
	"unsafe"
)

// ChangeKind is the kind of a row of a change feed.
type ChangeKind uint32

// Kinds of rows.
const (
	// ChangeDelete removed the key.
	ChangeDelete ChangeKind = C.TERRANE_CHANGE_DELETE
	// ChangePut set the value of the key.
	ChangePut ChangeKind = C.TERRANE_CHANGE_PUT
	// ChangeDeleteRange removed all keys from the key on that are below the value.
	ChangeDeleteRange ChangeKind = C.TERRANE_CHANGE_DELETE_RANGE
	// ChangeDeleteFrom removed all keys from the key on.
	ChangeDeleteFrom ChangeKind = C.TERRANE_CHANGE_DELETE_FROM
	// ChangeUpsert merged the value into that of the key.
	ChangeUpsert ChangeKind = C.TERRANE_CHANGE_UPSERT
	// ChangeBlob has the blob of the key of the row before, which put it.
	ChangeBlob ChangeKind = C.TERRANE_CHANGE_BLOB
	// ChangeTable names the table that the updates behind it are of; the key is its name.
	ChangeTable ChangeKind = C.TERRANE_CHANGE_TABLE
	// ChangeCommit means that the rows before are all of the commit. Table is the first commit that
	// they stand for: the same, or an earlier one.
	ChangeCommit ChangeKind = C.TERRANE_CHANGE_COMMIT
	// ChangeTableCreated made an empty table; the key is its name.
	ChangeTableCreated ChangeKind = C.TERRANE_CHANGE_TABLE_CREATED
	// ChangeTableDropped dropped a table; the key is its name.
	ChangeTableDropped ChangeKind = C.TERRANE_CHANGE_TABLE_DROPPED
	// ChangeTableRenamed gave a table another name: the key is the new one, the value the old one.
	ChangeTableRenamed ChangeKind = C.TERRANE_CHANGE_TABLE_RENAMED
	// ChangeTableLoaded brought a table with entries that the feed does not tell; the key is its
	// name.
	ChangeTableLoaded ChangeKind = C.TERRANE_CHANGE_TABLE_LOADED
	// ChangeRolledBack made all tables what they were in a version, whose number is Table. Rows of
	// tables that went and of tables that came back follow.
	ChangeRolledBack ChangeKind = C.TERRANE_CHANGE_ROLLED_BACK
	// ChangeTableGone is a table that went with the roll-back; the key is its name.
	ChangeTableGone ChangeKind = C.TERRANE_CHANGE_TABLE_GONE
	// ChangeTableBack is a table that came back with the roll-back; the key is its name.
	ChangeTableBack ChangeKind = C.TERRANE_CHANGE_TABLE_BACK
)

// FeedRow is a row of a change feed. Key and Value change with the next rows.
type FeedRow struct {
	Kind ChangeKind
	// Commit is the number of the commit; 0 where there is none.
	Commit uint64
	// Table is the number of the table, which no other table gets, unless the kind says otherwise.
	Table      uint64
	Key, Value []byte
}

// Feed is a change feed; until it is closed, the store keeps its log from the feed's place on. One
// goroutine at a time.
type Feed struct {
	handle  handle
	chunk   chunk
	changes [rowsMax]C.struct_terrane_change
	rows    []FeedRow
}

// Changes begins a feed with a commit: 1 for everything, and the last commit + 1 for what is still
// to come. Only what is durable is told. ErrNotFound if the store has let go of that part of its
// log.
func (s *Store) Changes(ctx context.Context, fromCommit uint64) (*Feed, error) {
	return s.feed(ctx, func(store *C.struct_terrane_store, out **C.struct_terrane_changes) code {
		return C.terrane_changes_new(store, C.uint64_t(fromCommit), out)
	})
}

// CreateFeed makes a feed with a name, durably, that begins with a commit, or with what is still to
// come if fromCommit is 0. From then on the store keeps its log for it, up to a limit, also while
// it is closed.
func (s *Store) CreateFeed(ctx context.Context, name string, fromCommit uint64) (*Feed, error) {
	return s.feed(ctx, func(store *C.struct_terrane_store, out **C.struct_terrane_changes) code {
		text, length := cText(name)
		return C.terrane_feed_create(store, text, length, C.uint64_t(fromCommit), out)
	})
}

// OpenFeed opens a feed by its name, behind the commit that was acknowledged last.
func (s *Store) OpenFeed(ctx context.Context, name string) (*Feed, error) {
	return s.feed(ctx, func(store *C.struct_terrane_store, out **C.struct_terrane_changes) code {
		text, length := cText(name)
		return C.terrane_feed_open(store, text, length, out)
	})
}

func (s *Store) feed(
	ctx context.Context,
	make func(store *C.struct_terrane_store, out **C.struct_terrane_changes) code,
) (*Feed, error) {
	feed := &Feed{}
	err := s.use(ctx, func(store *C.struct_terrane_store) code {
		var made *C.struct_terrane_changes
		failed := make(store, &made)
		feed.handle.pointer = unsafe.Pointer(made)
		return failed
	})
	return opened(feed, err)
}

// DropFeed removes a feed by its name. The store lets go of the log that only this feed needed.
func (s *Store) DropFeed(ctx context.Context, name string) error {
	return s.use(ctx, func(store *C.struct_terrane_store) code {
		text, length := cText(name)
		return C.terrane_feed_drop(store, text, length)
	})
}

// Next gives the next rows in memory that the next call reuses. If there is none, it waits up to
// this long until a commit becomes durable; no rows mean that none came. The context is looked at
// before. After a failure, the rows since the last ChangeCommit are told again.
//
// Cost: reads the log once, in pieces.
func (f *Feed) Next(ctx context.Context, wait time.Duration) ([]FeedRow, error) {
	timeout := C.uint64_t(max(wait.Milliseconds(), 0))
	err := f.chunk.fill(func(c *chunk, rows *C.size_t) error {
		return f.handle.useAlone(ctx, func(pointer unsafe.Pointer) code {
			return C.terrane_changes_next_chunk((*C.struct_terrane_changes)(pointer), timeout,
				C.size_t(len(c.keyOffsets)-1), &f.changes[0],
				(*C.uint8_t)(unsafe.SliceData(c.keys)), C.size_t(len(c.keys)), &c.keyOffsets[0],
				(*C.uint8_t)(unsafe.SliceData(c.values)), C.size_t(len(c.values)),
				&c.valueOffsets[0], rows)
		})
	})
	if err != nil {
		return nil, err
	}
	f.rows = f.rows[:0]
	for at := range f.chunk.rows {
		change := &f.changes[at]
		f.rows = append(f.rows, FeedRow{
			Kind:   ChangeKind(change.kind),
			Commit: uint64(change.commit),
			Table:  uint64(change.table),
			Key:    f.chunk.keys[f.chunk.keyOffsets[at]:f.chunk.keyOffsets[at+1]],
			Value:  f.chunk.values[f.chunk.valueOffsets[at]:f.chunk.valueOffsets[at+1]],
		})
	}
	return f.rows, nil
}

// followWait is how long a call of the engine waits before a feed looks at its context again.
const followWait = 50 * time.Millisecond

// Follow gives all rows and waits for more, until the context ends or the feed fails; the last pair
// has the error.
func (f *Feed) Follow(ctx context.Context) iter.Seq2[FeedRow, error] {
	return func(yield func(FeedRow, error) bool) {
		for {
			rows, err := f.Next(ctx, followWait)
			if err != nil {
				yield(FeedRow{}, err)
				return
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
		}
	}
}

// Acknowledge says that the consumer of a feed with a name is done with all commits up to this one,
// durably: no later opening of the feed tells them. commit is that of a ChangeCommit row.
//
// Cost: one write and one fsync of a file of 1 KiB.
func (f *Feed) Acknowledge(ctx context.Context, commit uint64) error {
	return f.handle.useAlone(ctx, func(pointer unsafe.Pointer) code {
		return C.terrane_feed_acknowledge((*C.struct_terrane_changes)(pointer), C.uint64_t(commit))
	})
}

// Close frees the feed; one with a name stays in its store.
func (f *Feed) Close() error {
	return f.handle.close(func(pointer unsafe.Pointer) code {
		C.terrane_changes_free((*C.struct_terrane_changes)(pointer))
		return C.TERRANE_OK
	})
}
