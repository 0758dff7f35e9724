//! Targets of fuzzing: each is a plain function that takes any bytes and panics if Terrane breaks a
//! promise on them.
//!
//! A fuzzer draws the bytes (`fuzz/`, a workspace of its own, has one program for each target);
//! `cargo test` draws some from seeds, and runs the corpus of each target. Four kinds of targets:
//!
//! * [`Kind::Decoder`]: the bytes are decoded. No panic; what was decoded encodes to these bytes.
//! * [`Kind::Forgery`]: the bytes say how an honest proof is changed. Whatever a verifier still
//!   accepts says nothing that is false.
//! * [`Kind::Files`]: the bytes say how an honest stream, or the files of an honest store, are
//!   changed. No panic; with checksums, what is read is what was written.
//! * [`Kind::History`]: the bytes are operations, crashes among them. A store does what a sorted
//!   map does, and loses nothing that was durable.
//!
//! Programs of fuzzing are built with `cfg(fuzzing)`. There, [`terrane_io::checksum`] gives zero
//! for all bytes, so that a changed page reaches the code behind its checksum.
//!
//! Invariant: a target depends on its bytes alone. No clock, no thread, no file outside memory.

#![forbid(unsafe_code)]

mod input;
mod context;
mod radix;
mod mpt;
mod lsm;
mod btree;
mod foreign;

/// A target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the target, of its program and of the folder of its corpus.
    pub name: &'static str,
    /// Meaning of the bytes.
    pub kind: Kind,
    /// Runs the target; panics if a promise is broken.
    pub run: fn(&[u8]),
}

/// Meaning of the bytes of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An encoding.
    Decoder,
    /// Changes of an honest proof.
    Forgery,
    /// Changes of an honest stream or of the files of a store.
    Files,
    /// Operations.
    History,
}

macro_rules! targets {
    ($($kind:ident: $($module:ident::$name:ident),+;)+) => {
        /// All targets.
        pub const TARGETS: &[Target] =
            &[$($(Target { name: stringify!($name), kind: Kind::$kind, run: $module::$name },)+)+];
    };
}

targets! {
    Decoder: context::context_proof, radix::radix_proof, mpt::mpt_proof, mpt::mpt_proof_json,
        mpt::mpt_record, foreign::index_trace, foreign::bench_kvdb_log;
    Forgery: context::context_proof_forged, radix::radix_proof_forged, mpt::mpt_proof_forged;
    Files: context::context_stream, radix::radix_version, radix::radix_tree, lsm::lsm_canonical,
        context::context_files, lsm::lsm_files, lsm::lsm_feed, btree::btree_files;
    History: context::context_history, radix::radix_history, lsm::lsm_history, btree::btree_history;
}

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
