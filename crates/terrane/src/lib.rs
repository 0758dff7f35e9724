#![doc = include_str!("../../../README.md")]
#![forbid(unsafe_code)]

#[doc(inline)]
pub use terrane_io as io;
#[doc(inline)]
pub use terrane_lsm::{
    BLOB_BYTES_MAX, BlobRef, Corrupt, Cursor, DiskCache, Error, FilterPolicy, IndexKind,
    KEY_BYTES_MAX, LABEL_BYTES_MAX, LevelStats, Lookup, MergePolicy, MergeSchedule, MergeThread,
    PAGE_SIZE, Purpose, RESOLVE_NAME_BYTES_MAX, Record, Resolve, Result, RunMeta,
    SNAPSHOT_NAME_LEN_MAX, Session, SessionOptions, SnapshotName, Table, TableConfig, TableStats,
    Update, VALUE_BYTES_MAX, Value, WriteBuffer, inspect, verify,
};
