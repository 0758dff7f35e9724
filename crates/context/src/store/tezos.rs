//! Tezos: the context of a Tezos node — its paths in a tree, the author of its commits, and the
//! names of its branches. No other module of the store knows Tezos.
//!
//! | physical path | what is there |
//! |---------------|---------------|
//! | `data/…`      | what the protocol writes, under its logical paths |
//! | `protocol`    | hash of the protocol (32 bytes) |
//! | `test_chain`  | status of the test chain: `00` not running; `01` ‖ protocol (32) ‖ expiration (i64 BE): forking; `02` ‖ chain (4) ‖ genesis (32) ‖ protocol (32) ‖ expiration (i64 BE): running |
//! | `predecessor_block_metadata_hash`, `predecessor_ops_metadata_hash` | hashes (32 bytes), once they are set |
//!
//! The author of all commits is `Tezos`. The head of a chain is a branch with the name of the
//! chain, base58check of `57 52 00` ‖ 4 bytes (`Net…`); the head of the main chain is also the
//! branch `main`.

use std::fmt;

use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hash::{HASH_BYTES, Hash, base58check};
use crate::base::path::PathText;
use crate::proof::proof::{KindedHash, Proof, ProofError, Verified};
use crate::proof::prove::{Target, merkle_tree, produce_tree_proof};
use crate::store::context::Context;
use crate::store::store::{Meta, Store};
use crate::tree::diff::Change;
use crate::tree::fold::{Children, Fold};
use crate::tree::into_value::IntoValue;
use crate::tree::tree::Tree;

const DATA: &[u8] = b"data";
const PROTOCOL: &[u8] = b"protocol";
const TEST_CHAIN: &[u8] = b"test_chain";
const BLOCK_METADATA: &[u8] = b"predecessor_block_metadata_hash";
const OPS_METADATA: &[u8] = b"predecessor_ops_metadata_hash";
/// The branch of the main chain.
const MASTER: &[u8] = b"main";
const CHAIN_PREFIX: [u8; 3] = [0x57, 0x52, 0x00];

/// Identity of a chain, shown in base58check, such as `NetXdQprcVkpaWU`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainId(pub [u8; 4]);

impl fmt::Display for ChainId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&base58check(&CHAIN_PREFIX, &self.0))
    }
}

impl ChainId {
    fn branch(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

/// Status of the test chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestChain {
    /// No test chain runs.
    NotRunning,
    /// The test chain begins with the next block.
    Forking {
        /// Hash of its protocol.
        protocol: [u8; HASH_BYTES],
        /// End of the test chain, in seconds since 1970.
        expiration: i64,
    },
    /// The test chain runs.
    Running {
        /// Identity of the test chain.
        chain: ChainId,
        /// Hash of its first block.
        genesis: [u8; HASH_BYTES],
        /// Hash of its protocol.
        protocol: [u8; HASH_BYTES],
        /// End of the test chain, in seconds since 1970.
        expiration: i64,
    },
}

impl TestChain {
    #[expect(clippy::big_endian_bytes, reason = "the encoding of Tezos is big-endian")]
    fn encode(self) -> Vec<u8> {
        match self {
            Self::NotRunning => vec![0],
            Self::Forking { protocol, expiration } => {
                [&[1], &protocol[..], &expiration.to_be_bytes()].concat()
            }
            Self::Running { chain, genesis, protocol, expiration } => {
                [&[2], &chain.0[..], &genesis, &protocol, &expiration.to_be_bytes()].concat()
            }
        }
    }

    #[expect(clippy::big_endian_bytes, reason = "the encoding of Tezos is big-endian")]
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, mut rest) = bytes.split_first()?;
        let status = match tag {
            0 => Self::NotRunning,
            1 => Self::Forking {
                protocol: take(&mut rest)?,
                expiration: i64::from_be_bytes(take(&mut rest)?),
            },
            2 => Self::Running {
                chain: ChainId(take(&mut rest)?),
                genesis: take(&mut rest)?,
                protocol: take(&mut rest)?,
                expiration: i64::from_be_bytes(take(&mut rest)?),
            },
            _ => return None,
        };

        // Trailing bytes are no status: an encoding is unique.
        rest.is_empty().then_some(status)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

/// Tezos context under logical paths, which do not begin with `data`. All calls are those of
/// [`Tree`], with its costs and errors.
#[derive(Debug, Clone)]
pub struct TezosContext {
    context: Context,
}

/// Returns the physical path of a logical path.
fn physical<S: AsRef<[u8]>>(path: &[S]) -> Vec<&[u8]> {
    std::iter::once(DATA).chain(path.iter().map(AsRef::as_ref)).collect()
}

impl From<Context> for TezosContext {
    /// Wraps a context, to use it under logical paths.
    fn from(context: Context) -> Self {
        Self { context }
    }
}

impl TezosContext {
    /// Returns the context with physical paths.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the context with physical paths, for changes.
    pub fn context_mut(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Returns whether a value is bound at `path`.
    ///
    /// # Errors
    /// Errors of [`Tree::mem`].
    pub fn mem<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<bool> {
        self.context.mem(&physical(path))
    }

    /// Returns whether a value or a directory is bound at `path`.
    ///
    /// # Errors
    /// Errors of [`Tree::mem`].
    pub fn mem_tree<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<bool> {
        self.context.mem_tree(&physical(path))
    }

    /// Returns the value at `path`.
    ///
    /// # Errors
    /// Errors of [`Tree::find`].
    pub fn find<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Option<Vec<u8>>> {
        self.context.find(&physical(path))
    }

    /// Returns the tree at `path`.
    ///
    /// # Errors
    /// Errors of [`Tree::find_tree`].
    pub fn find_tree<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Option<Tree>> {
        self.context.find_tree(&physical(path))
    }

    /// Number of children of the directory at `path`.
    ///
    /// # Errors
    /// Errors of [`Tree::length`].
    pub fn length<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<u64> {
        self.context.length(&physical(path))
    }

    /// Returns a page of the children of the directory at `path`.
    ///
    /// # Errors
    /// Errors of [`Tree::list`].
    pub fn list<S: AsRef<[u8]>>(
        &self,
        path: &[S],
        offset: usize,
        length: usize,
    ) -> Result<Vec<(Box<[u8]>, Tree)>> {
        self.context.list(&physical(path), offset, length)
    }

    /// Calls `read` with the value at `path` in place, like [`Tree::find_with`].
    ///
    /// # Errors
    /// Errors of [`Tree::find_with`].
    pub fn find_with<S: AsRef<[u8]>, R>(
        &self,
        path: &[S],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        self.context.find_with(&physical(path), read)
    }

    /// Visits what `fold` selects at and below `path`, like [`Tree::fold`]. The empty path is the
    /// root of the logical paths.
    ///
    /// # Errors
    /// Errors of [`Tree::fold`]; the first error of `visit` ends the fold.
    pub fn fold<S: AsRef<[u8]>, A, E: From<Error>>(
        &self,
        path: &[S],
        fold: Fold,
        init: A,
        visit: impl FnMut(&[Box<[u8]>], Tree, A) -> std::result::Result<A, E>,
    ) -> std::result::Result<A, E> {
        self.context.fold(&physical(path), fold, init, visit)
    }

    /// Returns the children of the directory at `path` one by one, like [`Tree::seq`].
    ///
    /// # Errors
    /// Errors of [`Tree::seq`].
    pub fn seq<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Children> {
        self.context.seq(&physical(path))
    }

    /// Calls `visit` for each logical path at which the values of the two contexts differ,
    /// ascending,
    /// like [`Tree::diff`]. Protocol, test chain and the other keys beside the data are left out.
    ///
    /// # Errors
    /// Errors of [`Tree::diff`]; the first error of `visit` ends the walk.
    pub fn diff<E: From<Error>>(
        &self,
        other: &Self,
        visit: impl FnMut(&[Box<[u8]>], Change) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.data()?.diff(&other.data()?, visit)
    }

    /// Returns the tree of the logical paths.
    fn data(&self) -> Result<Tree> {
        let data = self.context.find_tree(&[DATA])?;
        Ok(data.unwrap_or_else(|| self.context.empty()))
    }

    /// Runs `f` on the context under logical paths; returns the proof of what `f` read and changed,
    /// and the result of `f`. The proof is about the root of the whole context, the one in a
    /// commit.
    ///
    /// # Errors
    /// Errors of [`produce_tree_proof`].
    pub fn produce_proof<R>(
        &self,
        f: impl FnOnce(Self) -> Result<(Self, R)>,
    ) -> std::result::Result<(Proof, R), ProofError> {
        produce_tree_proof(self.context.tree(), under_logical_paths(f))
    }

    /// Proves the child at one logical path, like [`merkle_tree`]. A verifier finds the child in
    /// the tree of [`Verified`], or by [`Verified::replay_tezos`].
    ///
    /// # Errors
    /// Errors of [`merkle_tree`].
    pub fn merkle_tree<S: AsRef<[u8]>>(
        &self,
        path: &[S],
        target: Target,
    ) -> std::result::Result<Proof, ProofError> {
        merkle_tree(self.context.tree(), &physical(path), target)
    }

    /// Binds a value at `path`; returns whether anything changed.
    ///
    /// # Errors
    /// Errors of [`Tree::add`].
    pub fn add<S: AsRef<[u8]>>(&mut self, path: &[S], value: impl IntoValue) -> Result<bool> {
        self.context.add(&physical(path), value)
    }

    /// Binds a tree at `path`; returns whether anything changed.
    ///
    /// # Errors
    /// Errors of [`Tree::add_tree`].
    pub fn add_tree<S: AsRef<[u8]>>(&mut self, path: &[S], tree: &Tree) -> Result<bool> {
        self.context.add_tree(&physical(path), tree)
    }

    /// Unbinds `path`; returns whether it was bound.
    ///
    /// # Errors
    /// Errors of [`Tree::remove`].
    pub fn remove<S: AsRef<[u8]>>(&mut self, path: &[S]) -> Result<bool> {
        self.context.remove(&physical(path))
    }

    fn hash_at(&self, step: &'static [u8]) -> Result<Option<[u8; HASH_BYTES]>> {
        let Some(value) = self.context.find(&[step])? else { return Ok(None) };
        let found = value.len() as u64;
        let hash = value.try_into().map_err(|_| Error::Malformed {
            path: PathText::new(&[step]),
            what: Corrupt::rule("bytes of a hash", HASH_BYTES as u64, found),
        })?;
        Ok(Some(hash))
    }

    /// Hash of the protocol.
    ///
    /// # Errors
    /// Errors of [`Tree::find`], [`Absent`](Error::Absent), [`Malformed`](Error::Malformed).
    pub fn protocol(&self) -> Result<[u8; HASH_BYTES]> {
        self.hash_at(PROTOCOL)?.ok_or_else(|| Error::Absent { path: PathText::new(&[PROTOCOL]) })
    }

    /// Sets the protocol.
    ///
    /// # Errors
    /// Errors of [`Tree::add`].
    pub fn set_protocol(&mut self, protocol: &[u8; HASH_BYTES]) -> Result<()> {
        self.context.add(&[PROTOCOL], *protocol).map(|_| ())
    }

    /// Status of the test chain.
    ///
    /// # Errors
    /// Errors of [`Tree::find`], [`Absent`](Error::Absent), [`Malformed`](Error::Malformed).
    pub fn test_chain(&self) -> Result<TestChain> {
        let path = || PathText::new(&[TEST_CHAIN]);
        let value = self.context.find(&[TEST_CHAIN])?;
        let value = value.ok_or_else(|| Error::Absent { path: path() })?;
        TestChain::decode(&value).ok_or_else(|| Error::Malformed {
            path: path(),
            what: Corrupt::rule("status of the test chain", 1, value.len() as u64),
        })
    }

    /// Sets the status of the test chain.
    ///
    /// # Errors
    /// Errors of [`Tree::add`].
    pub fn set_test_chain(&mut self, status: TestChain) -> Result<()> {
        self.context.add(&[TEST_CHAIN], status.encode()).map(|_| ())
    }

    /// Removes the status of the test chain.
    ///
    /// # Errors
    /// Errors of [`Tree::remove`].
    pub fn remove_test_chain(&mut self) -> Result<()> {
        self.context.remove(&[TEST_CHAIN]).map(|_| ())
    }

    /// Hash of the metadata of the previous block, if it is set.
    ///
    /// # Errors
    /// Errors of [`Tree::find`], [`Malformed`](Error::Malformed).
    pub fn predecessor_block_metadata_hash(&self) -> Result<Option<[u8; HASH_BYTES]>> {
        self.hash_at(BLOCK_METADATA)
    }

    /// Sets the hash of the metadata of the previous block.
    ///
    /// # Errors
    /// Errors of [`Tree::add`].
    pub fn set_predecessor_block_metadata_hash(&mut self, hash: &[u8; HASH_BYTES]) -> Result<()> {
        self.context.add(&[BLOCK_METADATA], *hash).map(|_| ())
    }

    /// Hash of the metadata of the operations of the previous block, if it is set.
    ///
    /// # Errors
    /// Errors of [`Tree::find`], [`Malformed`](Error::Malformed).
    pub fn predecessor_ops_metadata_hash(&self) -> Result<Option<[u8; HASH_BYTES]>> {
        self.hash_at(OPS_METADATA)
    }

    /// Sets the hash of the metadata of the operations of the previous block.
    ///
    /// # Errors
    /// Errors of [`Tree::add`].
    pub fn set_predecessor_ops_metadata_hash(&mut self, hash: &[u8; HASH_BYTES]) -> Result<()> {
        self.context.add(&[OPS_METADATA], *hash).map(|_| ())
    }

    /// Version of the hashes, always 0.
    pub fn hash_version(&self) -> u8 {
        0
    }

    /// Sets the version of the hashes, which must be 0.
    ///
    /// # Errors
    /// [`UnsupportedHashVersion`](Error::UnsupportedHashVersion) for any other.
    pub fn set_hash_version(&mut self, version: u8) -> Result<()> {
        if version == 0 { Ok(()) } else { Err(Error::UnsupportedHashVersion { version }) }
    }
}

/// Returns the computation on a tree that `f` is on its logical paths.
fn under_logical_paths<R>(
    f: impl FnOnce(TezosContext) -> Result<(TezosContext, R)>,
) -> impl FnOnce(Tree) -> Result<(Tree, R)> {
    |tree| {
        let context = TezosContext { context: Context::new(tree, Vec::new()) };
        let (changed, result) = f(context)?;
        Ok((changed.context.into_tree(), result))
    }
}

impl Verified<'_> {
    /// Runs the proven computation `f` under logical paths, like [`replay`](Self::replay): the
    /// verifier's side of [`TezosContext::produce_proof`].
    ///
    /// # Errors
    /// Errors of [`replay`](Self::replay).
    pub fn replay_tezos<R>(
        &self,
        f: impl FnOnce(TezosContext) -> Result<(TezosContext, R)>,
    ) -> std::result::Result<(KindedHash, R), ProofError> {
        self.replay(under_logical_paths(f))
    }
}

impl Store {
    /// Checks out a commit like [`checkout`](Self::checkout), under logical paths.
    ///
    /// # Errors
    /// Errors of [`checkout`](Self::checkout).
    pub fn checkout_tezos(&self, hash: &Hash) -> Result<Option<TezosContext>> {
        Ok(self.checkout(hash)?.map(|context| TezosContext { context }))
    }

    /// Returns the hash that [`commit_tezos`](Self::commit_tezos) would return. Writes nothing.
    pub fn hash_tezos(&self, context: &TezosContext, time: i64, message: &str) -> Hash {
        self.hash(&context.context, &Meta::tezos(time, message))
    }

    /// Commits like [`commit`](Self::commit), with the author `Tezos`.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit).
    pub fn commit_tezos(&self, context: &TezosContext, time: i64, message: &str) -> Result<Hash> {
        self.commit(&context.context, &Meta::tezos(time, message))
    }

    /// Commits the first context of a chain, and sets the head of the chain. The context has a
    /// protocol, no test chain, and the changes of `patch`.
    ///
    /// # Errors
    /// Errors of `patch`, and of [`commit_to`](Self::commit_to).
    pub fn commit_genesis(
        &self,
        chain: ChainId,
        time: i64,
        protocol: &[u8; HASH_BYTES],
        patch: impl FnOnce(&mut TezosContext) -> Result<()>,
    ) -> Result<Hash> {
        let mut context = TezosContext { context: self.empty() };

        // The protocol is set after `patch`, which cannot replace it.
        patch(&mut context)?;
        context.set_protocol(protocol)?;
        context.set_test_chain(TestChain::NotRunning)?;
        let meta = Meta::tezos(time, "Genesis");
        self.commit_to(&chain.branch(), &context.context, &meta)
    }

    /// Commits the first context of a test chain that forks at a block of this level and time, and
    /// sets its head.
    ///
    /// # Errors
    /// Errors of [`commit_to`](Self::commit_to).
    pub fn commit_test_chain_genesis(
        &self,
        context: &TezosContext,
        chain: ChainId,
        level: i32,
        time: i64,
    ) -> Result<Hash> {
        let message = format!("Forking testchain at level {level}.");
        let meta = Meta::tezos(time, &message);
        self.commit_to(&chain.branch(), &context.context, &meta)
    }

    /// Removes the head of a test chain; returns whether there was one.
    ///
    /// # Errors
    /// Errors of [`remove_branch`](Self::remove_branch).
    pub fn clear_test_chain(&self, chain: ChainId) -> Result<bool> {
        self.remove_branch(&chain.branch())
    }

    /// Head of a chain, if the chain has one.
    pub fn head(&self, chain: ChainId) -> Option<Hash> {
        self.branch(&chain.branch())
    }

    /// Sets the head of a chain.
    ///
    /// # Errors
    /// Errors of [`set_branch`](Self::set_branch).
    pub fn set_head(&self, chain: ChainId, commit: &Hash) -> Result<()> {
        self.set_branch(&chain.branch(), commit)
    }

    /// Sets the branch `main`.
    ///
    /// # Errors
    /// Errors of [`set_branch`](Self::set_branch).
    pub fn set_master(&self, commit: &Hash) -> Result<()> {
        self.set_branch(MASTER, commit)
    }
}
