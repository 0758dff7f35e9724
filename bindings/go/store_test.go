// Stores from outside: errors and their codes, contexts, closed objects, goroutines, upkeep.

package terrane

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, err error, code Code) {
	t.Helper()
	var failed *Error
	if !errors.Is(err, code) || !errors.As(err, &failed) || failed.Message == "" {
		t.Fatalf("%v, not %v", err, code)
	}
}

func newStore(t *testing.T) (*Store, *Table) {
	t.Helper()
	store, err := Open(t.Context(), filepath.Join(t.TempDir(), "store"), CreateDir())
	must(t, err)
	table, err := store.CreateTable(t.Context(), "main")
	must(t, err)
	t.Cleanup(func() {
		must(t, table.Close())
		must(t, store.Close())
	})
	return store, table
}

func TestErrorsHaveCodesAndMessages(t *testing.T) {
	ctx := t.Context()
	_, err := Open(ctx, filepath.Join(t.TempDir(), "none"))
	refused(t, err, ErrNotFound)
	store, table := newStore(t)
	_, err = store.Table(ctx, "none")
	refused(t, err, ErrNotFound)
	if !strings.Contains(err.Error(), "none") {
		t.Fatalf("the message does not name the table: %v", err)
	}
	_, err = store.CreateTable(ctx, "\xff")
	refused(t, err, ErrBadInput)
	refused(t, store.RenameTable(ctx, "none", "other"), ErrNotFound)
	_, err = store.OpenSnapshot(ctx, "none", "")
	refused(t, err, ErrNotFound)

	transaction, err := store.Begin(ctx)
	must(t, err)
	refused(t, transaction.PutMany(ctx, table, RowsOf("a", "b"), RowsOf("1")), ErrBadInput)
	transaction.Rollback()
	transaction.Rollback()
	_, err = transaction.Commit(ctx)
	refused(t, err, ErrClosed)

	for code := range codeNames {
		if strings.Contains(code.Error(), "unknown") {
			t.Fatalf("code %d has no name", code)
		}
	}
}

func TestManyPutsAreThoseOfEachOfThem(t *testing.T) {
	ctx := t.Context()
	store, table := newStore(t)
	var one, many Batch
	keys, values := RowsOf("a", "", "b", "a"), RowsOf("1", "2", "", "3")
	for batch := range 2 {
		for row, key := range keys.All() {
			one.Put(table, key, values.At(row))
		}
		must(t, many.PutMany(table, keys, values))
		must(t, many.PutMany(table, &Rows{}, nil))
		refused(t, many.PutMany(table, keys, RowsOf("1")), ErrBadInput)
		if one.Len() != many.Len() || one.Size() != many.Size() {
			t.Fatalf("round %d: %d updates, %d expected", batch, many.Len(), one.Len())
		}
	}
	next, stop := iter.Pull(many.All())
	defer stop()
	for expected := range one.All() {
		if found, _ := next(); !reflect.DeepEqual(found, expected) {
			t.Fatalf("%v, expected %v", found, expected)
		}
	}
	_, err := store.Write(ctx, &many)
	must(t, err)
	value, _, err := table.Get(ctx, []byte("a"))
	must(t, err)
	if string(value) != "3" {
		t.Fatalf("a is %q", value)
	}
}

func TestContextsThatHaveEndedStopCalls(t *testing.T) {
	store, table := newStore(t)
	commit, err := table.Put(t.Context(), []byte("a"), []byte("1"))
	must(t, err)
	ended, cancel := context.WithCancel(t.Context())
	must(t, store.Sync(ended, commit))
	cancel()

	_, err = table.Put(ended, []byte("a"), []byte("2"))
	calls := map[string]error{
		"Put":        err,
		"Sync":       store.Sync(ended, commit),
		"Checkpoint": store.Checkpoint(ended),
		"Compact":    store.Compact(ended),
		"GetMany":    table.GetMany(ended, RowsOf("a"), &Answers{}),
	}
	_, calls["Open"] = Open(ended, "nowhere")
	_, calls["BackUp"] = store.BackUp(ended, "nowhere")
	scan := table.Scan(ended, Range{})
	for range scan.All() {
		t.Error("an entry")
	}
	calls["Scan"] = scan.Err()
	for name, err := range calls {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// A scan ends between chunks.
	var batch Batch
	for at := range 2000 {
		batch.Put(table, fmt.Appendf(nil, "%05d", at), nil)
	}
	_, err = store.Write(t.Context(), &batch)
	must(t, err)
	ended, cancel = context.WithCancel(t.Context())
	defer cancel()
	scan = table.Scan(ended, Range{})
	rows := 0
	for range scan.All() {
		rows++
		cancel()
	}
	if !errors.Is(scan.Err(), context.Canceled) || rows > rowsMax {
		t.Fatalf("%d rows, %v", rows, scan.Err())
	}
	value, found, err := table.Get(t.Context(), []byte("a"))
	must(t, err)
	if !found || string(value) != "1" {
		t.Fatalf("%q", value)
	}
}

func TestClosedObjectsRefuseCalls(t *testing.T) {
	ctx := t.Context()
	store, err := Open(ctx, filepath.Join(t.TempDir(), "store"), CreateDir())
	must(t, err)
	table, err := store.CreateTable(ctx, "main")
	must(t, err)
	view, err := table.View(ctx)
	must(t, err)
	cursor, err := view.Cursor(ctx, Range{})
	must(t, err)
	var batch Batch
	batch.Put(table, []byte("a"), []byte("1"))

	must(t, view.Close())
	must(t, view.Close())
	_, _, err = view.Get(ctx, []byte("a"))
	refused(t, err, ErrClosed)
	must(t, cursor.Close())
	if cursor.Next() {
		t.Fatal("a closed cursor has an entry")
	}
	refused(t, cursor.Err(), ErrClosed)
	must(t, store.Close())
	_, _, err = table.Get(ctx, []byte("a"))
	refused(t, err, ErrClosed)
	_, err = store.Write(ctx, &batch)
	refused(t, err, ErrClosed)
	must(t, table.Close())
	_, err = store.Write(ctx, &batch)
	refused(t, err, ErrClosed)
}

func TestGoroutinesShareAStore(t *testing.T) {
	store, table := newStore(t)
	ctx := t.Context()
	var group sync.WaitGroup
	for writer := range 4 {
		group.Go(func() {
			var batch Batch
			var answers Answers
			for round := range 50 {
				batch.Reset()
				for row := range 20 {
					key := fmt.Appendf(nil, "%d %d", writer, row)
					batch.Put(table, key, fmt.Append(nil, round))
				}
				if _, err := store.Write(ctx, &batch); err != nil {
					t.Error(err)
				}
				// Each sees what it wrote, whole.
				keys := &Rows{}
				for update := range batch.All() {
					keys.Append(update.Key)
				}
				if err := table.GetMany(ctx, keys, &answers); err != nil {
					t.Error(err)
				}
				for at, value := range answers.All() {
					if string(value) != fmt.Sprint(round) {
						t.Errorf("%q: %q in round %d", keys.At(at), value, round)
					}
				}
				_, _, err := table.Get(ended(ctx), []byte("none"))
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
		// A counter, incremented by all in transactions.
		group.Go(func() {
			for range 25 {
				_, err := store.Transact(ctx, func(transaction *Transaction) error {
					value, _, err := transaction.Get(ctx, table, []byte("counter"))
					if err != nil {
						return err
					}
					return transaction.Put(ctx, table, []byte("counter"), append(value, '+'))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	value, _, err := table.Get(ctx, []byte("counter"))
	must(t, err)
	if len(value) != 100 {
		t.Fatalf("%d increments of 100", len(value))
	}
}

// ended is a context that has ended.
func ended(ctx context.Context) context.Context {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	return ended
}

func TestTablesSnapshotsBackupsAndStatistics(t *testing.T) {
	store, table := newStore(t)
	ctx := t.Context()
	names, err := store.Tables(ctx)
	must(t, err)
	if !slices.Equal(names, []string{"main"}) {
		t.Fatalf("tables %q", names)
	}
	must(t, store.RenameTable(ctx, "main", "other"))
	must(t, store.RenameTable(ctx, "other", "main"))
	_, err = table.Put(ctx, []byte("a"), []byte("1"))
	must(t, err)
	must(t, table.SaveSnapshot(ctx, "monday", "label"))
	commit, err := table.Delete(ctx, []byte("a"))
	must(t, err)
	must(t, store.Sync(ctx, commit))
	_, err = store.OpenSnapshot(ctx, "monday", "another label")
	refused(t, err, ErrBadInput)
	snapshot, err := store.OpenSnapshot(ctx, "monday", "label")
	must(t, err)
	value, found, err := snapshot.Get(ctx, []byte("a"))
	must(t, err)
	if !found || string(value) != "1" {
		t.Fatalf("%q", value)
	}
	count, digest, err := snapshot.Digest(ctx)
	must(t, err)
	if count != 1 || digest == [32]byte{} {
		t.Fatalf("%d entries, digest %x", count, digest)
	}
	must(t, snapshot.Close())
	must(t, store.DeleteSnapshot(ctx, "monday"))

	backup := filepath.Join(t.TempDir(), "backup")
	report, err := store.BackUp(ctx, backup)
	must(t, err)
	if report.Commit < commit || report.Tables != 1 || report.BytesCopied == 0 {
		t.Fatalf("%+v", report)
	}
	stats, err := table.Stats(ctx)
	must(t, err)
	if stats.Updates != 2 || stats.UpdateBytes == 0 {
		t.Fatalf("%+v", stats)
	}
	_, err = Open(ctx, filepath.Join(t.TempDir(), "x\x00y"), CreateDir())
	if err == nil {
		t.Fatal("a store in a directory that cannot be")
	}
	if Version() == "" {
		t.Fatal("no version")
	}
}

func TestPrefixesAreRanges(t *testing.T) {
	for prefix, to := range map[string]string{"a": "b", "a\xff": "b", "\xffa": "\xffb"} {
		if in := Prefix([]byte(prefix)); string(in.From) != prefix || string(in.To) != to {
			t.Errorf("%q: %q to %q", prefix, in.From, in.To)
		}
	}
	for _, prefix := range []string{"", "\xff", "\xff\xff"} {
		if in := Prefix([]byte(prefix)); in.To != nil {
			t.Errorf("%q: to %q", prefix, in.To)
		}
	}
}

func TestFeedsTellCommits(t *testing.T) {
	store, table := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	feed, err := store.CreateFeed(ctx, "copy", 1)
	must(t, err)
	go func() {
		var batch Batch
		batch.Put(table, []byte("a"), []byte("1"))
		batch.Delete(table, []byte("b"))
		batch.DeleteRange(table, Range{From: []byte("c")})
		commit, err := store.Write(ctx, &batch)
		if err == nil {
			err = store.Sync(ctx, commit)
		}
		if err != nil {
			t.Error(err)
		}
	}()
	var told []string
	var last error
	for row, err := range feed.Follow(ctx) {
		if last = err; err != nil {
			break
		}
		told = append(told, fmt.Sprintf("%d %s %s", row.Kind, row.Key, row.Value))
		if row.Kind == ChangeCommit {
			must(t, feed.Acknowledge(ctx, row.Commit))
			cancel()
		}
	}
	if !errors.Is(last, context.Canceled) {
		t.Fatal(last)
	}
	expected := []string{
		fmt.Sprintf("%d main ", ChangeTable),
		fmt.Sprintf("%d a 1", ChangePut),
		fmt.Sprintf("%d b ", ChangeDelete),
		fmt.Sprintf("%d c ", ChangeDeleteFrom),
		fmt.Sprintf("%d  ", ChangeCommit),
	}
	if !slices.Equal(told, expected) {
		t.Fatalf("%q, not %q", told, expected)
	}
	must(t, feed.Close())

	feed, err = store.OpenFeed(t.Context(), "copy")
	must(t, err)
	rows, err := feed.Next(t.Context(), 0)
	must(t, err)
	if len(rows) > 0 {
		t.Fatalf("acknowledged rows are told again: %v", rows)
	}
	must(t, feed.Close())
	must(t, store.DropFeed(t.Context(), "copy"))
	_, err = store.OpenFeed(t.Context(), "copy")
	refused(t, err, ErrNotFound)
}
