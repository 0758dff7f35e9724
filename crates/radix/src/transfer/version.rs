//! Stream of one version of a tree, from one store into another of any back-end.
//! [`tree`](crate::transfer::tree) has all versions.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | [`EXPORT_MAGIC`] |
//! | 4 | [`EXPORT_VERSION`] |
//! | 1, .. | length of the name of the scheme, and the name: [`SCHEME`] |
//! | 1 | [`STATE_KIND`] |
//! | 4 | CRC-32C of all before, which are the head |
//! | 32 | the root |
//! | 2, .. | length of the metadata of the version, and the metadata |
//! | .. | the values, ascending by address: length of the address (1 to 35), address, length of the value (4), value |
//! | 1 | [`END_TAG`] |
//! | 8 | number of values |
//! | 4 | CRC-32C of all before |
//!
//! Numbers are little-endian. Once [`MARK_BYTES`] bytes have passed since the head or the last
//! mark, the next tag or length of an address follows a mark: a [`MARK_TAG`] and the CRC-32C of all
//! before (4). Marks locate damage. The stream is a function of state and metadata alone.

use std::io::{BufReader, Read, Write};
use std::sync::Arc;

use terrane_io::checksum::crc32c_append;

use crate::base::address::{ADDRESS_BYTES_MAX, Address, Prefix};
use crate::base::change::VALUE_BYTES_MAX;
use crate::base::error::Error;
use crate::base::node_hash::{NODE_HASH_BYTES, NodeHash, Root};
use crate::commit::bulk::Bulk;
use crate::records::versions::SCHEME;
use crate::store::inner::{Snapshot, version_of};
use crate::store::leaves::{Leaves, View};
use crate::store::store::Tree;
use crate::store::transaction::{Committed, Transaction, VERSION_METADATA_BYTES_MAX};

/// First bytes of a stream.
pub(crate) const EXPORT_MAGIC: [u8; 8] = *b"TRNRDXEX";
/// Version of the format.
pub(crate) const EXPORT_VERSION: u32 = 2;
/// Kind of a stream of one version.
pub(crate) const STATE_KIND: u8 = 1;
/// Kind of a stream of all versions of a tree.
pub(crate) const TREE_KIND: u8 = 2;
/// Comes before a version of a tree.
pub(crate) const VERSION_TAG: u8 = 0xfe;
/// Stands for the length of a value that the parent has and the version does not.
pub(crate) const REMOVED: u32 = u32::MAX;
/// Comes instead of the length of an address or a version at the end.
pub(crate) const END_TAG: u8 = 0;
/// Comes instead of the length of an address before a checksum.
pub(crate) const MARK_TAG: u8 = 0xff;
/// Bytes from one mark to the next at least.
pub(crate) const MARK_BYTES: u64 = 65_536;

/// Error of an export or import. Nothing was changed.
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
    /// The bytes are no stream, or not the stream that was written. Export again.
    #[error("damaged at byte {at}: {rule}")]
    Damaged {
        /// Bytes of the stream before the place where the damage was noticed: behind the first
        /// damaged byte, and at or before the next checksum, unless the stream goes on behind its
        /// end.
        at: u64,
        /// Which rule is broken.
        rule: &'static str,
    },
    /// A stream of another version, of another kind, or with nodes hashed in another way.
    #[error("the stream has {what} {found}; this program reads {known}")]
    Unsupported {
        /// Property of the stream.
        what: &'static str,
        /// Value in the stream.
        found: String,
        /// Values that this program reads.
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
    /// A node that the imported nodes lack.
    #[error("node {node} at {path:?} is missing")]
    MissingNode {
        /// Its hash.
        node: NodeHash,
        /// The address that it is needed for.
        path: Prefix,
    },
    /// A node that breaks a rule.
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

pub(crate) type Exchanged<T> = Result<T, ExchangeError>;

/// Outcome of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// The root.
    pub root: Root,
    /// Number of values.
    pub values: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

impl Tree {
    /// Writes a state as a stream, with the metadata of its newest version. Equal states with equal
    /// metadata give the same bytes from every store. Writes are small: give `output` a buffer. The
    /// call flushes `output`.
    ///
    /// Cost: reads each node once. Memory: one path, and a value.
    ///
    /// # Errors
    /// [`ExchangeError::Io`], and as [`Error`]: [`Error::UnknownTree`], [`Error::UnknownRoot`],
    /// [`Error::Corruption`] and those of the back-end.
    pub fn export(&self, root: &Root, output: impl Write) -> Result<Exported, ExchangeError> {
        let Snapshot { reader, .. } = self.snapshot()?;
        let version = version_of(&*reader, self.tree_name().id, self.name(), root)?;
        let edge = version.as_ref().map(|version| &version.edge);
        let inner = Arc::clone(self.inner());
        let view = View::Snapshot(reader);
        let leaves = Leaves::below(inner, view, *root, edge, &Prefix::EMPTY)?;
        let mut sink = Sink::begin(output, STATE_KIND)?;
        sink.put(&root.0)?;
        sink.put_metadata(version.as_ref().map_or(&[], |version| &version.metadata))?;

        let mut values: u64 = 0;
        for leaf in leaves {
            let (address, value) = leaf?;
            sink.put_value(&address, Some(&value))?;
            values += 1;
        }

        let bytes = sink.end(values)?;
        Ok(Exported { root: *root, values, bytes })
    }

    /// Reads a state from a stream, and retains it as a new version without a parent, with the
    /// metadata of the stream. The import is one transaction. It computes the root anew; if the
    /// root is not the one that the stream names, nothing is retained. The stream must end with the
    /// state.
    ///
    /// The call holds the writer from the head of the stream to its end, so no other commit is made
    /// meanwhile. Save a slow stream to a file first.
    ///
    /// Cost: hashes every node; writes the record of each node. Memory: one path, 4 MiB of records,
    /// a value, and what the back-end holds of a transaction.
    ///
    /// # Errors
    /// [`ExchangeError::Io`], [`ExchangeError::Damaged`], [`ExchangeError::Unsupported`],
    /// [`ExchangeError::WrongRoot`], and as
    /// [`Error`]: [`Error::UnknownTree`] and those of the back-end.
    pub fn import(&self, input: impl Read) -> Result<Committed, ExchangeError> {
        let (source, kind) = Source::begin(input)?;
        if kind != STATE_KIND {
            let found = content(kind);
            let known = content(STATE_KIND);
            return Err(ExchangeError::Unsupported { what: "content", found, known });
        }
        self.import_version(source)
    }

    /// Reads what follows the head.
    pub(crate) fn import_version<R: Read>(&self, mut source: Source<R>) -> Exchanged<Committed> {
        let root = NodeHash(source.array::<NODE_HASH_BYTES>()?);
        let metadata = source.metadata()?;
        let mut transaction = self.transaction()?;
        let mut bulk = Bulk::new();
        let count = source.values(|source, address, value| match value {
            Some(value) => Ok(bulk.push(transaction.writer(), address, value)?),
            None => source.damaged("a value is too long"),
        })?;
        // The count is checked before anything is retained.
        source.end(count, "number of values")?;
        take(self, transaction, bulk, &root, &metadata)
    }
}

/// Retains the built state if it has the expected root.
pub(crate) fn take(
    tree: &Tree,
    mut transaction: Transaction<'_>,
    bulk: Bulk,
    root: &Root,
    metadata: &[u8],
) -> Exchanged<Committed> {
    let (edge, added) = bulk.finish(transaction.writer())?;
    // A wrong root drops the transaction, which then changes nothing.
    check_root(root, &edge.as_ref().map_or(Root::EMPTY, |edge| edge.top))?;
    let Some(edge) = edge else {
        return Ok(Committed { root: Root::EMPTY, version: None, added: 0 });
    };
    let version = transaction.add_version(tree.tree_name(), edge, None, metadata)?;
    transaction.finish()?;
    Ok(Committed { root: *root, version: Some(version), added })
}

pub(crate) fn check_root(expected: &Root, found: &Root) -> Exchanged<()> {
    if found == expected {
        return Ok(());
    }
    Err(ExchangeError::WrongRoot { expected: *expected, found: *found })
}

/// Writer of a stream.
pub(crate) struct Sink<W> {
    output: W,
    at: u64,
    /// Offset of the end of the last mark, or of the head.
    mark: u64,
    crc: u32,
}

impl<W: Write> Sink<W> {
    /// Writes the head.
    pub(crate) fn begin(output: W, kind: u8) -> Exchanged<Self> {
        let mut sink = Self { output, at: 0, mark: 0, crc: 0 };
        sink.put(&EXPORT_MAGIC)?;
        sink.put(&EXPORT_VERSION.to_le_bytes())?;
        sink.put(&[SCHEME.len() as u8])?;
        sink.put(SCHEME.as_bytes())?;
        sink.put(&[kind])?;
        // The header has a checksum of its own, so that damage is found before any value is read.
        sink.put_crc()?;
        sink.mark = sink.at;
        Ok(sink)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Exchanged<()> {
        let at = self.at;
        self.output.write_all(bytes).map_err(|source| ExchangeError::Io { at, source })?;
        self.at += bytes.len() as u64;
        self.crc = crc32c_append(self.crc, bytes);
        Ok(())
    }

    fn put_crc(&mut self) -> Exchanged<()> {
        self.put(&self.crc.to_le_bytes())
    }

    /// Writes the metadata of a version, whose limit is far below what the length can hold.
    pub(crate) fn put_metadata(&mut self, metadata: &[u8]) -> Exchanged<()> {
        debug_assert!(
            metadata.len() <= VERSION_METADATA_BYTES_MAX,
            "a commit refuses longer metadata"
        );
        self.put(&(metadata.len() as u16).to_le_bytes())?;
        self.put(metadata)
    }

    /// Writes a tag or the length of an address, after a mark if one is due.
    pub(crate) fn put_tag(&mut self, tag: u8) -> Exchanged<()> {
        // Marks with checksums bound how much damaged data a reader takes in.
        if self.at - self.mark >= MARK_BYTES {
            self.put(&[MARK_TAG])?;
            self.put_crc()?;
            self.mark = self.at;
        }
        self.put(&[tag])
    }

    /// Writes a value or its removal. The limit of values is far below what the length can hold.
    pub(crate) fn put_value(&mut self, address: &Address, value: Option<&[u8]>) -> Exchanged<()> {
        self.put_tag(address.as_bytes().len() as u8)?;
        self.put(address.as_bytes())?;
        debug_assert!(
            value.is_none_or(|value| value.len() <= VALUE_BYTES_MAX),
            "a commit refuses longer values"
        );
        self.put(&value.map_or(REMOVED, |value| value.len() as u32).to_le_bytes())?;
        self.put(value.unwrap_or_default())
    }

    /// Writes the last fields. Returns the bytes of the stream.
    pub(crate) fn end(mut self, count: u64) -> Exchanged<u64> {
        self.put_tag(END_TAG)?;
        self.put(&count.to_le_bytes())?;
        self.put_crc()?;
        let at = self.at;
        self.output.flush().map_err(|source| ExchangeError::Io { at, source })?;
        Ok(at)
    }
}

/// Content of a kind of stream, in words.
fn content(kind: u8) -> String {
    match kind {
        STATE_KIND => "one version".to_owned(),
        TREE_KIND => "all versions of a tree".to_owned(),
        other => format!("kind {other}"),
    }
}

/// Reader of a stream.
pub(crate) struct Source<R> {
    input: BufReader<R>,
    at: u64,
    /// Offset of the end of the last mark, or of the head.
    mark: u64,
    crc: u32,
}

impl<R: Read> Source<R> {
    /// Reads the head; returns the kind of the stream.
    pub(crate) fn begin(input: R) -> Exchanged<(Self, u8)> {
        let mut source = Self { input: BufReader::new(input), at: 0, mark: 0, crc: 0 };
        // The magic comes first, so that another file is told from a damaged stream.
        if source.array()? != EXPORT_MAGIC {
            return source.damaged("it is no export of a radix state");
        }

        let unsupported =
            |what, found, known: String| Err(ExchangeError::Unsupported { what, found, known });

        let version = u32::from_le_bytes(source.array()?);
        if version != EXPORT_VERSION {
            return unsupported("version", version.to_string(), EXPORT_VERSION.to_string());
        }

        let [len] = source.array()?;
        let scheme = source.bytes(usize::from(len))?;
        let [kind] = source.array()?;
        // Damage must not look like another scheme or kind.
        source.check_crc()?;
        source.mark = source.at;

        if scheme != SCHEME.as_bytes() {
            return unsupported("scheme", scheme.escape_ascii().to_string(), SCHEME.into());
        }

        if !matches!(kind, STATE_KIND | TREE_KIND) {
            let known = format!("{} and {}", content(STATE_KIND), content(TREE_KIND));
            return unsupported("content", content(kind), known);
        }

        Ok((source, kind))
    }

    pub(crate) fn damaged<T>(&self, rule: &'static str) -> Exchanged<T> {
        Err(ExchangeError::Damaged { at: self.at, rule })
    }

    /// Reads the next bytes; allocates as they arrive, since a damaged length can be huge.
    fn bytes(&mut self, count: usize) -> Exchanged<Vec<u8>> {
        // The length may be forged, so no memory is allocated for bytes that have not come.
        let mut bytes = Vec::new();
        let io = |source| ExchangeError::Io { at: self.at, source };
        (&mut self.input).take(count as u64).read_to_end(&mut bytes).map_err(io)?;
        self.at += bytes.len() as u64;
        self.crc = crc32c_append(self.crc, &bytes);
        if bytes.len() < count { self.damaged("it is cut short") } else { Ok(bytes) }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Exchanged<[u8; N]> {
        let bytes = self.bytes(N)?;
        bytes.try_into().or_else(|_| self.damaged("it is cut short"))
    }

    fn check_crc(&mut self) -> Exchanged<()> {
        // Taken before the stored checksum is read, which adds to it.
        let expected = self.crc;
        let found = u32::from_le_bytes(self.array()?);
        if found == expected { Ok(()) } else { self.damaged("checksum") }
    }

    pub(crate) fn metadata(&mut self) -> Exchanged<Vec<u8>> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        // No version has longer metadata, so a forged length is refused here.
        if len > VERSION_METADATA_BYTES_MAX {
            return self.damaged("metadata of a version is too long");
        }
        self.bytes(len)
    }

    /// Reads a tag or the length of an address, behind a mark if one is due.
    pub(crate) fn tag(&mut self) -> Exchanged<u8> {
        let is_due = self.at - self.mark >= MARK_BYTES;
        let [tag] = self.array()?;
        if !is_due {
            return Ok(tag);
        }

        if tag != MARK_TAG {
            return self.damaged("a mark is missing");
        }

        self.check_crc()?;
        self.mark = self.at;
        let [tag] = self.array()?;
        Ok(tag)
    }

    /// Calls `push` with each value or removal, ascending by address, up to the end of the values.
    /// Returns their number.
    pub(crate) fn values(
        &mut self,
        mut push: impl FnMut(&Self, &Address, Option<Vec<u8>>) -> Exchanged<()>,
    ) -> Exchanged<u64> {
        let mut last = Prefix::EMPTY;
        let mut count: u64 = 0;
        loop {
            let len = usize::from(self.tag()?);
            if len == usize::from(END_TAG) {
                return Ok(count);
            }

            if len > ADDRESS_BYTES_MAX {
                return self.damaged("length of an address");
            }

            let bytes = self.bytes(len)?;
            let Ok(address) = Address::new(&bytes) else {
                return self.damaged("length of an address");
            };

            // Each address comes once and in order.
            if Prefix::from(address) <= last {
                return self.damaged("addresses do not ascend");
            }

            last = address.into();
            let value = match u32::from_le_bytes(self.array()?) {
                REMOVED => None,
                len if len as usize > VALUE_BYTES_MAX => {
                    return self.damaged("a value is too long");
                }
                len => Some(self.bytes(len as usize)?),
            };

            push(self, &address, value)?;
            count += 1;
        }
    }

    /// Reads the last fields, behind their tag.
    pub(crate) fn end(mut self, count: u64, rule: &'static str) -> Exchanged<()> {
        let found = u64::from_le_bytes(self.array()?);
        self.check_crc()?;
        if found != count {
            return self.damaged(rule);
        }
        let mut more = [0; 1];
        let at = self.at;
        match self.input.read(&mut more).map_err(|source| ExchangeError::Io { at, source })? {
            0 => Ok(()),
            _ => self.damaged("something follows the end"),
        }
    }
}
