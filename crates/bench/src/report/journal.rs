//! The journal of a sweep: what was asked for, and a record of each point that is done.
//!
//! One line per record:
//!
//! ```text
//! {"checksum":"<16 digits>","record":<JSON>}
//! ```
//!
//! The checksum is the first eight bytes of the BLAKE3 hash of the text of the record, in hex. The
//! first record is the header; each other record is a point.
//!
//! * Invariant: [`Journal::append`] has synced a record when it returns, so a point that was
//!   reported as done is there after any crash.
//! * The last line may be half written. It is cut off when the journal is opened again, with a
//!   notice. A damaged line before it was durable once, and is [`Error::Damaged`].
//! * One process at a time: the file is locked while it is open.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

const BEFORE_CHECKSUM: &str = "{\"checksum\":\"";
const BEFORE_RECORD: &str = "\",\"record\":";
const END: &str = "}";

/// Hex digits of a checksum.
const CHECKSUM_DIGITS: usize = 16;

/// Reason why a journal is not usable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file failed.
    #[error("{path}: {error}")]
    Io {
        /// The journal.
        path: PathBuf,
        /// Answer of the system.
        error: io::Error,
    },
    /// Another process has the journal open.
    #[error("{0}: another process writes this journal")]
    Locked(PathBuf),
    /// The file exists.
    #[error("{0} exists; next: --resume goes on with it, or name another file")]
    Exists(PathBuf),
    /// A line before the last one is not what was written.
    #[error("{path}:{line}: damaged record")]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
    },
    /// The journal has no header.
    #[error("{0}: not a journal of a sweep")]
    NoHeader(PathBuf),
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing alone would leave the lock to a child process that another thread is starting,
        // until the child has closed the file as well.
        let _ = self.file.unlock();
    }
}

/// A journal that was opened again.
#[derive(Debug)]
pub struct Opened {
    /// The journal.
    pub journal: Journal,
    /// The header.
    pub header: Value,
    /// The records after it.
    pub records: Vec<Value>,
    /// Whether a half-written last line was cut off.
    pub is_cut: bool,
}

impl Journal {
    /// Creates the journal, whose first record is `header`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Io`].
    pub fn create(path: &Path, header: &Value) -> Result<Self, Error> {
        let file = OpenOptions::new().append(true).create_new(true).open(path);
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists(path.to_owned()));
            }
            file => file.map_err(|error| io_error(path, error))?,
        };
        let mut journal = Self { file, path: path.to_owned() };
        journal.lock()?;
        journal.append(header)?;
        journal.sync_directory()?;
        Ok(journal)
    }

    /// Opens a journal again, and cuts a half-written last line off.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(path: &Path) -> Result<Opened, Error> {
        let file = OpenOptions::new().read(true).append(true).open(path);
        let mut journal =
            Self { file: file.map_err(|error| io_error(path, error))?, path: path.to_owned() };
        journal.lock()?;
        let mut bytes = Vec::new();
        journal.file.read_to_end(&mut bytes).map_err(|error| io_error(path, error))?;

        let mut records = Vec::new();
        let mut whole_bytes = 0;
        let lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
        for (at, &line) in lines.iter().enumerate() {
            let Some(record) = parse(line) else {
                if at + 1 == lines.len() {
                    break;
                }
                return Err(Error::Damaged { path: path.to_owned(), line: at + 1 });
            };
            records.push(record);
            whole_bytes += line.len();
        }
        if records.is_empty() {
            return Err(Error::NoHeader(path.to_owned()));
        }

        let is_cut = whole_bytes < bytes.len();
        if is_cut {
            let cut = journal.file.set_len(whole_bytes as u64);
            cut.and_then(|()| journal.file.sync_all()).map_err(|error| io_error(path, error))?;
        }
        let header = records.remove(0);
        Ok(Opened { journal, header, records, is_cut })
    }

    /// Appends a record, durably. Cost: one write and one sync.
    ///
    /// # Errors
    /// [`Error::Io`]; the record may be half written then.
    pub fn append(&mut self, record: &Value) -> Result<(), Error> {
        let record = record.to_string();
        let line = format!(
            "{BEFORE_CHECKSUM}{}{BEFORE_RECORD}{record}{END}\n",
            checksum(record.as_bytes())
        );
        let written = self.file.write_all(line.as_bytes());
        written.and_then(|()| self.file.sync_all()).map_err(|error| io_error(&self.path, error))
    }

    fn lock(&self) -> Result<(), Error> {
        match self.file.try_lock() {
            Ok(()) => Ok(()),
            Err(std::fs::TryLockError::WouldBlock) => Err(Error::Locked(self.path.clone())),
            Err(std::fs::TryLockError::Error(error)) => Err(io_error(&self.path, error)),
        }
    }

    /// Makes the name of a new file durable.
    fn sync_directory(&self) -> Result<(), Error> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = File::open(parent.unwrap_or(Path::new(".")));
        directory.and_then(|dir| dir.sync_all()).map_err(|error| io_error(&self.path, error))
    }
}

/// Hash of names and bytes of files, in hex; `None` if one cannot be read.
#[must_use]
pub fn hash_of_files(files: &[PathBuf]) -> Option<String> {
    let mut hash = blake3::Hasher::new();
    for file in files {
        let name = file.file_name()?.to_string_lossy().into_owned();
        let bytes = std::fs::read(file).ok()?;
        for part in [name.as_bytes(), &bytes] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    Some(hash.finalize().to_hex().to_string())
}

fn io_error(path: &Path, error: io::Error) -> Error {
    Error::Io { path: path.to_owned(), error }
}

fn checksum(record: &[u8]) -> String {
    blake3::hash(record).to_hex()[..CHECKSUM_DIGITS].to_owned()
}

/// Returns the reports in the text of a journal, up to a line that is cut or damaged; `None` if the
/// text is none.
#[must_use]
pub fn reports(text: &str) -> Option<Vec<Value>> {
    let mut records = text.split_inclusive('\n').map(|line| parse(line.as_bytes()));
    records.next()??;
    Some(records.map_while(|record| record?.get("report").cloned()).collect())
}

/// Returns the record of a line; `None` if the line is not what was written.
fn parse(line: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let text = text.strip_prefix(BEFORE_CHECKSUM)?.strip_suffix(END)?;
    let (found, record) = text.split_once(BEFORE_RECORD)?;
    (found == checksum(record.as_bytes())).then(|| serde_json::from_str(record).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn journal() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sweep.jsonl");
        let mut journal = Journal::create(&path, &json!({"header": 1})).unwrap();
        journal.append(&json!({"point": "α \"x\"", "n": 0.1})).unwrap();
        journal.append(&json!({"point": 2})).unwrap();
        (dir, path)
    }

    #[test]
    fn records_are_read_back_and_every_line_is_json() {
        let (_dir, path) = journal();
        let opened = Journal::open(&path).unwrap();
        assert_eq!((opened.header, opened.is_cut), (json!({"header": 1}), false));
        assert_eq!(opened.records, [json!({"point": "α \"x\"", "n": 0.1}), json!({"point": 2})]);
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["checksum"].as_str().unwrap().len(), CHECKSUM_DIGITS);
        }
        assert!(matches!(Journal::create(&path, &json!(1)), Err(Error::Exists(_))));
    }

    /// Every length that a crash may leave: the whole records before it are there, and a record
    /// that is appended afterwards too.
    #[test]
    fn a_half_written_last_line_is_cut_off() {
        let (_dir, path) = journal();
        let bytes = std::fs::read(&path).unwrap();
        let first = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for end in first..bytes.len() {
            std::fs::write(&path, &bytes[..end]).unwrap();
            let mut opened = Journal::open(&path).unwrap();
            let whole = bytes[first..end].split(|&byte| byte == b'\n').count() - 1;
            assert_eq!(opened.records.len(), whole);
            assert_eq!(opened.is_cut, bytes[end - 1] != b'\n', "{end}");
            opened.journal.append(&json!({"later": true})).unwrap();
            drop(opened);
            let records = Journal::open(&path).unwrap().records;
            assert_eq!((records.len(), records.last()), (whole + 1, Some(&json!({"later": true}))));
        }

        std::fs::write(&path, &bytes[..first - 1]).unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::NoHeader(_))));
    }

    #[test]
    fn any_other_damaged_byte_is_an_error() {
        let (_dir, path) = journal();
        let bytes = std::fs::read(&path).unwrap();
        let last = bytes[..bytes.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
        for at in 0..last {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            assert!(Journal::open(&path).is_err(), "byte {at}");
        }
    }

    #[test]
    fn one_process_at_a_time_has_the_journal() {
        let (_dir, path) = journal();
        let first = Journal::open(&path).unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::Locked(_))));
        drop(first);
        assert!(Journal::open(&path).is_ok());
    }
}
