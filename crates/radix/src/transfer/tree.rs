//! Stream of all versions of a tree: each as its changes against its parent, in the order of the
//! commits.
//!
//! | bytes | field |
//! |---|---|
//! | .. | the head of an export (see [`version`](crate::transfer::version)), with [`TREE_KIND`] |
//! | .. | the versions: below |
//! | 1 | [`END_TAG`] |
//! | 8 | number of versions |
//! | 4 | CRC-32C of all before |
//!
//! and a version:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | [`VERSION_TAG`] |
//! | 8 | which of the versions before it is its parent, counted from 1; 0 for the empty state |
//! | 32 | its root |
//! | 2, .. | length of its metadata, and the metadata |
//! | .. | what differs from the parent, ascending by address: as values of an export, or [`REMOVED`] instead of the length |
//! | 1 | [`END_TAG`] |
//!
//! Marks are as in [`version`](crate::transfer::version).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::base::change::Change;
use crate::base::error::Error;
use crate::base::node_hash::{NODE_HASH_BYTES, NodeHash, Root};
use crate::commit::bulk::Bulk;
use crate::node::node::Edge;
use crate::records::versions::{Version, VersionId};
use crate::store::diff::Diff;
use crate::store::inner::Snapshot;
use crate::store::leaves::View;
use crate::store::store::Tree;
use crate::store::transaction::{Committed, Transaction};
#[cfg(doc)]
use crate::transfer::version::REMOVED;
use crate::transfer::version::{
    END_TAG, ExchangeError, Exchanged, STATE_KIND, Sink, Source, TREE_KIND, VERSION_TAG, check_root,
};

/// Outcome of an export of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportedTree {
    /// Versions.
    pub versions: u64,
    /// Values that the versions set or remove.
    pub changes: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

impl Tree {
    /// Writes all retained versions as a stream: each with its metadata and its differences from
    /// its nearest retained ancestor. Equal versions in equal order give the same bytes from every
    /// store. `output` as for [`export`](Self::export).
    ///
    /// Cost: reads the nodes that differ between each version and its parent, and all of those
    /// without a parent. Memory: the record of each version, one path, and a value.
    ///
    /// # Errors
    /// Those of `export`, and [`Error::CorruptRecord`].
    pub fn export_all(&self, output: impl Write) -> Result<ExportedTree, ExchangeError> {
        let Snapshot { reader, .. } = self.snapshot()?;
        let records: Vec<(VersionId, Version)> = self.records(&*reader)?;
        let places: BTreeMap<VersionId, usize> =
            records.iter().enumerate().map(|(at, (id, _))| (*id, at)).collect();
        let mut sink = Sink::begin(output, TREE_KIND)?;

        let mut changes = 0;
        for (id, version) in &records {
            let parent = match version.neighbour.filter(|_| version.is_child) {
                Some(parent) => Some(*places.get(&parent).ok_or_else(|| Error::CorruptRecord {
                    what: format!("version {id} names version {parent}, which is not there"),
                })?),
                None => None,
            };

            sink.put_tag(VERSION_TAG)?;
            sink.put(&parent.map_or(0, |parent| parent as u64 + 1).to_le_bytes())?;
            sink.put(&version.edge.top.0)?;
            sink.put_metadata(&version.metadata)?;
            let before = parent.map(|parent| &records[parent].1.edge);
            let view = View::Transaction(&*reader);

            for found in Diff::new(Arc::clone(self.inner()), view, before, Some(&version.edge)) {
                let found = found?;
                sink.put_value(&found.address, found.after.as_deref())?;
                changes += 1;
            }

            sink.put_tag(END_TAG)?;
        }

        let versions = records.len() as u64;
        Ok(ExportedTree { versions, changes, bytes: sink.end(versions)? })
    }

    /// Reads all versions of a tree from a stream of [`export_all`](Self::export_all), and retains
    /// them, joined to each other as they were, after the versions that this tree has. Returns them
    /// in their order.
    ///
    /// The import is one transaction. It computes each root anew; if one is not the root that the
    /// stream names, nothing is retained. A stream of [`export`](Self::export) is imported as by
    /// [`import`](Self::import).
    ///
    /// Cost: as [`import`](Self::import), which also says what is held meanwhile, for versions
    /// without a parent; as a commit for each other one. Memory: an edge for each version, the
    /// changes of one, and what the back-end holds of a transaction.
    ///
    /// # Errors
    /// Those of `import`.
    pub fn import_all(&self, input: impl Read) -> Result<Vec<Committed>, ExchangeError> {
        let (mut source, kind) = Source::begin(input)?;
        if kind == STATE_KIND {
            return Ok(vec![self.import_version(source)?]);
        }

        let mut transaction = self.transaction()?;

        let mut made: Vec<(VersionId, Edge)> = Vec::new();
        let mut all = Vec::new();
        loop {
            match source.tag()? {
                VERSION_TAG => {}
                END_TAG => break,
                _ => return source.damaged("a version is missing"),
            }

            let parent = u64::from_le_bytes(source.array()?);
            let root = NodeHash(source.array::<NODE_HASH_BYTES>()?);
            let metadata = source.metadata()?;

            // Places count from 1, so that 0 stands for no parent.
            let parent = match parent.checked_sub(1) {
                None => None,
                Some(at) => match usize::try_from(at).ok().and_then(|at| made.get(at)) {
                    Some(parent) => Some(parent),
                    None => return source.damaged("its parent does not come before it"),
                },
            };

            let retained = match parent {
                Some(parent) => {
                    let mut changes = Vec::new();
                    source.values(|_, address, value| {
                        changes.push(match value {
                            Some(value) => Change::Set(*address, value),
                            None => Change::Delete(*address),
                        });
                        Ok(())
                    })?;
                    transaction.commit_on(self.tree_name(), parent, &changes, &metadata)?
                }
                None => self.add_first(&mut source, &mut transaction, &metadata)?,
            };

            // Checked for each version, so that the error names the first wrong root.
            let found = retained.as_ref().map_or(Root::EMPTY, |(_, edge)| edge.top);
            check_root(&root, &found)?;
            // The empty state is in every tree, and never has a version.
            let Some((committed, edge)) = retained else {
                return source.damaged("a version of the empty state");
            };

            if let Some(id) = committed.version {
                made.push((id, edge));
            }

            all.push(committed);
        }

        source.end(all.len() as u64, "number of versions")?;
        transaction.finish()?;
        Ok(all)
    }

    /// Retains a version without a parent.
    fn add_first<R: Read>(
        &self,
        source: &mut Source<R>,
        transaction: &mut Transaction<'_>,
        metadata: &[u8],
    ) -> Exchanged<Option<(Committed, Edge)>> {
        let mut bulk = Bulk::new();
        source.values(|source, address, value| match value {
            Some(value) => Ok(bulk.push(transaction.writer(), address, value)?),
            None => source.damaged("a value is removed that is not there"),
        })?;
        let (edge, added) = bulk.finish(transaction.writer())?;
        let Some(edge) = edge else { return Ok(None) };
        let id = transaction.add_version(self.tree_name(), edge.clone(), None, metadata)?;
        Ok(Some((Committed { root: edge.top, version: Some(id), added }, edge)))
    }
}
