//! Parts of the events of both families of Octez.
//!
//! The two number the operations on trees alike, but for listing, which only raw traces have:
//!
//! | tag | operation | tag | operation |
//! |---|---|---|---|
//! | 0 | empty(context → tree) | 9 | equal(tree, tree → bool) |
//! | 1 | of-value(context, value → tree) | 10 | to-value(tree → found) |
//! | 2 | of-raw(raw → tree) | 11 | clear(optional depth, tree) |
//! | 3, 4 | mem, mem-tree(tree, key → bool) | 12 | find-tree(tree, key → optional tree) |
//! | 5 | find(tree, key → found) | raw 13 | list(tree, optional offset, optional length → first tree, count) |
//! | 6 | is-empty(tree → bool) | 13, raw 14 | add(tree, key, value → tree) |
//! | 7 | kind(tree → 0 tree, 1 value) | 14, raw 15 | add-tree(tree, key, tree → tree) |
//! | 8 | hash(tree → hash) | 15, raw 16 | remove(tree, key → tree) |
//! | | | 16 to 19, raw 17 to 20 | fold: start, enter, exit, end |
//!
//! A raw tree is 0 and a value, or 1 and a list of steps and raw trees.

use super::codes::{Decode, Encode, Input, Key, List, Output};
use super::error::Malformed;
use super::limits::DEPTH_MAX;

type Result<T> = std::result::Result<T, Malformed>;

impl<'a> Decode<'a> for () {
    fn decode(_: &mut Input<'a>) -> Result<Self> {
        Ok(())
    }
}

/// Comparison of depths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DepthKind {
    /// Equal.
    Eq,
    /// At least.
    Ge,
    /// More.
    Gt,
    /// At most.
    Le,
    /// Less.
    Lt,
}

/// Depths that a fold visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Comparison with the depth of a visit.
    pub kind: DepthKind,
    /// With what.
    pub depth: u64,
}

impl<'a> Decode<'a> for Depth {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        let kind = match input.u8()? {
            0 => DepthKind::Eq,
            1 => DepthKind::Ge,
            2 => DepthKind::Gt,
            3 => DepthKind::Le,
            4 => DepthKind::Lt,
            tag => return Err(Malformed::Tag { kind: "depth", tag }),
        };
        Ok(Self { kind, depth: input.number()? })
    }
}

impl Encode for Depth {
    fn encode(&self, out: &mut Output) {
        out.u8(self.kind as u8);
        out.number(self.depth);
    }
}

/// In which order a fold visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By steps.
    Sorted,
    /// In any.
    Undefined,
}

impl<'a> Decode<'a> for Order {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        match input.u8()? {
            0 => Ok(Self::Sorted),
            1 => Ok(Self::Undefined),
            tag => Err(Malformed::Tag { kind: "order", tag }),
        }
    }
}

impl Encode for Order {
    fn encode(&self, out: &mut Output) {
        out.u8(*self as u8);
    }
}

/// Kind of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeKind {
    /// A directory.
    Directory,
    /// A value.
    Value,
}

impl<'a> Decode<'a> for TreeKind {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        match input.u8()? {
            0 => Ok(Self::Directory),
            1 => Ok(Self::Value),
            tag => Err(Malformed::Tag { kind: "kind of tree", tag }),
        }
    }
}

impl Encode for TreeKind {
    fn encode(&self, out: &mut Output) {
        out.u8(*self as u8);
    }
}

/// A tree that stands in the trace itself. It stays in the bytes of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawTree<'a> {
    /// A value.
    Value(&'a [u8]),
    /// A directory: steps and what they lead to.
    Directory(List<'a, (&'a [u8], RawTree<'a>)>),
}

impl<'a> Decode<'a> for RawTree<'a> {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        match input.u8()? {
            0 => Ok(Self::Value(input.read()?)),
            1 if input.depth == DEPTH_MAX => Err(Malformed::Depth),
            1 => {
                // The depth bounds the recursion, whatever the trace says.
                input.depth += 1;
                let children = input.read()?;
                input.depth -= 1;
                Ok(Self::Directory(children))
            }
            tag => Err(Malformed::Tag { kind: "raw tree", tag }),
        }
    }
}

impl Encode for RawTree<'_> {
    fn encode(&self, out: &mut Output) {
        match self {
            Self::Value(value) => {
                out.u8(0);
                value.encode(out);
            }
            Self::Directory(children) => {
                out.u8(1);
                children.encode(out);
            }
        }
    }
}

/// A test chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "hashes as they are, times in seconds since 1970")]
pub enum Status<'a> {
    /// There is none.
    NotRunning,
    /// The test chain begins with the next block.
    Forking { protocol: &'a [u8], expiration: i64 },
    /// The test chain runs.
    Running { chain: &'a [u8], genesis: &'a [u8], protocol: &'a [u8], expiration: i64 },
}

impl<'a> Decode<'a> for Status<'a> {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        match input.u8()? {
            0 => Ok(Self::NotRunning),
            1 => Ok(Self::Forking { protocol: input.read()?, expiration: input.read()? }),
            2 => Ok(Self::Running {
                chain: input.read()?,
                genesis: input.read()?,
                protocol: input.read()?,
                expiration: input.read()?,
            }),
            tag => Err(Malformed::Tag { kind: "status", tag }),
        }
    }
}

impl Encode for Status<'_> {
    fn encode(&self, out: &mut Output) {
        match self {
            Self::NotRunning => out.u8(0),
            Self::Forking { protocol, expiration } => {
                out.u8(1);
                (*protocol, *expiration).encode(out);
            }
            Self::Running { chain, genesis, protocol, expiration } => {
                out.u8(2);
                (*chain, (*genesis, (*protocol, *expiration))).encode(out);
            }
        }
    }
}

/// A fold over what is below `key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold<'a, T> {
    /// Depths to visit; all if absent.
    pub depth: Option<Depth>,
    /// Order of the visits.
    pub order: Order,
    /// The tree or context.
    pub of: T,
    /// Path where the fold begins.
    pub key: Key<'a>,
}

impl<'a, T: Decode<'a>> Decode<'a> for Fold<'a, T> {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        let (depth, order) = input.read()?;
        Ok(Self { depth, order, of: input.read()?, key: input.read()? })
    }
}

impl<T: Encode> Encode for Fold<'_, T> {
    fn encode(&self, out: &mut Output) {
        self.depth.encode(out);
        self.order.encode(out);
        self.of.encode(out);
        self.key.encode(out);
    }
}

/// A page of the children of a tree or context. The trace does not say of which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listing<T> {
    /// The tree or context.
    pub of: T,
    /// Children that are left out before it.
    pub offset: Option<u64>,
    /// Most children.
    pub length: Option<u64>,
    /// The first of the trees that it made; the others follow it.
    pub first: u64,
    /// Number of the trees that it made.
    pub count: u64,
}

impl<'a, T: Decode<'a>> Decode<'a> for Listing<T> {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        let (of, (offset, length)) = input.read()?;
        Ok(Self { of, offset, length, first: input.number()?, count: input.number()? })
    }
}

/// An operation on a tree. Trees and contexts are `T`; what was found is `F`, and a hash `H`, as
/// far as they are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the operands are in the table of the module; `to` is what is made"
)]
pub enum TreeOperation<'a, T, F, H> {
    Empty { context: T, to: T },
    OfValue { context: T, value: &'a [u8], to: T },
    OfRaw { raw: RawTree<'a>, to: T },
    Mem { tree: T, key: Key<'a>, answer: bool },
    MemTree { tree: T, key: Key<'a>, answer: bool },
    Find { tree: T, key: Key<'a>, found: F },
    IsEmpty { tree: T, answer: bool },
    Kind { tree: T, kind: TreeKind },
    Hash { tree: T, hash: H },
    Equal { left: T, right: T, answer: bool },
    ToValue { tree: T, found: F },
    Clear { depth: Option<u64>, tree: T },
    FindTree { tree: T, key: Key<'a>, to: Option<T> },
    List(Listing<T>),
    Add { tree: T, key: Key<'a>, value: &'a [u8], to: T },
    AddTree { tree: T, key: Key<'a>, child: T, to: T },
    Remove { tree: T, key: Key<'a>, to: T },
    FoldStart(Fold<'a, T>),
    FoldEnter { tree: T },
    FoldExit { tree: T },
    FoldEnd { count: u64 },
}

/// The tag of listing in raw traces; the later ones come one later there.
const LIST_TAG: u8 = 13;

/// Decodes an event that makes a context, by its place among these events. The events of both
/// families are the same, and differ in their types.
macro_rules! decode_write {
    ($place:expr, $input:expr) => {{
        // All of these events begin with their context.
        let context = $input.read()?;
        Ok(match $place {
            0 => Self::Add {
                context,
                key: $input.read()?,
                value: $input.read()?,
                to: $input.read()?,
            },
            1 => Self::Remove { context, key: $input.read()?, to: $input.read()? },
            2 => Self::AddProtocol { context, hash: $input.read()?, to: $input.read()? },
            3 => Self::AddPredecessorBlock { context, hash: $input.read()?, to: $input.read()? },
            4 => Self::AddPredecessorOps { context, hash: $input.read()?, to: $input.read()? },
            5 => Self::AddTestChain { context, status: $input.read()?, to: $input.read()? },
            6 => Self::RemoveTestChain { context, to: $input.read()? },
            _ => Self::ForkTestChain {
                context,
                protocol: $input.read()?,
                time: $input.read()?,
                to: $input.read()?,
            },
        })
    }};
}
pub(super) use decode_write;

/// Decodes an operation on a tree; `has_list` in raw traces.
pub(super) fn tree_operation<'a, T, F, H>(
    input: &mut Input<'a>,
    has_list: bool,
) -> Result<TreeOperation<'a, T, F, H>>
where
    T: Decode<'a>,
    F: Decode<'a>,
    H: Decode<'a>,
{
    use TreeOperation as Op;
    let tag = input.u8()?;
    // Raw traces have one operation more, so the tags behind it differ by one.
    if has_list && tag == LIST_TAG {
        return Ok(Op::List(input.read()?));
    }

    let op = match tag - u8::from(has_list && tag > LIST_TAG) {
        0 => Op::Empty { context: input.read()?, to: input.read()? },
        1 => Op::OfValue { context: input.read()?, value: input.read()?, to: input.read()? },
        2 => Op::OfRaw { raw: input.read()?, to: input.read()? },
        3 => Op::Mem { tree: input.read()?, key: input.read()?, answer: input.read()? },
        4 => Op::MemTree { tree: input.read()?, key: input.read()?, answer: input.read()? },
        5 => Op::Find { tree: input.read()?, key: input.read()?, found: input.read()? },
        6 => Op::IsEmpty { tree: input.read()?, answer: input.read()? },
        7 => Op::Kind { tree: input.read()?, kind: input.read()? },
        8 => Op::Hash { tree: input.read()?, hash: input.read()? },
        9 => Op::Equal { left: input.read()?, right: input.read()?, answer: input.read()? },
        10 => Op::ToValue { tree: input.read()?, found: input.read()? },
        11 => Op::Clear { depth: input.read()?, tree: input.read()? },
        12 => Op::FindTree { tree: input.read()?, key: input.read()?, to: input.read()? },
        13 => {
            let (tree, (key, value)) = input.read()?;
            Op::Add { tree, key, value, to: input.read()? }
        }
        14 => {
            let (tree, (key, child)) = input.read()?;
            Op::AddTree { tree, key, child, to: input.read()? }
        }
        15 => Op::Remove { tree: input.read()?, key: input.read()?, to: input.read()? },
        16 => Op::FoldStart(input.read()?),
        17 => Op::FoldEnter { tree: input.read()? },
        18 => Op::FoldExit { tree: input.read()? },
        19 => Op::FoldEnd { count: input.number()? },
        _ => return Err(Malformed::Tag { kind: "operation on a tree", tag }),
    };

    Ok(op)
}

/// Codes an operation on a tree of a replayable trace, in which nothing is listed.
impl<T: Encode> Encode for TreeOperation<'_, T, bool, ()> {
    fn encode(&self, out: &mut Output) {
        use TreeOperation as Op;
        // The fields follow the tag in their order.
        let mut put = |tag: u8, parts: &[&dyn Encode]| {
            out.u8(tag);
            for part in parts {
                part.encode(out);
            }
        };

        match self {
            Op::Empty { context, to } => put(0, &[context, to]),
            Op::OfValue { context, value, to } => put(1, &[context, value, to]),
            Op::OfRaw { raw, to } => put(2, &[raw, to]),
            Op::Mem { tree, key, answer } => put(3, &[tree, key, answer]),
            Op::MemTree { tree, key, answer } => put(4, &[tree, key, answer]),
            Op::Find { tree, key, found } => put(5, &[tree, key, found]),
            Op::IsEmpty { tree, answer } => put(6, &[tree, answer]),
            Op::Kind { tree, kind } => put(7, &[tree, kind]),
            Op::Hash { tree, hash: () } => put(8, &[tree]),
            Op::Equal { left, right, answer } => put(9, &[left, right, answer]),
            Op::ToValue { tree, found } => put(10, &[tree, found]),
            Op::Clear { depth, tree } => put(11, &[depth, tree]),
            Op::FindTree { tree, key, to } => put(12, &[tree, key, to]),
            Op::List(_) => unreachable!("replayable traces have no lists"),
            Op::Add { tree, key, value, to } => put(13, &[tree, key, value, to]),
            Op::AddTree { tree, key, child, to } => put(14, &[tree, key, child, to]),
            Op::Remove { tree, key, to } => put(15, &[tree, key, to]),
            Op::FoldStart(fold) => put(16, &[fold]),
            Op::FoldEnter { tree } => put(17, &[tree]),
            Op::FoldExit { tree } => put(18, &[tree]),
            Op::FoldEnd { count } => put(19, &[count]),
        }
    }
}
