//! Traits of an engine of versioned trees, for replays and benchmarks.
//!
//! A [`ContextEngine`] keeps commits; a [`Context`] is a tree of values that was checked out of one
//! and is changed in memory until it is committed in turn. Both are used as objects, so one replay
//! serves every engine.
//!
//! A path is a list of steps, which are byte strings; [`Steps`] borrows it from a buffer that holds
//! many of them, so that an operation allocates nothing. Paths are physical ones: those of users
//! lie below the step `data`.

use std::fmt;
use std::str::FromStr;

use bitcoin::base58;

use crate::engines::engine::Result;

/// Bytes of the hash of a commit.
pub const HASH_BYTES: usize = 32;

/// Prefix of a hash in its text, which makes the text begin with `Co`.
const TEXT_PREFIX: [u8; 2] = [79, 199];

/// Characters of the text of a hash.
const TEXT_CHARS: usize = 52;

/// The hash of a commit. Its text is base58 with a checksum, 52 characters that begin with `Co`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitHash(pub [u8; HASH_BYTES]);

/// A text is not that of the hash of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoCommitHash {
    /// The text is not base58, or its checksum is wrong.
    #[error("the hash of a commit is damaged: its checksum does not fit")]
    Checksum,
    /// The text is that of another kind of hash.
    #[error("not the hash of a commit (`Co…`, 52 characters)")]
    Kind,
}

impl fmt::Display for CommitHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base58::encode_check(&[TEXT_PREFIX.as_slice(), &self.0].concat()))
    }
}

impl FromStr for CommitHash {
    type Err = NoCommitHash;

    fn from_str(text: &str) -> std::result::Result<Self, NoCommitHash> {
        // Decoding takes time with the square of the length.
        if text.len() != TEXT_CHARS {
            return Err(NoCommitHash::Kind);
        }
        let bytes = base58::decode_check(text).map_err(|_| NoCommitHash::Checksum)?;
        let hash = bytes.strip_prefix(&TEXT_PREFIX).ok_or(NoCommitHash::Kind)?;
        Ok(Self(hash.try_into().map_err(|_| NoCommitHash::Kind)?))
    }
}

/// Steps of the longest path that is listed without an allocation.
const NEAR_STEPS: usize = 16;

/// A path: its steps back to back, and where each one ends, counted from the start of the first
/// one.
///
/// Invariant: `ends` does not decrease, and its last one is the length of `bytes`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Steps<'a> {
    bytes: &'a [u8],
    ends: &'a [u32],
}

impl<'a> Steps<'a> {
    /// The path of no steps: the root.
    pub const ROOT: Self = Self { bytes: &[], ends: &[] };

    /// The path of these parts.
    pub fn from_parts(bytes: &'a [u8], ends: &'a [u32]) -> Self {
        debug_assert!(
            ends.is_sorted() && ends.last().map_or(0, |&end| end as usize) == bytes.len()
        );
        Self { bytes, ends }
    }

    /// Number of steps.
    #[must_use]
    pub fn count(self) -> usize {
        self.ends.len()
    }

    /// Calls `work` with the list of the steps.
    pub fn with_list<T>(self, work: impl FnOnce(&[&[u8]]) -> T) -> T {
        // Short paths need no allocation.
        if self.count() > NEAR_STEPS {
            return work(&self.iter().collect::<Vec<_>>());
        }
        let mut near = [[].as_slice(); NEAR_STEPS];
        for (slot, step) in near.iter_mut().zip(self.iter()) {
            *slot = step;
        }
        work(&near[..self.count()])
    }

    /// The steps, from the root on.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let step = &self.bytes[start..end as usize];
            start = end as usize;
            step
        })
    }
}

/// Steps with slashes between them; bytes that are no text are replaced.
impl fmt::Display for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.iter().enumerate() {
            let slash = if at == 0 { "" } else { "/" };
            write!(f, "{slash}{}", String::from_utf8_lossy(step))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A path that owns its bytes, and is used again for the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepsBuf {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl StepsBuf {
    /// The path of no steps.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a step.
    pub fn push(&mut self, step: &[u8]) {
        self.bytes.extend_from_slice(step);
        self.end();
    }

    /// Appends a step that `write` appends to the bytes it is given.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.end();
    }

    fn end(&mut self) {
        self.ends.push(u32::try_from(self.bytes.len()).expect("a path is shorter than 4 GiB"));
    }

    /// Takes the last step away, if there is one.
    pub fn pop(&mut self) {
        self.ends.pop();
        self.bytes.truncate(self.ends.last().map_or(0, |&end| end as usize));
    }

    /// Takes all steps away.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The path.
    #[must_use]
    pub fn steps(&self) -> Steps<'_> {
        Steps { bytes: &self.bytes, ends: &self.ends }
    }
}

impl<'a> FromIterator<&'a [u8]> for StepsBuf {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(steps: I) -> Self {
        let mut path = Self::new();
        steps.into_iter().for_each(|step| path.push(step));
        path
    }
}

/// Metadata of a commit, beside its tree and its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitInfo<'a> {
    /// Seconds since 1970.
    pub date: i64,
    /// Author of the commit.
    pub author: &'a [u8],
    /// Message of the commit.
    pub message: &'a [u8],
}

/// A store of commits.
pub trait ContextEngine: fmt::Debug {
    /// The name used on the command line and in reports.
    fn name(&self) -> &'static str;

    /// Whether commits have the hashes of Tezos, so that those of a trace can be compared.
    fn has_tezos_hashes(&self) -> bool;

    /// A context whose tree is empty.
    fn empty(&self) -> Box<dyn Context>;

    /// The tree of a commit; `None` if there is no such commit.
    ///
    /// # Errors
    /// Those of the engine.
    fn checkout(&self, commit: &CommitHash) -> Result<Option<Box<dyn Context>>>;

    /// Takes all commits away but the `newest` ones that were made last, and what only they reach,
    /// if the engine can.
    ///
    /// # Errors
    /// Those of the engine.
    fn collect(&mut self, newest: u64) -> Result<()> {
        let _ = newest;
        Ok(())
    }

    /// Makes everything durable; nothing is committed afterwards.
    ///
    /// # Errors
    /// Those of the engine.
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A tree of values, changed in memory.
pub trait Context: fmt::Debug {
    /// An independent context of the same tree.
    fn fork(&self) -> Box<dyn Context>;

    /// Says that these paths are asked for or changed next, so that the engine can read what it
    /// needs for it, if it can. Changes nothing.
    fn prefetch(&mut self, paths: &[Steps<'_>]) {
        let _ = paths;
    }

    /// Whether a value is at `path`.
    ///
    /// # Errors
    /// Those of the engine.
    fn mem(&mut self, path: Steps<'_>) -> Result<bool>;

    /// Whether a value or a directory is at `path`.
    ///
    /// # Errors
    /// Those of the engine.
    fn mem_tree(&mut self, path: Steps<'_>) -> Result<bool>;

    /// Whether a value is at `path`; if so, `value` becomes it.
    ///
    /// # Errors
    /// Those of the engine.
    fn find(&mut self, path: Steps<'_>, value: &mut Vec<u8>) -> Result<bool>;

    /// Puts a value at `path`. What was there is replaced, and so is a value in the place of a
    /// directory above it.
    ///
    /// # Errors
    /// Those of the engine.
    fn add(&mut self, path: Steps<'_>, value: &[u8]) -> Result<()>;

    /// Removes the value or the directory at `path`, and the directories above it that become
    /// empty.
    ///
    /// # Errors
    /// Those of the engine.
    fn remove(&mut self, path: Steps<'_>) -> Result<()>;

    /// Puts what is at `from` also at `to`; `false`, and nothing is changed, if nothing is there.
    ///
    /// # Errors
    /// Those of the engine.
    fn copy(&mut self, from: Steps<'_>, to: Steps<'_>) -> Result<bool>;

    /// Commits the tree with these parents.
    ///
    /// # Errors
    /// Those of the engine.
    fn commit(&mut self, info: &CommitInfo<'_>, parents: &[CommitHash]) -> Result<CommitHash>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_hash_is_the_published_one_and_damage_is_told_from_another_kind() {
        let empty = "81e47a19e6b29b0a65b9591762ce5143ed30d0261e5d24a3201752506b20f15c";
        let text = "CoVdWnWTqvYLikKj8koW6zpxCvK6FzZiD31YWEpD1UNAjWn7vhch";
        let hash = CommitHash(crate::hex::decode(empty).unwrap().try_into().unwrap());
        assert_eq!(hash.to_string(), text);
        assert_eq!(text.parse(), Ok(hash));
        for damaged in [&text.replace('q', "r"), &text.replace('q', "0")] {
            assert_eq!(damaged.parse::<CommitHash>(), Err(NoCommitHash::Checksum), "{damaged}");
        }
        let other = base58::encode_check(&[&[79, 200], hash.0.as_slice()].concat());
        for other in [&text[1..], "", "Co", &other, &"1".repeat(1 << 20)] {
            assert_eq!(other.parse::<CommitHash>(), Err(NoCommitHash::Kind));
        }
    }

    #[test]
    fn steps_are_those_that_were_pushed() {
        let steps: [&[u8]; 4] = [b"data", b"", b"\xFF\0", b"a/b"];
        let mut path: StepsBuf = steps.into_iter().collect();
        assert!(path.steps().iter().eq(steps));
        assert_eq!(path.steps().count(), 4);
        assert_eq!(path.steps().to_string(), "data//\u{FFFD}\0/a/b");
        path.pop();
        assert!(path.steps().iter().eq(steps[..3].iter().copied()));
        path.clear();
        path.pop();
        assert_eq!(path.steps(), Steps::ROOT);
        path.push_with(|bytes| bytes.extend_from_slice(b"step"));
        assert!(path.steps().iter().eq([b"step"]));
    }
}
