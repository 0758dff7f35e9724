package main

import (
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethdb"
	"github.com/ethereum/go-ethereum/ethdb/pebble"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/ethereum/go-ethereum/trie/trienode"
	"github.com/ethereum/go-ethereum/triedb"
	"github.com/ethereum/go-ethereum/triedb/pathdb"
)

// pathdbEngine is the path-based state of go-ethereum over its own Pebble: an account trie whose
// keys are the hashes of the workload's keys, and flat accounts beside it. No account has storage.
//
// Settings: half of the memory, since it reads through the page cache, split as geth splits its
// --cache (database 50, clean trie 15, dirty buffer 25, snapshot 10 per cent). It keeps no history.
// geth itself makes states durable now and then and executes the blocks since anew; here each block
// is to be durable, so each is flattened into the disk layer, and Pebble's log is synced then.
// Updates take its parallel calls: Prefetch, UpdateBatch, Commit. It has no call for many reads. A
// load takes the way of a snap sync: flat accounts and the nodes of a stack trie, by hash.
type pathdbEngine struct {
	disk   ethdb.Database
	db     *triedb.Database
	cache  int64
	root   common.Hash
	blocks uint64
	// Of a load.
	loaded *trie.StackTrie
	writes ethdb.Batch
}

const (
	pathdbScheme = "keccak-mpt"
	// loadBatchBytes is the size of a batch of a load.
	loadBatchBytes = 16 << 20
)

func openPathdb(dir string, t terms) (engine, error) {
	cache := t.memory / 2
	kv, err := pebble.New(dir, int(cache*50/100>>20), 10_000, "", false)
	if err != nil {
		return nil, err
	}
	disk := rawdb.NewDatabase(kv)
	root := types.EmptyRootHash
	if node := rawdb.ReadAccountTrieNode(disk, nil); len(node) > 0 {
		root = crypto.Keccak256Hash(node)
	}
	db := triedb.NewDatabase(disk, &triedb.Config{PathDB: &pathdb.Config{
		TrieCleanSize:   int(cache * 15 / 100),
		StateCleanSize:  int(cache * 10 / 100),
		WriteBufferSize: int(cache * 25 / 100),
		TrienodeHistory: -1,
		NoAsyncFlush:    true,
	}})
	return &pathdbEngine{disk: disk, db: db, cache: cache, root: root}, nil
}

func (p *pathdbEngine) version() string { return moduleVersion("github.com/ethereum/go-ethereum") }

func (p *pathdbEngine) settings() map[string]string {
	return map[string]string{
		"pebble_cache": fmt.Sprint(p.cache * 50 / 100), "trie_clean": fmt.Sprint(p.cache * 15 / 100),
		"write_buffer": fmt.Sprint(p.cache * 25 / 100), "state_clean": fmt.Sprint(p.cache * 10 / 100),
		"history": "none", "flush": "each block, synced", "scheme": pathdbScheme,
	}
}

// loadOrder is the order in which load wants its entries.
func (p *pathdbEngine) loadOrder(key []byte) []byte { return crypto.Keccak256(key) }

func (p *pathdbEngine) load(batch []op) error {
	if p.loaded == nil {
		if err := p.db.Disable(); err != nil {
			return err
		}
		p.writes = p.disk.NewBatch()
		p.loaded = trie.NewStackTrie(func(path []byte, _ common.Hash, node []byte) {
			rawdb.WriteAccountTrieNode(p.writes, path, node)
		})
	}
	for _, o := range batch {
		hash := crypto.Keccak256Hash(o.key)
		if err := p.loaded.Update(hash[:], o.value); err != nil {
			return err
		}
		rawdb.WriteAccountSnapshot(p.writes, hash, o.value)
	}
	if p.writes.ValueSize() < loadBatchBytes {
		return nil
	}
	return p.flush()
}

func (p *pathdbEngine) flush() error {
	if err := p.writes.Write(); err != nil {
		return err
	}
	p.writes.Reset()
	return nil
}

func (p *pathdbEngine) settle() error {
	p.root = p.loaded.Hash()
	p.loaded = nil
	if err := p.flush(); err != nil {
		return err
	}
	if err := p.db.AdoptSyncedState(p.root); err != nil {
		return err
	}
	if err := p.disk.SyncKeyValue(); err != nil {
		return err
	}
	return p.disk.Compact(nil, nil)
}

func (p *pathdbEngine) get(key []byte, found func([]byte) error) error {
	reader, err := p.db.StateReader(p.root)
	if err != nil {
		return err
	}
	states, ok := reader.(interface {
		AccountRLP(hash common.Hash) ([]byte, error)
	})
	if !ok {
		return errors.New("its reader has no encoded accounts")
	}
	value, err := states.AccountRLP(crypto.Keccak256Hash(key))
	if err != nil {
		return err
	}
	if len(value) == 0 {
		return found(nil)
	}
	return found(value)
}

func (p *pathdbEngine) commitRoot(batch []op) (root, error) {
	t, err := trie.New(trie.StateTrieID(p.root), p.db)
	if err != nil {
		return root{}, err
	}
	hashes, values := make([][]byte, len(batch)), make([][]byte, len(batch))
	states := triedb.NewStateSet()
	for i, o := range batch {
		hash := crypto.Keccak256Hash(o.key)
		hashes[i], values[i] = hash[:], o.value
		states.Accounts[hash] = o.value
	}
	if err := t.Prefetch(hashes); err != nil {
		return root{}, err
	}
	if err := t.UpdateBatch(hashes, values); err != nil {
		return root{}, err
	}
	after, nodes := t.Commit(false)
	if nodes == nil {
		return p.stateRoot(), nil
	}
	p.blocks++
	merged := trienode.NewWithNodeSet(nodes)
	if err := p.db.Update(after, p.root, p.blocks, merged, states); err != nil {
		return root{}, err
	}
	if err := p.db.Commit(after, false); err != nil {
		return root{}, err
	}
	p.root = after
	return p.stateRoot(), p.disk.SyncKeyValue()
}

func (p *pathdbEngine) stateRoot() root { return root{pathdbScheme, p.root.Hex()[2:]} }

func (p *pathdbEngine) writeBatch([]op) error { return errCannot }

func (p *pathdbEngine) scan([]byte, int, func(key, value []byte) error) (int, error) {
	return 0, errCannot
}

func (p *pathdbEngine) close() error {
	if err := p.db.Close(); err != nil {
		return err
	}
	return p.disk.Close()
}
