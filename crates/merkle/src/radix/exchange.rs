//! One version of a tree as a stream: out of one store, into another of whatever back-end.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | [`EXPORT_MAGIC`] |
//! | 4 | [`EXPORT_VERSION`] |
//! | 1, .. | length of the name of the scheme, and the name: [`SCHEME`] |
//! | 32 | the root |
//! | 4 | CRC-32C of all before |
//! | .. | the values, ascending by address: length of the address (1 to 35), address, length of the value (4), value |
//! | 1 | [`END_TAG`] |
//! | 8 | number of values |
//! | 4 | CRC-32C of all before |
//!
//! Numbers are little-endian. As soon as [`MARK_BYTES`] have come since the head or the last mark, a value is
//! followed by a mark: a [`MARK_TAG`] and the CRC-32C of all before (4). So damage is found near to where it is, and what is
//! in a stream is a function of the state alone.

use std::io::{BufReader, Read, Write};

use terrane_io::checksum::crc32c_append;

use crate::backend::VALUE_BYTES_MAX;
use crate::radix::address::{ADDRESS_BYTES_MAX, Address, Prefix};
use crate::radix::bulk::Bulk;
use crate::radix::error::Error;
use crate::radix::node_hash::{NODE_HASH_BYTES, NodeHash, Root};
use crate::radix::store::Tree;
use crate::radix::transaction::{Committed, Transaction};
use crate::radix::versions::SCHEME;

/// What a stream begins with.
pub(crate) const EXPORT_MAGIC: [u8; 8] = *b"TRNRDXEX";
/// Version of the format.
pub(crate) const EXPORT_VERSION: u32 = 1;
/// Comes instead of the length of an address at the end.
pub(crate) const END_TAG: u8 = 0;
/// Comes instead of the length of an address before a checksum.
pub(crate) const MARK_TAG: u8 = 0xff;
/// Bytes from one mark to the next at least.
pub(crate) const MARK_BYTES: u64 = 65_536;

/// What goes wrong while a state is brought out or in. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Reading or writing the stream failed.
    #[error("the stream failed at byte {at}")]
    Io {
        /// Bytes before it.
        at: u64,
        /// Why.
        source: std::io::Error,
    },
    /// The stream is not one, or not as it was written. Export again.
    #[error("damaged at byte {at}: {rule}")]
    Damaged {
        /// Where it was noticed: not before the damage, and at most one mark after it.
        at: u64,
        /// Which rule is broken.
        rule: &'static str,
    },
    /// A stream of another version, or with nodes hashed in another way.
    #[error("the stream has {what} {found}; this program reads {known}")]
    Unsupported {
        /// What of it.
        what: &'static str,
        /// What the stream has.
        found: String,
        /// What this program reads.
        known: String,
    },
    /// The values do not hash to the root that the stream names.
    #[error("the values hash to root {found}, and the stream names {expected}")]
    WrongRoot {
        /// The root that was named.
        expected: Root,
        /// The root of what came.
        found: Root,
    },
    /// A node that is not in what is imported.
    #[error("node {node} at {path:?} is missing")]
    MissingNode {
        /// Its hash.
        node: NodeHash,
        /// The address that it is needed for.
        path: Prefix,
    },
    /// A node that is not as it should be.
    #[error("node {node}: {rule}")]
    BrokenNode {
        /// The hash by which it is named.
        node: NodeHash,
        /// Which rule is broken.
        rule: String,
    },
    /// The nodes stand for more values than the caller takes.
    #[error("more than {max} values")]
    TooManyValues {
        /// How many are taken.
        max: u64,
    },
    /// The store failed, or what is in it is damaged.
    #[error(transparent)]
    Store(Box<Error>),
}

impl From<Error> for ExchangeError {
    fn from(error: Error) -> Self {
        Self::Store(Box::new(error))
    }
}

type Exchanged<T> = Result<T, ExchangeError>;

/// What was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// The root.
    pub root: Root,
    /// How many values it has.
    pub values: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

impl Tree {
    /// Writes a state as a stream, in pieces of some bytes; `output` should have a buffer, and is flushed. The same state gives
    /// the same bytes from every store.
    ///
    /// Cost: reads each stop once. Memory: one path, and a value.
    ///
    /// # Errors
    /// [`ExchangeError::Io`], and as [`Error`]: [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those
    /// of the back-end.
    pub fn export(&self, root: &Root, output: impl Write) -> Result<Exported, ExchangeError> {
        let leaves = self.leaves(root, &Prefix::EMPTY)?;
        let mut sink = Sink { output, at: 0, crc: 0 };
        sink.put(&EXPORT_MAGIC)?;
        sink.put(&EXPORT_VERSION.to_le_bytes())?;
        sink.put(&[SCHEME.len() as u8])?;
        sink.put(SCHEME.as_bytes())?;
        sink.put(&root.0)?;
        sink.put_crc()?;
        let mut values: u64 = 0;
        let mut mark = sink.at;
        for leaf in leaves {
            let (address, value) = leaf?;
            sink.put(&[address.as_bytes().len() as u8])?;
            sink.put(address.as_bytes())?;
            // Values are stored in rows, which have a limit far below.
            sink.put(&(value.len() as u32).to_le_bytes())?;
            sink.put(&value)?;
            if sink.at - mark >= MARK_BYTES {
                sink.put(&[MARK_TAG])?;
                sink.put_crc()?;
                mark = sink.at;
            }
            values += 1;
        }
        sink.put(&[END_TAG])?;
        sink.put(&values.to_le_bytes())?;
        sink.put_crc()?;
        let at = sink.at;
        sink.output.flush().map_err(|source| ExchangeError::Io { at, source })?;
        Ok(Exported { root: *root, values, bytes: sink.at })
    }

    /// Reads a state from a stream that ends with it, and retains it as a new version, without a parent and in one
    /// transaction: it is there when its root was computed anew and is the one that the stream names, and else nothing is.
    ///
    /// Cost: hashes every node; writes the row of each stop. Memory: one path, 4 MiB of rows, a value, and what the
    /// back-end holds of a transaction.
    ///
    /// # Errors
    /// [`ExchangeError::Io`], [`ExchangeError::Damaged`], [`ExchangeError::Unsupported`], [`ExchangeError::WrongRoot`], and as
    /// [`Error`]: [`Error::UnknownTree`] and those of the back-end.
    pub fn import(&self, input: impl Read) -> Result<Committed, ExchangeError> {
        let mut transaction = self.transaction()?;
        let mut source = Source { input: BufReader::new(input), at: 0, crc: 0 };
        let root = source.head()?;
        let mut bulk = Bulk::new();
        source.values(|address, value| bulk.push(transaction.writer(), address, value))?;
        take(self, transaction, bulk, &root)
    }
}

/// Retains what was built if it has the root that it should have.
pub(crate) fn take(
    tree: &Tree,
    mut transaction: Transaction<'_>,
    bulk: Bulk,
    root: &Root,
) -> Exchanged<Committed> {
    let (edge, added) = bulk.finish(transaction.writer())?;
    let found = edge.as_ref().map_or(Root::EMPTY, |edge| edge.top);
    if found != *root {
        return Err(ExchangeError::WrongRoot { expected: *root, found });
    }
    let Some(edge) = edge else {
        return Ok(Committed { root: Root::EMPTY, version: None, added: 0 });
    };
    let version = transaction.add_version(tree.tree_name(), edge, None, &[])?;
    transaction.finish()?;
    Ok(Committed { root: *root, version: Some(version), added })
}

/// A stream that is being written.
struct Sink<W> {
    output: W,
    at: u64,
    crc: u32,
}

impl<W: Write> Sink<W> {
    fn put(&mut self, bytes: &[u8]) -> Exchanged<()> {
        let at = self.at;
        self.output.write_all(bytes).map_err(|source| ExchangeError::Io { at, source })?;
        self.at += bytes.len() as u64;
        self.crc = crc32c_append(self.crc, bytes);
        Ok(())
    }

    fn put_crc(&mut self) -> Exchanged<()> {
        self.put(&self.crc.to_le_bytes())
    }
}

/// A stream that is being read.
struct Source<R> {
    input: BufReader<R>,
    at: u64,
    crc: u32,
}

impl<R: Read> Source<R> {
    fn damaged<T>(&self, rule: &'static str) -> Exchanged<T> {
        Err(ExchangeError::Damaged { at: self.at, rule })
    }

    /// The next bytes; takes memory as they come.
    fn bytes(&mut self, count: usize) -> Exchanged<Vec<u8>> {
        let mut bytes = Vec::new();
        let io = |source| ExchangeError::Io { at: self.at, source };
        (&mut self.input).take(count as u64).read_to_end(&mut bytes).map_err(io)?;
        self.at += bytes.len() as u64;
        self.crc = crc32c_append(self.crc, &bytes);
        if bytes.len() < count { self.damaged("it is cut short") } else { Ok(bytes) }
    }

    fn array<const N: usize>(&mut self) -> Exchanged<[u8; N]> {
        let bytes = self.bytes(N)?;
        bytes.try_into().or_else(|_| self.damaged("it is cut short"))
    }

    fn check_crc(&mut self) -> Exchanged<()> {
        let expected = self.crc;
        let found = u32::from_le_bytes(self.array()?);
        if found == expected { Ok(()) } else { self.damaged("checksum") }
    }

    /// The root that the stream names.
    fn head(&mut self) -> Exchanged<Root> {
        if self.array()? != EXPORT_MAGIC {
            return self.damaged("it is no export of a radix state");
        }
        let version = u32::from_le_bytes(self.array()?);
        if version != EXPORT_VERSION {
            let (found, known) = (version.to_string(), EXPORT_VERSION.to_string());
            return Err(ExchangeError::Unsupported { what: "version", found, known });
        }
        let [len] = self.array()?;
        let scheme = self.bytes(usize::from(len))?;
        let root = NodeHash(self.array::<NODE_HASH_BYTES>()?);
        self.check_crc()?;
        if scheme != SCHEME.as_bytes() {
            let found = scheme.escape_ascii().to_string();
            return Err(ExchangeError::Unsupported { what: "scheme", found, known: SCHEME.into() });
        }
        Ok(root)
    }

    /// Calls `push` with each value, which ascend, up to the end of the stream.
    fn values(
        &mut self,
        mut push: impl FnMut(&Address, Vec<u8>) -> Result<(), Error>,
    ) -> Exchanged<()> {
        let mut last = Prefix::EMPTY;
        let mut count: u64 = 0;
        let mut mark = self.at;
        loop {
            let is_due = self.at - mark >= MARK_BYTES;
            match self.array()? {
                [MARK_TAG] if is_due => {
                    self.check_crc()?;
                    mark = self.at;
                }
                _ if is_due => return self.damaged("a mark is missing"),
                [END_TAG] => break,
                [len] if usize::from(len) <= ADDRESS_BYTES_MAX => {
                    let bytes = self.bytes(usize::from(len))?;
                    let Ok(address) = Address::new(&bytes) else {
                        return self.damaged("length of an address");
                    };
                    if Prefix::from(address) <= last {
                        return self.damaged("addresses do not ascend");
                    }
                    last = address.into();
                    let len = u32::from_le_bytes(self.array()?) as usize;
                    if len > VALUE_BYTES_MAX {
                        return self.damaged("a value is too long");
                    }
                    let value = self.bytes(len)?;
                    push(&address, value)?;
                    count += 1;
                }
                _ => return self.damaged("length of an address"),
            }
        }
        let found = u64::from_le_bytes(self.array()?);
        self.check_crc()?;
        if found != count {
            return self.damaged("number of values");
        }
        let mut more = [0; 1];
        let at = self.at;
        match self.input.read(&mut more).map_err(|source| ExchangeError::Io { at, source })? {
            0 => Ok(()),
            _ => self.damaged("something follows the end"),
        }
    }
}
