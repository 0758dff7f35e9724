//! The events of raw traces of Octez: one in a row. The header is empty.
//!
//! Trees and contexts are numbers without a scope. What was found is recorded as it is or, if it is
//! long, by its MD5. What touches the store has the times of its start and end.

use std::io::BufRead;

use super::codes::{Decode, Input, Key, List};
use super::error::{Malformed, Result};
use super::events::{Fold, Listing, Status, TreeOperation, decode_write, tree_operation};
use super::limits::Family;
use super::rows::Rows;

/// Result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// This value.
    Value(&'a [u8]),
    /// A value of this MD5.
    Md5(&'a [u8]),
}

/// When an operation began and ended, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Start of the event.
    pub before: f64,
    /// End of the event.
    pub after: f64,
}

/// An event; the tags are the positions in this list, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "named as where it was recorded; `to` is what is made")]
pub enum Event<'a> {
    Tree(TreeOperation<'a, u64, Option<Lookup<'a>>, &'a [u8]>),
    FindTree {
        context: u64,
        key: Key<'a>,
        to: Option<u64>,
    },
    List(Listing<u64>),
    FoldStart(Fold<'a, u64>),
    FoldEnter {
        tree: u64,
    },
    FoldExit {
        tree: u64,
    },
    FoldEnd {
        count: u64,
    },
    AddTree {
        context: u64,
        key: Key<'a>,
        tree: u64,
        to: u64,
    },
    Mem {
        context: u64,
        key: Key<'a>,
        answer: bool,
    },
    MemTree {
        context: u64,
        key: Key<'a>,
        answer: bool,
    },
    Find {
        context: u64,
        key: Key<'a>,
        found: Option<Lookup<'a>>,
    },
    GetProtocol {
        context: u64,
        hash: &'a [u8],
    },
    Hash {
        time: i64,
        message: Option<&'a [u8]>,
        context: u64,
        hash: &'a [u8],
    },
    MerkleTree {
        context: u64,
        has_raw_leaves: bool,
        steps: List<'a, &'a [u8]>,
    },
    FindPredecessorBlock {
        context: u64,
        hash: Option<&'a [u8]>,
    },
    FindPredecessorOps {
        context: u64,
        hash: Option<&'a [u8]>,
    },
    GetTestChain {
        context: u64,
        status: Status<'a>,
    },
    Exists {
        commit: &'a [u8],
        answer: bool,
        times: Times,
    },
    RetrieveCommitInfo {
        commit: &'a [u8],
        answer: bool,
        times: Times,
    },
    Add {
        context: u64,
        key: Key<'a>,
        value: &'a [u8],
        to: u64,
    },
    Remove {
        context: u64,
        key: Key<'a>,
        to: u64,
    },
    AddProtocol {
        context: u64,
        hash: &'a [u8],
        to: u64,
    },
    AddPredecessorBlock {
        context: u64,
        hash: &'a [u8],
        to: u64,
    },
    AddPredecessorOps {
        context: u64,
        hash: &'a [u8],
        to: u64,
    },
    AddTestChain {
        context: u64,
        status: Status<'a>,
        to: u64,
    },
    RemoveTestChain {
        context: u64,
        to: u64,
    },
    ForkTestChain {
        context: u64,
        protocol: &'a [u8],
        time: i64,
        to: u64,
    },
    Checkout {
        commit: &'a [u8],
        to: Option<u64>,
        times: Times,
    },
    CheckoutExn {
        commit: &'a [u8],
        to: Option<u64>,
        times: Times,
    },
    Close,
    Sync {
        times: Times,
    },
    SetMaster {
        commit: &'a [u8],
    },
    SetHead {
        chain: &'a [u8],
        commit: &'a [u8],
    },
    CommitGenesisStart {
        chain: &'a [u8],
        time: i64,
        protocol: &'a [u8],
        at: f64,
    },
    CommitGenesisEnd {
        commit: Option<&'a [u8]>,
        at: f64,
    },
    ClearTestChain {
        chain: &'a [u8],
    },
    Commit {
        time: i64,
        message: Option<&'a [u8]>,
        context: u64,
        commit: &'a [u8],
        times: Times,
    },
    CommitTestChainGenesis {
        context: u64,
        time: i64,
        level: i32,
        block: &'a [u8],
        times: Times,
    },
    Init {
        is_readonly: bool,
    },
    PatchContextEnter {
        context: u64,
    },
    PatchContextExit {
        from: u64,
        to: Option<u64>,
    },
    DumpContext {
        times: Times,
    },
    /// Something that the recorder does not record.
    Unhandled {
        code: u8,
    },
    Gc {
        commit: &'a [u8],
        times: Times,
    },
    Split,
}

impl<'a> Decode<'a> for Lookup<'a> {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        match input.u8()? {
            0 => Ok(Self::Value(input.read()?)),
            1 => Ok(Self::Md5(input.read()?)),
            tag => Err(Malformed::Tag { kind: "found value", tag }),
        }
    }
}

impl<'a> Decode<'a> for Times {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        Ok(Self { before: input.read()?, after: input.read()? })
    }
}

/// A result: 0 and what was made, or 1 if it failed.
fn made<'a, T: Decode<'a>>(input: &mut Input<'a>) -> std::result::Result<Option<T>, Malformed> {
    match input.u8()? {
        0 => Ok(Some(input.read()?)),
        1 => Ok(None),
        tag => Err(Malformed::Tag { kind: "result", tag }),
    }
}

impl<'a> Decode<'a> for Event<'a> {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        let tag = input.u8()?;
        // Tags stand in the order of the recording program.
        match tag {
            0 => Ok(Self::Tree(tree_operation(input, true)?)),
            1..=10 => Self::decode_read(tag, input),
            11..=18 => Self::decode_info(tag, input),
            19..=26 => decode_write!(tag - 19, input),
            27..=36 => Self::decode_store(tag, input),
            _ => Self::decode_rare(tag, input),
        }
    }
}

impl<'a> Event<'a> {
    fn decode_read(tag: u8, input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        match tag {
            1 => {
                let (context, key) = input.read()?;
                Ok(Self::FindTree { context, key, to: input.read()? })
            }
            2 => Ok(Self::List(input.read()?)),
            3 => Ok(Self::FoldStart(input.read()?)),
            4 => Ok(Self::FoldEnter { tree: input.read()? }),
            5 => Ok(Self::FoldExit { tree: input.read()? }),
            6 => Ok(Self::FoldEnd { count: input.number()? }),
            7 => {
                let (context, (key, tree)) = input.read()?;
                Ok(Self::AddTree { context, key, tree, to: input.read()? })
            }
            _ => {
                let (context, key) = input.read()?;
                // The questions differ in their answers only.
                match tag {
                    8 => Ok(Self::Mem { context, key, answer: input.read()? }),
                    9 => Ok(Self::MemTree { context, key, answer: input.read()? }),
                    _ => Ok(Self::Find { context, key, found: input.read()? }),
                }
            }
        }
    }

    fn decode_info(tag: u8, input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        match tag {
            11 => Ok(Self::GetProtocol { context: input.read()?, hash: input.read()? }),
            12 => {
                let (time, (message, context)) = input.read()?;
                Ok(Self::Hash { time, message, context, hash: input.read()? })
            }
            13 => {
                let context = input.read()?;
                let has_raw_leaves = match input.u8()? {
                    0 => false,
                    1 => true,
                    tag => return Err(Malformed::Tag { kind: "kind of leaf", tag }),
                };
                Ok(Self::MerkleTree { context, has_raw_leaves, steps: input.read()? })
            }
            14 => Ok(Self::FindPredecessorBlock { context: input.read()?, hash: input.read()? }),
            15 => Ok(Self::FindPredecessorOps { context: input.read()?, hash: input.read()? }),
            16 => Ok(Self::GetTestChain { context: input.read()?, status: input.read()? }),
            _ => {
                let (commit, (answer, times)) = input.read()?;
                // Both events have one layout.
                if tag == 17 {
                    Ok(Self::Exists { commit, answer, times })
                } else {
                    Ok(Self::RetrieveCommitInfo { commit, answer, times })
                }
            }
        }
    }

    fn decode_store(tag: u8, input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        match tag {
            27 => {
                let (commit, to) = input.read()?;
                Ok(Self::Checkout { commit, to, times: input.read()? })
            }
            28 => {
                let commit = input.read()?;
                let to = made(input)?;
                Ok(Self::CheckoutExn { commit, to, times: input.read()? })
            }
            29 => Ok(Self::Close),
            30 => Ok(Self::Sync { times: input.read()? }),
            31 => Ok(Self::SetMaster { commit: input.read()? }),
            32 => Ok(Self::SetHead { chain: input.read()?, commit: input.read()? }),
            33 => {
                let (chain, (time, protocol)) = input.read()?;
                Ok(Self::CommitGenesisStart { chain, time, protocol, at: input.read()? })
            }
            34 => Ok(Self::CommitGenesisEnd { commit: made(input)?, at: input.read()? }),
            35 => Ok(Self::ClearTestChain { chain: input.read()? }),
            _ => {
                let (time, (message, context)) = input.read()?;
                let (commit, times) = input.read()?;
                Ok(Self::Commit { time, message, context, commit, times })
            }
        }
    }

    fn decode_rare(tag: u8, input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        match tag {
            37 => {
                let (context, time) = input.read()?;
                let level = input.i32()?;
                let (block, times) = input.read()?;
                Ok(Self::CommitTestChainGenesis { context, time, level, block, times })
            }
            38 => Ok(Self::Init { is_readonly: input.read()? }),
            39 => Ok(Self::PatchContextEnter { context: input.read()? }),
            40 => Ok(Self::PatchContextExit { from: input.read()?, to: made(input)? }),
            41 => Ok(Self::DumpContext { times: input.read()? }),
            42 => Ok(Self::Unhandled { code: input.u8()? }),
            43 => Ok(Self::Gc { commit: input.read()?, times: input.read()? }),
            44 => Ok(Self::Split),
            _ => Err(Malformed::Tag { kind: "event", tag }),
        }
    }
}

/// The events of a trace, read one after the other.
#[derive(Debug)]
pub struct Events<R> {
    rows: Rows<R>,
}

impl<R: BufRead> Events<R> {
    /// Reads what stands before the events.
    ///
    /// # Errors
    /// [`TooShort`](super::Error::TooShort), [`Magic`](super::Error::Magic),
    /// [`UnknownVersion`](super::Error::UnknownVersion), [`Header`](super::Error::Header),
    /// [`Read`](super::Error::Read).
    pub fn open(input: R) -> Result<Self> {
        let (rows, header) = Rows::open(input, Family::Raw)?;
        rows.header(&header, |_| Ok(()))?;
        Ok(Self { rows })
    }

    /// Reads the next event; `None` at the end.
    ///
    /// # Errors
    /// [`TruncatedTrace`](super::Error::TruncatedTrace), [`Malformed`](super::Error::Malformed),
    /// [`Read`](super::Error::Read); reading ends with it.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        self.rows.decode()
    }
}
