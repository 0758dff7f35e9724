//! Pack: the append-only files of a store — chunks of frames of records — with their control
//! record, volumes and index.
//!
//! May import `base`, `object`, and of `tree` the traits `Source` and `Sink`.
//!
//! Begin with [`pack`](mod@pack) (reads through the cache, appends, recovery), then [`frame`] and
//! [`chunk`] (bytes on disk), then [`control`] (where recovery begins). [`marks`] is the set of
//! live records of a collection; [`archive`] holds volumes; [`locations`] names directories outside
//! the store.
//!
//! Invariants:
//! - A commit is one frame at the end of the last chunk (a large one several) and one fsync. The
//!   whole frames after a crash are a prefix of the frames written.
//! - A frame records how far the pack was durable. An incomplete frame before that address is
//!   corruption; behind the last such address it is a torn write, and the writer truncates it.
//! - Every frame head and every record is checksummed with its address, so no bytes pass at another
//!   place.
//! - The control record and the durable mark are lower bounds of what is durable.
//!
//! Locks: `catalog`, `handles` and the cache are taken one at a time, and no lock is taken under
//! them.
//!
//! Rejected:
//! - A superblock for each commit: a second fsync.
//! - A log that ends at the first bad checksum: one flipped bit loses every later commit.
//! - A list of durable ends in a file of its own: again a second fsync.
//! - Holes instead of rewritten chunks: most pages of old chunks have a live record, and a crash
//!   leaves a file between two states.
//! - Paths in the control record: its page has a bounded size and is written with every chunk.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod frame;
pub(crate) mod run_map;
pub(crate) mod chunk;
pub(crate) mod read_many;
pub(crate) mod control;
pub(crate) mod commit;
pub(crate) mod index;
pub(crate) mod handles;
pub(crate) mod marker;
pub(crate) mod archive;
pub(crate) mod locations;
pub(crate) mod pack;
pub(crate) mod marks;
