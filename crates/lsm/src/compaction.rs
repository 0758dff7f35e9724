//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod resume;
pub(crate) mod loser_tree;
pub(crate) mod merge_pipe;
pub(crate) mod compaction;
pub(crate) mod sources;
pub(crate) mod value_room;
pub(crate) mod union;
pub(crate) mod levels;
pub(crate) mod background;
