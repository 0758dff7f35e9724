// Indexes, states with roots, and proofs: what is proved verifies, and nothing forged does.

package terrane

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// change flips one bit of bytes that are not empty.
func change(random *rand.Rand, bytes []byte) {
	bytes[random.IntN(len(bytes))] ^= 1 << random.IntN(8)
}

func TestIndexesAreMaps(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "index")
	index, err := OpenIndex(ctx, dir, 0)
	must(t, err)
	random := rand.New(rand.NewPCG(7, 7))
	entries := map[string]string{}
	for range 30 {
		keys, values, gone := &Rows{}, &Rows{}, &Rows{}
		removed := 0
		for range random.IntN(100) {
			key, value := fmt.Sprint(random.IntN(1000)), fmt.Sprint(random.Uint32())
			keys.Append([]byte(key))
			values.Append([]byte(value))
			entries[key] = value
		}
		must(t, index.PutMany(ctx, keys, values))
		for range random.IntN(20) {
			key := fmt.Sprint(random.IntN(1000))
			if _, ok := entries[key]; ok {
				removed++
				delete(entries, key)
				gone.Append([]byte(key))
			}
		}
		count, err := index.DeleteMany(ctx, gone)
		must(t, err)
		if count != removed {
			t.Fatalf("%d removed, not %d", count, removed)
		}
	}
	count, err := index.Len(ctx)
	must(t, err)
	if int(count) != len(entries) {
		t.Fatalf("%d entries, not %d", count, len(entries))
	}
	var keys []string
	scan := index.Scan(ctx, Range{From: []byte("2"), To: []byte("7")})
	for key, value := range scan.All() {
		keys = append(keys, string(key))
		if entries[string(key)] != string(value) {
			t.Fatalf("%q: %q", key, value)
		}
	}
	must(t, scan.Err())
	expected := slices.DeleteFunc(slices.Sorted(maps.Keys(entries)), func(key string) bool {
		return key < "2" || key >= "7"
	})
	if !slices.Equal(keys, expected) {
		t.Fatalf("%d keys, not %d", len(keys), len(expected))
	}
	_, err = index.Cursor(ctx, Range{Reverse: true})
	refused(t, err, ErrUnsupported)
	must(t, index.Flush(ctx, true))
	must(t, index.Close())

	index, err = OpenIndex(ctx, dir, 1<<20)
	must(t, err)
	value, found, err := index.Get(ctx, []byte(expected[0]))
	must(t, err)
	if !found || string(value) != entries[expected[0]] {
		t.Fatalf("%q", value)
	}
	must(t, index.Close())
}

// addresses makes rows of hashes with values of their numbers.
func addresses(from, to int) (keys, values *Rows) {
	keys, values = &Rows{}, &Rows{}
	for at := from; at < to; at++ {
		address := sha256.Sum256(fmt.Append(nil, at))
		keys.Append(address[:])
		values.Append(fmt.Append(nil, "value ", at))
	}
	return keys, values
}

func TestRadixStatesProveTheirValues(t *testing.T) {
	ctx := t.Context()
	state, err := OpenRadix(ctx, filepath.Join(t.TempDir(), "radix"), Buffered)
	must(t, err)
	tree, err := state.Tree(ctx, "main")
	must(t, err)
	keys, values := addresses(0, 300)
	first, err := tree.Commit(ctx, EmptyRadixRoot(), keys, values, nil)
	must(t, err)
	gone, _ := addresses(0, 10)
	second, err := tree.Commit(ctx, first, nil, nil, gone)
	must(t, err)
	// The same state by another way has the same root.
	kept, keptValues := addresses(10, 300)
	other, err := state.Tree(ctx, "other")
	must(t, err)
	direct, err := other.Commit(ctx, EmptyRadixRoot(), kept, keptValues, nil)
	must(t, err)
	if direct != second || first == second {
		t.Fatalf("roots %x %x %x", first, second, direct)
	}

	asked, expected := addresses(5, 15)
	var answers Answers
	check := func() {
		t.Helper()
		for at := range asked.Len() {
			value, found := answers.Get(at)
			if found != (at >= 5) || (found && !bytes.Equal(value, expected.At(at))) {
				t.Fatalf("address %d: %q %v", at, value, found)
			}
		}
	}
	must(t, tree.GetMany(ctx, second, asked, &answers))
	check()
	random := rand.New(rand.NewPCG(8, 8))
	for _, compact := range []bool{false, true} {
		proof, err := tree.Prove(ctx, second, asked, compact)
		must(t, err)
		must(t, VerifyRadix(second, proof, asked, &answers))
		check()
		refused(t, VerifyRadix(first, proof, asked, &answers), ErrInvalidProof)
		refused(t, VerifyRadix(second, proof[:len(proof)-1], asked, &answers), ErrInvalidProof)
		for range 200 {
			forged := bytes.Clone(proof)
			change(random, forged)
			if VerifyRadix(second, forged, asked, &answers) == nil {
				check()
			}
		}
	}
	must(t, tree.Prune(ctx, first))
	if tree.GetMany(ctx, first, asked, &answers) == nil {
		t.Fatal("a pruned root answers")
	}
	must(t, tree.Close())
	must(t, other.Close())
	must(t, state.Close())
}

func TestCommittedTablesProveTheirValues(t *testing.T) {
	ctx := t.Context()
	store, _ := newStore(t)
	table, err := store.CommittedTable(ctx, "accounts")
	must(t, err)
	empty, err := table.Root(ctx)
	must(t, err)
	keys, values := addresses(0, 100)
	root, err := table.Write(ctx, keys, values, nil)
	must(t, err)
	now, err := table.Root(ctx)
	must(t, err)
	if now != root || root == empty {
		t.Fatalf("root %x, not %x", now, root)
	}
	entries, err := table.Entries(ctx)
	must(t, err)
	found, isThere, err := entries.Get(ctx, keys.At(3))
	must(t, err)
	if !isThere || !bytes.Equal(found, values.At(3)) {
		t.Fatalf("%q", found)
	}
	must(t, entries.Close())

	random := rand.New(rand.NewPCG(9, 9))
	for _, key := range [][]byte{keys.At(3), []byte("absent")} {
		nodes, err := table.Prove(ctx, key)
		must(t, err)
		value, isThere, err := VerifyCommitted(root, key, nodes)
		must(t, err)
		if isThere != bytes.Equal(key, keys.At(3)) || (isThere && !bytes.Equal(value, values.At(3))) {
			t.Fatalf("%q %v", value, isThere)
		}
		_, _, err = VerifyCommitted(empty, key, nodes)
		refused(t, err, ErrInvalidProof)
		for range 100 {
			forged := &Rows{}
			at := random.IntN(nodes.Len())
			for number, node := range nodes.All() {
				node = bytes.Clone(node)
				if number == at {
					change(random, node)
				}
				forged.Append(node)
			}
			_, _, err = VerifyCommitted(root, key, forged)
			refused(t, err, ErrInvalidProof)
		}
	}
	back, err := table.Write(ctx, nil, nil, keys)
	must(t, err)
	if back != empty {
		t.Fatalf("root %x of no entries, not %x", back, empty)
	}
	must(t, table.Close())
}

func TestEthereumStatesProveAccountsAndSlots(t *testing.T) {
	ctx := t.Context()
	state, err := OpenMPT(ctx, filepath.Join(t.TempDir(), "mpt"), Buffered, true)
	must(t, err)
	_, _, err = state.Tip(ctx)
	refused(t, err, ErrNotFound)
	alice, bob := Address{19: 1}, Address{19: 2}
	slot := Slot{Address: alice, Slot: [32]byte{31: 7}}
	first := &Block{
		Height: 0,
		Hash:   [32]byte{1},
		Accounts: []AccountChange{
			{Address: alice, Account: &Account{Nonce: 1, Balance: [32]byte{31: 100}}},
			{Address: bob, Account: &Account{Balance: [32]byte{31: 7}}},
		},
		Slots: []SlotChange{{Address: alice, Slot: slot.Slot, Value: [32]byte{31: 9}}},
	}
	root, err := state.Commit(ctx, first)
	must(t, err)
	second := &Block{
		Height:   1,
		Parent:   first.Hash,
		Hash:     [32]byte{2},
		Accounts: []AccountChange{{Address: bob}},
	}
	newer, err := state.Commit(ctx, second)
	must(t, err)
	height, tip, err := state.Tip(ctx)
	must(t, err)
	if height != 1 || tip != newer || newer == root {
		t.Fatalf("height %d, root %x", height, tip)
	}
	account, err := state.Account(ctx, alice)
	must(t, err)
	if account.Nonce != 1 || account.Balance[31] != 100 {
		t.Fatalf("%+v", account)
	}
	_, err = state.Account(ctx, bob)
	refused(t, err, ErrNotFound)
	values, err := state.Slots(ctx, []Slot{slot, {Address: bob}})
	must(t, err)
	if values[0] != [32]byte{31: 9} || values[1] != [32]byte{} {
		t.Fatalf("%x", values)
	}

	for _, prove := range []func() (*Rows, error){
		func() (*Rows, error) { return state.ProveAccount(ctx, alice) },
		func() (*Rows, error) { return state.ProveSlot(ctx, slot) },
	} {
		nodes, err := prove()
		must(t, err)
		if nodes.Len() == 0 || len(nodes.At(0)) == 0 {
			t.Fatal("an empty proof")
		}
	}
	// The key of this account, and what its leaf must hold: RLP of nonce, balance and two hashes.
	key := []byte("\x14\x68\x28\x80\x56\x31\x0c\x82\xaa\x4c\x01\xa7\xe1\x2a\x10\xf8" +
		"\x11\x1a\x05\x60\xe7\x2b\x70\x05\x55\x47\x90\x31\xb8\x6c\x35\x7d")
	nodes, err := state.ProveAccount(ctx, alice)
	must(t, err)
	leaf, found, err := VerifyMPT(newer, key, nodes)
	must(t, err)
	if !found || len(leaf) < 70 {
		t.Fatalf("%x", leaf)
	}
	_, _, err = VerifyMPT(root, key, nodes)
	refused(t, err, ErrInvalidProof)

	back, err := state.ReorgTo(ctx, 0)
	must(t, err)
	if back != root {
		t.Fatalf("root %x, not %x", back, root)
	}
	must(t, state.Close())
}

func TestContextsProveTheirPaths(t *testing.T) {
	ctx := t.Context()
	store, err := OpenContext(ctx, filepath.Join(t.TempDir(), "context"), Buffered)
	must(t, err)
	tree, err := store.Checkout(ctx, nil)
	must(t, err)
	must(t, tree.PutMany(ctx, RowsOf("data/a", "data/b", "other/c"), RowsOf("1", "2", "3")))
	must(t, tree.DeleteMany(ctx, RowsOf("data/b")))
	commit, err := tree.Commit(ctx, time.Unix(1, 0), "author", "message")
	must(t, err)
	must(t, tree.Close())
	_, err = store.Checkout(ctx, &CommitHash{1})
	refused(t, err, ErrNotFound)

	tree, err = store.Checkout(ctx, &commit)
	must(t, err)
	root, err := tree.Root(ctx)
	must(t, err)
	paths := RowsOf("data/a", "data/b")
	var answers Answers
	check := func() {
		t.Helper()
		value, found := answers.Get(0)
		if _, isThere := answers.Get(1); !found || string(value) != "1" || isThere {
			t.Fatalf("%q %v %v", value, found, isThere)
		}
	}
	must(t, tree.GetMany(ctx, paths, &answers))
	check()
	proof, err := tree.Prove(ctx, paths)
	must(t, err)
	must(t, VerifyContext(root, proof, paths, &answers))
	check()
	refused(t, VerifyContext(root, proof, RowsOf("other/c"), &answers), ErrInvalidProof)
	refused(t, VerifyContext(Root{}, proof, paths, &answers), ErrInvalidProof)
	random := rand.New(rand.NewPCG(10, 10))
	for range 200 {
		forged := bytes.Clone(proof)
		change(random, forged)
		if VerifyContext(root, forged, paths, &answers) == nil {
			check()
		}
	}
	must(t, tree.Close())
	must(t, store.Close())
}
