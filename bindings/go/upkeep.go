// Backups, compaction, statistics.

package terrane

// #include "terrane.h"
import "C"

import (
	"context"
)

// BackupReport says what a backup has and what it cost.
type BackupReport struct {
	// Commit is the number of the last commit in the backup.
	Commit uint64
	// Tables, Versions and Snapshots are their numbers.
	Tables, Versions, Snapshots uint64
	// BytesCopied is the size of files that were written, BytesShared of those of earlier backups.
	BytesCopied, BytesShared uint64
}

// BackUp makes or renews a backup in a directory, while commits go on.
//
// Cost: a checkpoint; reads and writes each file that is not there yet once.
func (s *Store) BackUp(ctx context.Context, dir string) (BackupReport, error) {
	made := make(chan BackupReport, 1)
	err := await(ctx, func() error {
		var report C.struct_terrane_backup_report
		err := s.use(context.WithoutCancel(ctx), func(store *C.struct_terrane_store) code {
			path, length := cText(dir)
			return C.terrane_store_back_up(store, path, length, &report)
		})
		made <- BackupReport{
			Commit:      uint64(report.commit),
			Tables:      uint64(report.tables),
			Versions:    uint64(report.versions),
			Snapshots:   uint64(report.snapshots),
			BytesCopied: uint64(report.bytes_copied),
			BytesShared: uint64(report.bytes_shared),
		}
		return err
	})
	if err != nil {
		return BackupReport{}, err
	}
	return <-made, nil
}

// Compact merges the runs of all tables, so that nothing is left of deleted and overwritten
// entries.
//
// Cost: reads and writes every table once.
func (s *Store) Compact(ctx context.Context) error {
	return await(ctx, func() error {
		return s.use(context.WithoutCancel(ctx), func(store *C.struct_terrane_store) code {
			return C.terrane_store_compact(store)
		})
	})
}

// TableStats is the shape of a table, and what it has counted since it was opened.
type TableStats struct {
	// Entries is at most: a key counts once for each run that has it.
	Entries uint64
	// Runs is the number of runs.
	Runs uint64
	// MemoryBytes is the memory of memtable, filters, indexes and cached pages.
	MemoryBytes uint64
	// FilterBytes, IndexBytes and CacheBytes are parts of it.
	FilterBytes, IndexBytes, CacheBytes uint64
	// MergeDebtPages is the compaction that is not done yet.
	MergeDebtPages uint64
	// Lookups is the number of keys that were looked up, Found of those that were there, LookupReads
	// of pages that lookups have read from disk.
	Lookups, Found, LookupReads uint64
	// Updates is the number of updates of keys, UpdateBytes that of bytes of their keys and values.
	Updates, UpdateBytes uint64
	// WrittenBytes is what flushes and compactions have written.
	WrittenBytes uint64
}

// Stats returns the shape of the table and what it has counted.
//
// Cost: no I/O.
func (t *Table) Stats(ctx context.Context) (TableStats, error) {
	var stats C.struct_terrane_table_stats
	err := t.use(ctx, func(table *C.struct_terrane_table) code {
		return C.terrane_table_get_stats(table, &stats)
	})
	return TableStats{
		Entries:        uint64(stats.entries),
		Runs:           uint64(stats.runs),
		MemoryBytes:    uint64(stats.memory_bytes),
		FilterBytes:    uint64(stats.filter_bytes),
		IndexBytes:     uint64(stats.index_bytes),
		CacheBytes:     uint64(stats.cache_bytes),
		MergeDebtPages: uint64(stats.merge_debt_pages),
		Lookups:        uint64(stats.lookups),
		Found:          uint64(stats.found),
		LookupReads:    uint64(stats.lookup_reads),
		Updates:        uint64(stats.updates),
		UpdateBytes:    uint64(stats.update_bytes),
		WrittenBytes:   uint64(stats.written_bytes),
	}, err
}
