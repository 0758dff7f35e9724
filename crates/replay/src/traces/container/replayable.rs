//! The blocks of replayable traces of Octez.
//!
//! | bytes of the header | meaning |
//! |---|---|
//! | optional number and string | level and hash of the block before the first |
//! | number, string | level and hash of the last block |
//! | number | blocks |
//!
//! A row is nine numbers, see [`Statistics`], an array of events, and whether the context was
//! patched. Events are numbered, see [`Event`]; trees and contexts are numbers with a scope. Keys
//! are those of users, without `data`: [`physical`](super::physical) makes paths of them.

use std::io::{BufRead, Write};

use super::codes::{Decode, Encode, Input, Items, Key, List, Output, Scoped};
use super::error::{Malformed, Result};
use super::events::{Fold, Status, TreeOperation, decode_write, tree_operation};
use super::limits::Family;
use super::rows::{Rows, RowsWriter};

/// A tree or a context: its number, and whether it occurs for the last time.
pub type Tracker = Scoped<u64>;

/// Header of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Level and hash of the block that the first one follows; `None` if that is the first of all.
    pub initial: Option<(u64, Vec<u8>)>,
    /// Level and hash of the last block.
    pub last: (u64, Vec<u8>),
    /// Number of blocks.
    pub block_count: u64,
}

/// Statistics of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as where it was recorded")]
pub struct Statistics {
    pub level: u64,
    /// Operations of the chain.
    pub tzop_count: u64,
    /// Transactions among them.
    pub tzop_count_tx: u64,
    /// Calls of contracts among them.
    pub tzop_count_contract: u64,
    pub gas_used: u64,
    pub storage_size: u64,
    pub cycle_snapshot: u64,
    pub time: u64,
    pub solvetime: u64,
}

/// A block: its events stay in the bytes of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<'a> {
    /// Statistics of the block.
    pub statistics: Statistics,
    events: List<'a, Event<'a>>,
    /// Whether the context was patched in it.
    pub uses_patch_context: bool,
}

/// A commit that is used: its hash, and whether it was made in this trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedCommit<'a> {
    /// Whether this trace has made it.
    pub is_instantiated: bool,
    /// Hash of the block.
    pub hash: Scoped<&'a [u8]>,
}

/// A commit that is made: its hash, and whether this trace has made one of this hash before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadeCommit<'a> {
    /// Whether it is the first of its hash.
    pub is_first: bool,
    /// Hash of the block.
    pub hash: Scoped<&'a [u8]>,
}

/// An event; the tags are the positions in this list, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as where it was recorded; `to` is what is made")]
pub enum Event<'a> {
    Tree(TreeOperation<'a, Tracker, bool, ()>),
    FindTree { context: Tracker, key: Key<'a>, to: Option<Tracker> },
    FoldStart(Fold<'a, Tracker>),
    FoldEnter { tree: Tracker },
    FoldExit { tree: Tracker },
    FoldEnd,
    AddTree { context: Tracker, key: Key<'a>, tree: Tracker, to: Tracker },
    Mem { context: Tracker, key: Key<'a>, answer: bool },
    MemTree { context: Tracker, key: Key<'a>, answer: bool },
    Find { context: Tracker, key: Key<'a>, found: bool },
    GetProtocol { context: Tracker },
    Hash { time: i64, message: Option<&'a [u8]>, context: Tracker },
    FindPredecessorBlock { context: Tracker },
    FindPredecessorOps { context: Tracker },
    GetTestChain { context: Tracker },
    Exists { commit: UsedCommit<'a>, answer: bool },
    Add { context: Tracker, key: Key<'a>, value: &'a [u8], to: Tracker },
    Remove { context: Tracker, key: Key<'a>, to: Tracker },
    AddProtocol { context: Tracker, hash: &'a [u8], to: Tracker },
    AddPredecessorBlock { context: Tracker, hash: &'a [u8], to: Tracker },
    AddPredecessorOps { context: Tracker, hash: &'a [u8], to: Tracker },
    AddTestChain { context: Tracker, status: Status<'a>, to: Tracker },
    RemoveTestChain { context: Tracker, to: Tracker },
    ForkTestChain { context: Tracker, protocol: &'a [u8], time: i64, to: Tracker },
    Checkout { commit: UsedCommit<'a>, to: Tracker },
    CommitGenesisStart { chain: &'a [u8], time: i64, protocol: &'a [u8] },
    CommitGenesisEnd { commit: MadeCommit<'a> },
    ClearTestChain { chain: &'a [u8] },
    Commit { time: i64, message: Option<&'a [u8]>, context: Tracker, commit: MadeCommit<'a> },
    Init { is_readonly: bool },
    PatchContextEnter { context: Tracker },
    PatchContextExit { from: Tracker, to: Tracker },
    Gc { commit: UsedCommit<'a> },
    Split,
}

/// Reads one of two cases; `true` is the first.
fn is_first(input: &mut Input<'_>) -> std::result::Result<bool, Malformed> {
    match input.u8()? {
        0 => Ok(true),
        1 => Ok(false),
        tag => Err(Malformed::Tag { kind: "occurrence", tag }),
    }
}

impl<'a> Decode<'a> for UsedCommit<'a> {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        Ok(Self { is_instantiated: is_first(input)?, hash: input.read()? })
    }
}

impl<'a> Decode<'a> for MadeCommit<'a> {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        Ok(Self { is_first: is_first(input)?, hash: input.read()? })
    }
}

impl<'a> Decode<'a> for Event<'a> {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        let tag = input.u8()?;
        // Tag 0 holds all operations on trees, which have tags of their own.
        match tag {
            0 => Ok(Self::Tree(tree_operation(input, false)?)),
            1..=9 => Self::decode_read(tag, input),
            10 => Ok(Self::GetProtocol { context: input.read()? }),
            11 => {
                let (time, message) = input.read()?;
                Ok(Self::Hash { time, message, context: input.read()? })
            }
            12 => Ok(Self::FindPredecessorBlock { context: input.read()? }),
            13 => Ok(Self::FindPredecessorOps { context: input.read()? }),
            14 => Ok(Self::GetTestChain { context: input.read()? }),
            15 => Ok(Self::Exists { commit: input.read()?, answer: input.read()? }),
            16..=23 => decode_write!(tag - 16, input),
            _ => Self::decode_store(tag, input),
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
            2 => Ok(Self::FoldStart(input.read()?)),
            3 => Ok(Self::FoldEnter { tree: input.read()? }),
            4 => Ok(Self::FoldExit { tree: input.read()? }),
            5 => Ok(Self::FoldEnd),
            6 => {
                let (context, (key, tree)) = input.read()?;
                Ok(Self::AddTree { context, key, tree, to: input.read()? })
            }
            _ => {
                let (context, (key, answer)) = input.read()?;
                // The three questions have one layout.
                match tag {
                    7 => Ok(Self::Mem { context, key, answer }),
                    8 => Ok(Self::MemTree { context, key, answer }),
                    _ => Ok(Self::Find { context, key, found: answer }),
                }
            }
        }
    }

    fn decode_store(tag: u8, input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        match tag {
            24 => Ok(Self::Checkout { commit: input.read()?, to: input.read()? }),
            25 => {
                let (chain, (time, protocol)) = input.read()?;
                Ok(Self::CommitGenesisStart { chain, time, protocol })
            }
            26 => Ok(Self::CommitGenesisEnd { commit: input.read()? }),
            27 => Ok(Self::ClearTestChain { chain: input.read()? }),
            28 => {
                let (time, (message, context)) = input.read()?;
                Ok(Self::Commit { time, message, context, commit: input.read()? })
            }
            29 => Ok(Self::Init { is_readonly: input.read()? }),
            30 => Ok(Self::PatchContextEnter { context: input.read()? }),
            31 => Ok(Self::PatchContextExit { from: input.read()?, to: input.read()? }),
            32 => Ok(Self::Gc { commit: input.read()? }),
            33 => Ok(Self::Split),
            _ => Err(Malformed::Tag { kind: "event", tag }),
        }
    }
}

impl<'a> Decode<'a> for Statistics {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        Ok(Self {
            level: input.number()?,
            tzop_count: input.number()?,
            tzop_count_tx: input.number()?,
            tzop_count_contract: input.number()?,
            gas_used: input.number()?,
            storage_size: input.number()?,
            cycle_snapshot: input.number()?,
            time: input.number()?,
            solvetime: input.number()?,
        })
    }
}

impl<'a> Decode<'a> for Block<'a> {
    fn decode(input: &mut Input<'a>) -> std::result::Result<Self, Malformed> {
        Ok(Self {
            statistics: input.read()?,
            events: input.read()?,
            uses_patch_context: input.read()?,
        })
    }
}

impl<'a> Block<'a> {
    /// Events of the block in their order.
    #[must_use]
    pub fn events(&self) -> Items<'a, Event<'a>> {
        self.events.items()
    }
}

/// The blocks of a trace, read one after the other.
#[derive(Debug)]
pub struct Blocks<R> {
    rows: Rows<R>,
    header: Header,
}

impl<R: BufRead> Blocks<R> {
    /// Reads what stands before the blocks.
    ///
    /// # Errors
    /// [`TooShort`](super::Error::TooShort), [`Magic`](super::Error::Magic),
    /// [`UnknownVersion`](super::Error::UnknownVersion), [`Header`](super::Error::Header),
    /// [`Read`](super::Error::Read).
    pub fn open(input: R) -> Result<Self> {
        let (rows, header) = Rows::open(input, Family::Replayable)?;
        // The header outlives the buffer that it was read from.
        let owned = |(level, hash): (u64, &[u8])| (level, hash.to_vec());
        let header = rows.header(&header, |input| {
            let initial: Option<(u64, &[u8])> = input.read()?;
            let last = input.read()?;
            let block_count = input.number()?;
            Ok(Header { initial: initial.map(owned), last: owned(last), block_count })
        })?;
        Ok(Self { rows, header })
    }

    /// Header of the trace.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the next block, every event of it; `None` at the end.
    ///
    /// # Errors
    /// [`TruncatedTrace`](super::Error::TruncatedTrace), [`Malformed`](super::Error::Malformed),
    /// [`Read`](super::Error::Read); reading ends with it.
    pub fn next_block(&mut self) -> Result<Option<Block<'_>>> {
        self.rows.decode()
    }
}

impl Encode for UsedCommit<'_> {
    fn encode(&self, out: &mut Output) {
        (!self.is_instantiated).encode(out);
        self.hash.encode(out);
    }
}

impl Encode for MadeCommit<'_> {
    fn encode(&self, out: &mut Output) {
        (!self.is_first).encode(out);
        self.hash.encode(out);
    }
}

impl Encode for Event<'_> {
    fn encode(&self, out: &mut Output) {
        // The fields follow the tag in their order.
        let mut put = |tag: u8, parts: &[&dyn Encode]| {
            out.u8(tag);
            for part in parts {
                part.encode(out);
            }
        };

        match self {
            Self::Tree(operation) => put(0, &[operation]),
            Self::FindTree { context, key, to } => put(1, &[context, key, to]),
            Self::FoldStart(fold) => put(2, &[fold]),
            Self::FoldEnter { tree } => put(3, &[tree]),
            Self::FoldExit { tree } => put(4, &[tree]),
            Self::FoldEnd => put(5, &[]),
            Self::AddTree { context, key, tree, to } => put(6, &[context, key, tree, to]),
            Self::Mem { context, key, answer } => put(7, &[context, key, answer]),
            Self::MemTree { context, key, answer } => put(8, &[context, key, answer]),
            Self::Find { context, key, found } => put(9, &[context, key, found]),
            Self::GetProtocol { context } => put(10, &[context]),
            Self::Hash { time, message, context } => put(11, &[time, message, context]),
            Self::FindPredecessorBlock { context } => put(12, &[context]),
            Self::FindPredecessorOps { context } => put(13, &[context]),
            Self::GetTestChain { context } => put(14, &[context]),
            Self::Exists { commit, answer } => put(15, &[commit, answer]),
            Self::Add { context, key, value, to } => put(16, &[context, key, value, to]),
            Self::Remove { context, key, to } => put(17, &[context, key, to]),
            Self::AddProtocol { context, hash, to } => put(18, &[context, hash, to]),
            Self::AddPredecessorBlock { context, hash, to } => put(19, &[context, hash, to]),
            Self::AddPredecessorOps { context, hash, to } => put(20, &[context, hash, to]),
            Self::AddTestChain { context, status, to } => put(21, &[context, status, to]),
            Self::RemoveTestChain { context, to } => put(22, &[context, to]),
            Self::ForkTestChain { context, protocol, time, to } => {
                put(23, &[context, protocol, time, to]);
            }
            Self::Checkout { commit, to } => put(24, &[commit, to]),
            Self::CommitGenesisStart { chain, time, protocol } => put(25, &[chain, time, protocol]),
            Self::CommitGenesisEnd { commit } => put(26, &[commit]),
            Self::ClearTestChain { chain } => put(27, &[chain]),
            Self::Commit { time, message, context, commit } => {
                put(28, &[time, message, context, commit]);
            }
            Self::Init { is_readonly } => put(29, &[is_readonly]),
            Self::PatchContextEnter { context } => put(30, &[context]),
            Self::PatchContextExit { from, to } => put(31, &[from, to]),
            Self::Gc { commit } => put(32, &[commit]),
            Self::Split => put(33, &[]),
        }
    }
}

impl Encode for Statistics {
    fn encode(&self, out: &mut Output) {
        let counts = [self.level, self.tzop_count, self.tzop_count_tx, self.tzop_count_contract];
        let sizes = [self.gas_used, self.storage_size, self.cycle_snapshot];
        let times = [self.time, self.solvetime];
        counts.iter().chain(&sizes).chain(&times).for_each(|number| number.encode(out));
    }
}

/// Events that are coded as in a row.
#[derive(Debug, Default)]
pub struct EventsBuf {
    coded: Output,
    count: u64,
}

impl EventsBuf {
    /// Appends an event.
    pub fn push(&mut self, event: &Event<'_>) {
        event.encode(&mut self.coded);
        self.count += 1;
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        self.coded.0.clear();
        self.count = 0;
    }

    /// The events in their order.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let mut input = Input::new(&self.coded.0);
        (0..self.count).map(move |_| input.read().expect("it was coded so"))
    }
}

/// Writes a trace, block after block.
#[derive(Debug)]
pub struct Recorder<W> {
    rows: RowsWriter<W>,
    events: EventsBuf,
}

impl<W: Write> Recorder<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn new(output: W, header: &Header) -> Result<Self> {
        let mut out = Output::default();
        let pair = |(level, hash): &(u64, Vec<u8>), out: &mut Output| {
            out.number(*level);
            out.string(hash);
        };

        header.initial.is_some().encode(&mut out);
        header.initial.iter().for_each(|initial| pair(initial, &mut out));
        pair(&header.last, &mut out);
        out.number(header.block_count);
        let rows = RowsWriter::with_header(output, Family::Replayable, &out.0)?;

        Ok(Self { rows, events: EventsBuf::default() })
    }

    /// Adds an event to the block that is being made.
    pub fn event(&mut self, event: &Event<'_>) {
        self.events.push(event);
    }

    /// Ends the block, and writes it.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn end_block(&mut self, statistics: &Statistics, uses_patch_context: bool) -> Result<()> {
        let mut row = Output::default();
        statistics.encode(&mut row);
        row.number(self.events.count);
        row.0.append(&mut self.events.coded.0);
        self.events.clear();
        uses_patch_context.encode(&mut row);
        self.rows.write(&row.0)
    }

    /// Flushes the output and gives it back.
    ///
    /// # Errors
    /// [`Write`](super::Error::Write).
    pub fn finish(self) -> Result<W> {
        self.rows.finish()
    }
}
