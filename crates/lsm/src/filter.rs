//! Filters: whether a run may hold a key, answered from memory.
//!
//! Every run of a level has a filter, and a lookup asks it before it reads a page. This folder
//! imports `error` and `corrupt`; it knows neither runs nor tables.
//!
//! Begin with [`filter`](self::filter::Filter), one interface over two kinds. [`bloom`] is a
//! blocked Bloom filter, one cache line for each question. [`ribbon`] is a third smaller, three
//! times as slow to ask, and built by solving equations for 8,192 keys at a time, so it is no
//! default. [`sketch`] is the filter of a memtable, to which keys are added while others ask.
//!
//! Invariant: a key that was inserted is found, whatever part of a filter is in memory.
//!
//! A filter may be in memory in part: a Bloom filter folds neighbouring blocks, a ribbon filter
//! drops columns. Rejected:
//! - folding Bloom filters by a fraction: a block that straddles two goes into both;
//! - leaving words of each block out: 0.145 false positives at half of ten bits, folding has 0.117;
//! - Bloom filters in slices of independent bits: one more cache line for every key and slice;
//! - one ribbon for a run: its equations do not fit in memory;
//! - ribbon segments chosen by hash: all hashes of a run must be kept until its last key;
//! - fuse filters: they can neither be cut into columns nor be built within a budget.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod bloom;
pub(crate) mod ribbon;
pub(crate) mod filter;
pub(crate) mod sketch;
