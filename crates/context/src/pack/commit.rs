//! Commits, branches and tables of commits: their [records](crate::object::record) in the pack.

use std::collections::BTreeMap;

use crate::base::address::{
    Address, Extent, Link, Origin, put_leb, take_bytes, take_hash, take_leb, take_u8,
};
use crate::base::corrupt::Corrupt;
use crate::base::hash::Hash;
use crate::base::hashing::CommitInfo;

pub(crate) const COMMIT: u8 = 0x10;
pub(crate) const BRANCH: u8 = 0x11;
pub(crate) const BRANCHES: u8 = 0x12;
pub(crate) const COMMITS: u8 = 0x13;
/// Kind of a record with a copy of the control record.
pub(crate) const STATE: u8 = 0x14;

/// Commit: a root with its parents, date, author and message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Commit {
    /// Hash of the commit.
    pub hash: Hash,
    /// Hash of the root directory.
    pub root: Hash,
    /// Hashes of the parents, which may have been collected.
    pub parents: Vec<Hash>,
    /// Seconds since 1970.
    pub date: i64,
    /// Author.
    pub author: Vec<u8>,
    /// Free text.
    pub message: Vec<u8>,
}

impl Commit {
    /// Returns the preimage of the hash.
    pub fn info(&self) -> CommitInfo<'_> {
        CommitInfo {
            root: &self.root,
            parents: &self.parents,
            date: self.date,
            author: &self.author,
            message: &self.message,
        }
    }
}

/// Stored commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    pub(crate) commit: Commit,
    /// Root directory; `None` if it is empty.
    pub(crate) root: Option<Link>,
    /// The previous commit of the store, in order of time.
    pub(crate) before: Option<Extent>,
}

/// Writes a length and bytes.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_leb(out, text.len() as u64);
    out.extend_from_slice(text);
}

pub(crate) fn take_text(bytes: &mut &[u8]) -> Result<Vec<u8>, Corrupt> {
    let len = take_leb(bytes)? as usize;
    Ok(take_bytes(bytes, len)?.to_vec())
}

fn take_flag(bytes: &mut &[u8]) -> Result<bool, Corrupt> {
    match take_u8(bytes)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Corrupt::rule("a flag", 1, u64::from(other))),
    }
}

fn expect_kind(bytes: &mut &[u8], kind: u8) -> Result<(), Corrupt> {
    match take_u8(bytes)? {
        found if found == kind => Ok(()),
        found => Err(Corrupt::rule("kind of a record", u64::from(kind), u64::from(found))),
    }
}

fn expect_end(bytes: &[u8]) -> Result<(), Corrupt> {
    match bytes.len() {
        0 => Ok(()),
        rest => Err(Corrupt::rule("nothing follows in a record", 0, rest as u64)),
    }
}

impl CommitRecord {
    pub(crate) fn put(&self, at: Origin, out: &mut Vec<u8>) {
        out.push(COMMIT);
        out.extend_from_slice(&self.commit.hash.0);
        out.push(u8::from(self.root.is_some()));

        if let Some(root) = &self.root {
            root.put(at, out);
        }
        put_leb(out, self.commit.parents.len() as u64);

        for parent in &self.commit.parents {
            out.extend_from_slice(&parent.0);
        }
        out.extend_from_slice(&self.commit.date.to_le_bytes());
        put_text(out, &self.commit.author);
        put_text(out, &self.commit.message);
        out.push(u8::from(self.before.is_some()));

        if let Some(before) = &self.before {
            before.put(at, out);
        }
    }

    pub(crate) fn decode(at: Address, empty: Hash, body: &[u8]) -> Result<Self, Corrupt> {
        let mut bytes = body;
        expect_kind(&mut bytes, COMMIT)?;
        let hash = take_hash(&mut bytes)?;
        let root = take_flag(&mut bytes)?.then(|| Link::take(at, &mut bytes)).transpose()?;
        let count = take_leb(&mut bytes)? as usize;

        // The count comes from the disk: the capacity is bounded by the bytes that are there.
        let mut parents = Vec::with_capacity(count.min(bytes.len() / 32));
        for _ in 0..count {
            parents.push(take_hash(&mut bytes)?);
        }
        let (date, rest) = bytes.split_first_chunk::<8>().ok_or(Corrupt::short("a date"))?;
        bytes = rest;

        let commit = Commit {
            hash,
            root: root.map_or(empty, |root| root.hash),
            parents,
            date: i64::from_le_bytes(*date),
            author: take_text(&mut bytes)?,
            message: take_text(&mut bytes)?,
        };

        let before = take_flag(&mut bytes)?.then(|| Extent::take(at, &mut bytes)).transpose()?;
        expect_end(bytes)?;

        Ok(Self { commit, root, before })
    }
}

/// Heads of all branches.
pub(crate) type Branches = BTreeMap<Vec<u8>, Hash>;

/// Change of one branch: its new head, or `None` to remove the branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BranchRecord {
    pub(crate) name: Vec<u8>,
    pub(crate) head: Option<Hash>,
}

impl BranchRecord {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.push(BRANCH);
        put_text(out, &self.name);
        out.push(u8::from(self.head.is_some()));
        if let Some(head) = &self.head {
            out.extend_from_slice(&head.0);
        }
    }

    pub(crate) fn apply(self, branches: &mut Branches) {
        match self.head {
            Some(head) => drop(branches.insert(self.name, head)),
            None => drop(branches.remove(&self.name)),
        }
    }
}

pub(crate) fn put_branches(branches: &Branches, out: &mut Vec<u8>) {
    out.push(BRANCHES);
    put_leb(out, branches.len() as u64);
    for (name, head) in branches {
        put_text(out, name);
        out.extend_from_slice(&head.0);
    }
}

/// Table of commits with their extents, in order of time, in which a reader finds a commit by its
/// hash.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CommitTable {
    /// The previous table.
    pub(crate) before: Option<Extent>,
    pub(crate) commits: Vec<(Hash, Extent)>,
}

impl CommitTable {
    pub(crate) fn put(&self, at: Origin, out: &mut Vec<u8>) {
        out.push(COMMITS);
        out.push(u8::from(self.before.is_some()));
        if let Some(before) = &self.before {
            before.put(at, out);
        }
        put_leb(out, self.commits.len() as u64);
        for (hash, extent) in &self.commits {
            out.extend_from_slice(&hash.0);
            extent.put(at, out);
        }
    }

    pub(crate) fn decode(at: Address, body: &[u8]) -> Result<Self, Corrupt> {
        let mut bytes = body;
        expect_kind(&mut bytes, COMMITS)?;
        let before = take_flag(&mut bytes)?.then(|| Extent::take(at, &mut bytes)).transpose()?;
        let count = take_leb(&mut bytes)? as usize;

        // The count comes from the disk: the capacity is bounded by the bytes that are there.
        let mut commits = Vec::with_capacity(count.min(bytes.len() / 32));
        for _ in 0..count {
            commits.push((take_hash(&mut bytes)?, Extent::take(at, &mut bytes)?));
        }
        expect_end(bytes)?;
        Ok(Self { before, commits })
    }
}

/// Applies a record to branches: a change of one branch, or the list of all. A table of commits
/// changes no branch.
pub(crate) fn apply_branches(body: &[u8], branches: &mut Branches) -> Result<(), Corrupt> {
    let mut bytes = body;

    // Only a whole table replaces the branches: a damaged one must not remove any.
    match take_u8(&mut bytes)? {
        BRANCH => {
            let name = take_text(&mut bytes)?;
            let head = take_flag(&mut bytes)?.then(|| take_hash(&mut bytes)).transpose()?;
            expect_end(bytes)?;
            BranchRecord { name, head }.apply(branches);
        }
        BRANCHES => {
            let mut all = Branches::new();
            for _ in 0..take_leb(&mut bytes)? {
                let name = take_text(&mut bytes)?;
                all.insert(name, take_hash(&mut bytes)?);
            }
            expect_end(bytes)?;
            *branches = all;
        }
        COMMITS | STATE => {}
        other => {
            return Err(Corrupt::rule("kind of a record", u64::from(BRANCH), u64::from(other)));
        }
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    const AT: Address = Address { chunk: 2, unit: 900 };
    const EMPTY: Hash = Hash([7; 32]);

    #[test]
    fn any_bytes_are_a_commit_or_a_table_or_an_error() {
        let extent = Extent { at: Address { chunk: 1, unit: 8 }, bytes: 40 };
        let commit = Commit {
            hash: Hash([1; 32]),
            root: Hash([2; 32]),
            parents: vec![Hash([3; 32]), Hash([4; 32])],
            date: -5,
            author: b"Tezos".to_vec(),
            message: b"x".to_vec(),
        };

        let root = Some(Link { extent, hash: commit.root });
        let record = CommitRecord { commit, root, before: Some(extent) };
        let table = CommitTable { before: Some(extent), commits: vec![(Hash([9; 32]), extent)] };
        let branches = Branches::from([(b"main".to_vec(), Hash([5; 32]))]);
        let branch = BranchRecord { name: b"main".to_vec(), head: Some(Hash([6; 32])) };
        let mut bodies = vec![Vec::new(); 4];
        let origin = Origin { at: AT, frame: AT };
        record.put(origin, &mut bodies[0]);
        table.put(origin, &mut bodies[1]);
        put_branches(&branches, &mut bodies[2]);
        branch.put(&mut bodies[3]);
        assert_eq!(CommitRecord::decode(AT, EMPTY, &bodies[0]), Ok(record));
        assert_eq!(CommitTable::decode(AT, &bodies[1]), Ok(table));

        let decode = |body: &[u8]| {
            let mut branches = Branches::new();
            (
                CommitRecord::decode(AT, EMPTY, body).is_ok(),
                CommitTable::decode(AT, body).is_ok(),
                body.first() != Some(&COMMITS) && apply_branches(body, &mut branches).is_ok(),
            )
        };

        for body in &bodies {
            assert_ne!(decode(body), (false, false, false));
            for len in 0..body.len() {
                assert_eq!(decode(&body[..len]), (false, false, false), "{len} bytes");
            }
        }

        for_each_seed("any_bytes_are_a_commit_or_a_table_or_an_error", 2_000, |rng, _| {
            let mut body = bodies[rng.index(4)].clone();
            for _ in 0..=rng.below(3) {
                let at = rng.index(body.len());
                body[at] = [0, 1, 0x7F, 0x80, 0xFF, rng.below(256) as u8][rng.index(6)];
            }
            decode(&body);
            decode(&rng.bytes(60));
        });
    }
}
