// Command history runs the history of bindings/c/examples/history.rs, which describes it.
//
// usage: history FILE EMPTY_FOLDER
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"terrane"
)

const (
	deleteKey = iota
	put
	deleteRange
	lookUp
	commit
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: history FILE EMPTY_FOLDER")
	}
	history, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	if err := run(context.Background(), history, os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// target is what a history goes to.
type target struct {
	store     *terrane.Store
	plain     *terrane.Table
	committed *terrane.CommittedTable
	tree      *terrane.RadixTree
	root      terrane.Root
	fold      uint64

	puts, values, deletes, asked terrane.Rows
	ranges                       []terrane.Range
	batch                        terrane.Batch
	answers                      terrane.Answers
}

func run(ctx context.Context, history []byte, dir string) error {
	store, err := terrane.Open(ctx, filepath.Join(dir, "store"), terrane.CreateDir(),
		terrane.WithDurability(terrane.Buffered))
	if err != nil {
		return err
	}
	to := &target{store: store, root: terrane.EmptyRadixRoot(), fold: 0xcbf29ce484222325}
	if to.plain, err = store.CreateTable(ctx, "plain"); err != nil {
		return err
	}
	if to.committed, err = store.CommittedTable(ctx, "committed"); err != nil {
		return err
	}
	radix, err := terrane.OpenRadix(ctx, filepath.Join(dir, "radix"), terrane.Buffered)
	if err != nil {
		return err
	}
	if to.tree, err = radix.Tree(ctx, "main"); err != nil {
		return err
	}

	for at := 0; at < len(history); {
		kind, key := history[at], field(history, at+1)
		value := field(history, at+2+len(key))
		at += 3 + len(key) + len(value)
		switch kind {
		case put:
			to.puts.Append(key)
			to.values.Append(value)
		case deleteKey:
			to.deletes.Append(key)
		case deleteRange:
			to.ranges = append(to.ranges, terrane.Range{From: key, To: value})
		case lookUp:
			to.asked.Append(key)
		case commit:
			if err := to.commit(ctx); err != nil {
				return err
			}
		}
	}
	if err := to.print(ctx); err != nil {
		return err
	}
	for _, one := range []interface{ Close() error }{to.plain, to.committed, to.tree, radix, store} {
		if err := one.Close(); err != nil {
			return err
		}
	}
	return nil
}

// field is bytes after their length.
func field(history []byte, at int) []byte {
	from := at + 1
	return history[from : from+int(history[at])]
}

// commit applies the operations since the commit before.
func (t *target) commit(ctx context.Context) error {
	t.batch.Reset()
	for at, key := range t.puts.All() {
		t.batch.Put(t.plain, key, t.values.At(at))
	}
	for _, key := range t.deletes.All() {
		t.batch.Delete(t.plain, key)
	}
	if _, err := t.store.Write(ctx, &t.batch); err != nil {
		return err
	}
	for _, in := range t.ranges {
		t.batch.Reset()
		t.batch.DeleteRange(t.plain, in)
		if _, err := t.store.Write(ctx, &t.batch); err != nil {
			return err
		}
	}
	if _, err := t.committed.Write(ctx, &t.puts, &t.values, &t.deletes); err != nil {
		return err
	}
	root, err := t.tree.Commit(ctx, t.root, &t.puts, &t.values, &t.deletes)
	if err != nil {
		return err
	}
	t.root = root
	if err := t.plain.GetMany(ctx, &t.asked, &t.answers); err != nil {
		return err
	}
	for at := range t.answers.Len() {
		value, found := t.answers.Get(at)
		if found {
			t.foldByte(1)
		} else {
			t.foldByte(0)
		}
		for _, one := range value {
			t.foldByte(one)
		}
	}
	for _, rows := range []*terrane.Rows{&t.puts, &t.values, &t.deletes, &t.asked} {
		rows.Reset()
	}
	t.ranges = t.ranges[:0]
	return nil
}

func (t *target) foldByte(one byte) {
	t.fold = (t.fold ^ uint64(one)) * 0x100000001b3
}

func (t *target) print(ctx context.Context) error {
	view, err := t.plain.View(ctx)
	if err != nil {
		return err
	}
	count, digest, err := view.Digest(ctx)
	if err != nil {
		return err
	}
	committed, err := t.committed.Root(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("plain %d %x\ncommitted %x\nradix %x\nanswers %016x\n",
		count, digest, committed, t.root, t.fold)
	return view.Close()
}
