//! The stream of an export: a whole state at one height.
//!
//! ```text
//! head     magic | version u32 | height u64 | block hash 32 | root 32 | crc u32
//! account  tag 1 | hash 32 | length u8 | slim account
//! slot     tag 2 | hash 32 | length u8 | value            behind its account
//! code     tag 3 | length u32 | code                      behind all accounts, by hash
//! end      tag 4 | accounts u64 | slots u64 | codes u64 | crc u32
//! ```
//!
//! Integers are little-endian; a CRC is of all bytes before it. Nothing else depends on where the
//! state is stored, so equal states at equal heights give equal bytes.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use alloy_primitives::{B256, U256};
use terrane_io::ErrorKind;
use terrane_io::checksum::crc32c_append;

use crate::base::account::{Account, EMPTY_CODE_HASH, EMPTY_STORAGE_ROOT};
use crate::base::error::Error;
use crate::state::at::StateAt;
use crate::state::changes::slot_value;
use crate::state::source::value;
use crate::state::tables::{Block, EntryKind};
use crate::transfer::import::{Import, after};

/// First bytes of a stream.
pub(crate) const EXPORT_MAGIC: &[u8] = b"TRNMPTEX";

/// Version of the format.
pub(crate) const EXPORT_VERSION: u32 = 1;

/// Tag of an account.
pub(crate) const ACCOUNT_TAG: u8 = 1;

/// Tag of a slot of the account before.
pub(crate) const SLOT_TAG: u8 = 2;

/// Tag of a code.
pub(crate) const CODE_TAG: u8 = 3;

/// Tag of the end.
pub(crate) const END_TAG: u8 = 4;

/// Most bytes of a code: far above what any chain allows.
pub(crate) const EXPORT_CODE_BYTES_MAX: usize = 16 << 20;

/// Key and value of a flat entry.
type Entry = (B256, Vec<u8>);

/// Entries that are read together.
const SCANNED_TOGETHER: usize = 1024;

/// An error of an export or of its stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The state failed, or does not fit what the stream says.
    #[error(transparent)]
    State(#[from] Error),
    /// Reading or writing the stream failed.
    #[error("reading or writing the stream failed: {0}")]
    Io(#[from] io::Error),
    /// The bytes of the stream are not those of an export.
    #[error("the stream is damaged at byte {offset}: {what}")]
    Malformed {
        /// Offset of the part.
        offset: u64,
        /// The rule that is broken.
        what: &'static str,
    },
    /// The stream was written by another version of the program.
    #[error("the stream has format version {found}; this program reads {EXPORT_VERSION}")]
    Unsupported {
        /// Its version.
        found: u32,
    },
}

impl TransferError {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::State(error) => error.kind(),
            Self::Io(_) => ErrorKind::Io,
            Self::Malformed { .. } => ErrorKind::Corrupt,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }
}

/// Numbers of what a stream has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transferred {
    /// Accounts.
    pub accounts: u64,
    /// Slots.
    pub slots: u64,
    /// Codes.
    pub codes: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

impl StateAt {
    /// Writes all accounts, slots and the codes that accounts name. `output` is written in small
    /// pieces, so it should be buffered.
    ///
    /// Cost: reads all accounts and slots once; at an older height a seek for each besides. Memory
    /// for the hashes of codes.
    ///
    /// # Errors
    /// [`TransferError::State`], [`TransferError::Io`].
    pub fn export(&self, output: impl Write) -> Result<Transferred, TransferError> {
        let mut sink = Sink { output, crc: 0, done: Transferred::default() };
        sink.put(EXPORT_MAGIC)?;
        sink.put(&EXPORT_VERSION.to_le_bytes())?;
        sink.put(&self.block.height.to_le_bytes())?;
        sink.put(self.block.hash.as_slice())?;
        sink.put(self.block.root.as_slice())?;
        sink.put_crc()?;

        let mut codes = BTreeSet::new();
        let mut start = Some(B256::ZERO);
        while let Some(from) = start.take() {
            for (hash, bytes) in self.page(EntryKind::Account, &[], from)? {
                let account = Account::from_slim(&bytes)?;
                sink.put(&[ACCOUNT_TAG])?;
                sink.put(hash.as_slice())?;
                sink.put_short(&bytes)?;
                sink.done.accounts += 1;
                if account.storage_root != EMPTY_STORAGE_ROOT {
                    self.export_slots(hash.as_slice(), &mut sink)?;
                }
                if account.code_hash != EMPTY_CODE_HASH {
                    codes.insert(account.code_hash);
                }
                start = after(hash);
            }
        }

        for hash in codes {
            // A chain without a virtual machine may name codes that it never had.
            let Some(code) = value(self.views.code.get(hash.as_slice()).map_err(Error::from)?)
            else {
                continue;
            };
            sink.put(&[CODE_TAG])?;
            sink.put(&(code.len() as u32).to_le_bytes())?;
            sink.put(&code)?;
            sink.done.codes += 1;
        }
        sink.finish()
    }

    fn export_slots<W: Write>(
        &self,
        account: &[u8],
        sink: &mut Sink<W>,
    ) -> Result<(), TransferError> {
        let mut start = Some(B256::ZERO);
        while let Some(from) = start.take() {
            for (slot, bytes) in self.page(EntryKind::Slot, account, from)? {
                sink.put(&[SLOT_TAG])?;
                sink.put(slot.as_slice())?;
                sink.put_short(&bytes)?;
                sink.done.slots += 1;
                start = after(slot);
            }
        }
        Ok(())
    }

    /// The next entries of a kind, from a key on.
    fn page(&self, kind: EntryKind, prefix: &[u8], from: B256) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        self.source().scan(
            kind,
            prefix,
            from.as_slice(),
            None,
            SCANNED_TOGETHER,
            |key, value| {
                let key = B256::try_from(key);
                let key = key.map_err(|_| Error::corrupt_entry("the key of an account or slot"))?;
                entries.push((key, value.to_vec()));
                Ok(())
            },
        )?;
        Ok(entries)
    }
}

/// A stream that is being written.
struct Sink<W> {
    output: W,
    crc: u32,
    done: Transferred,
}

impl<W: Write> Sink<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.output.write_all(bytes)?;
        self.crc = crc32c_append(self.crc, bytes);
        self.done.bytes += bytes.len() as u64;
        Ok(())
    }

    fn put_short(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        let length = u8::try_from(bytes.len());
        let length = length.map_err(|_| Error::corrupt_entry("an account or slot"))?;
        self.put(&[length])?;
        self.put(bytes)
    }

    fn put_crc(&mut self) -> Result<(), TransferError> {
        let crc = self.crc.to_le_bytes();
        self.put(&crc)
    }

    fn finish(mut self) -> Result<Transferred, TransferError> {
        let Transferred { accounts, slots, codes, .. } = self.done;
        self.put(&[END_TAG])?;
        for count in [accounts, slots, codes] {
            self.put(&count.to_le_bytes())?;
        }
        self.put_crc()?;
        self.output.flush()?;
        Ok(self.done)
    }
}

impl Import {
    /// Adds everything of a stream. What the import has already is passed over, so the whole stream
    /// is given again after a crash. Returns the block that the stream is of, with its root, for
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`TransferError`]; what came before is in the import.
    pub fn push_stream(&mut self, input: impl Read) -> Result<(Block, Transferred), TransferError> {
        let mut source = Source { input, crc: 0, done: Transferred::default() };
        let block = source.head()?;
        let mut account = None;
        loop {
            let at = source.done.bytes;
            match source.take::<1>()? {
                [ACCOUNT_TAG] => {
                    let (hash, bytes) = source.entry()?;
                    let what = "an account that is none";
                    let found = Account::from_slim(&bytes).map_err(|_| malformed(at, what))?;
                    source.done.accounts += 1;
                    let is_done = self.position().last_account.is_some_and(|last| hash <= last);
                    account = Some(hash);
                    if !is_done {
                        self.push_account(hash, &found)?;
                    }
                }
                [SLOT_TAG] => {
                    let (slot, bytes) = source.entry()?;
                    let number = slot_value(&bytes);
                    let number = number.ok_or_else(|| malformed(at, "a slot that is none"))?;
                    let owner =
                        account.ok_or_else(|| malformed(at, "a slot without an account"))?;
                    source.done.slots += 1;
                    self.push_stream_slot(owner, slot, number)?;
                }
                [CODE_TAG] => {
                    let length = u32::from_le_bytes(source.take()?) as usize;
                    if EXPORT_CODE_BYTES_MAX < length {
                        return Err(malformed(at, "a code that is too long"));
                    }
                    let code = source.bytes(length)?;
                    source.done.codes += 1;
                    self.push_code(&code)?;
                }
                [END_TAG] => break,
                _ => return Err(malformed(at, "an unknown tag")),
            }
        }
        source.end()?;
        Ok((block, source.done))
    }

    /// Adds a slot of a stream, unless it is there.
    fn push_stream_slot(
        &mut self,
        owner: B256,
        slot: B256,
        number: U256,
    ) -> Result<(), TransferError> {
        let position = self.position();
        let is_whole = position.last_account.is_some_and(|last| owner <= last);
        let is_there = position.pending.is_some_and(|(_, last)| slot <= last);
        if !is_whole && !is_there {
            self.push_slot(slot, number)?;
        }
        Ok(())
    }
}

fn malformed(offset: u64, what: &'static str) -> TransferError {
    TransferError::Malformed { offset, what }
}

/// A stream that is being read.
struct Source<R> {
    input: R,
    crc: u32,
    done: Transferred,
}

impl<R: Read> Source<R> {
    fn head(&mut self) -> Result<Block, TransferError> {
        if self.take::<8>()? != EXPORT_MAGIC {
            return Err(malformed(0, "not an export of an Ethereum state"));
        }
        let found = u32::from_le_bytes(self.take()?);
        if found != EXPORT_VERSION {
            return Err(TransferError::Unsupported { found });
        }
        let height = u64::from_le_bytes(self.take()?);
        let hash = B256::new(self.take()?);
        let root = B256::new(self.take()?);
        self.check_crc()?;
        Ok(Block { height, hash, root })
    }

    /// A hash, and the bytes behind it.
    fn entry(&mut self) -> Result<(B256, Vec<u8>), TransferError> {
        let hash = B256::new(self.take()?);
        let [length] = self.take()?;
        Ok((hash, self.bytes(usize::from(length))?))
    }

    fn end(&mut self) -> Result<(), TransferError> {
        let at = self.done.bytes;
        let Transferred { accounts, slots, codes, .. } = self.done;
        for count in [accounts, slots, codes] {
            if u64::from_le_bytes(self.take()?) != count {
                return Err(malformed(at, "numbers that are not those of the entries"));
            }
        }
        self.check_crc()?;
        let mut rest = [0];
        match self.input.read(&mut rest)? {
            0 => Ok(()),
            _ => Err(malformed(self.done.bytes, "bytes behind the end")),
        }
    }

    fn check_crc(&mut self) -> Result<(), TransferError> {
        let at = self.done.bytes;
        let crc = self.crc;
        if u32::from_le_bytes(self.take()?) != crc {
            return Err(malformed(at, "a wrong checksum"));
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], TransferError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, TransferError> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), TransferError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => malformed(self.done.bytes, "it ends early"),
            _ => TransferError::Io(error),
        })?;
        self.crc = crc32c_append(self.crc, bytes);
        self.done.bytes += bytes.len() as u64;
        Ok(())
    }
}
