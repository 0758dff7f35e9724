//! Trees as plain data, and copies of trees that need no store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::copy::{Blinded, copy};
use crate::error::Result;
use crate::node::{Env, Spot};
use crate::pins::Pins;
use crate::tree::Tree;
use crate::walk::{Entry, dir, sorted};

/// A tree as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concrete {
    /// A value.
    Value(Vec<u8>),
    /// A directory.
    Directory(BTreeMap<Box<[u8]>, Concrete>),
}

impl Tree {
    /// The whole tree as plain data.
    ///
    /// Cost: one read for each directory, inode and value that is not in memory.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn to_concrete(&self) -> Result<Concrete> {
        concrete(&self.env, Spot::Own(self.root()))
    }

    /// The tree of plain data, of the same store as this one. Directories without content are left out.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn of_concrete(&self, concrete: &Concrete) -> Result<Self> {
        match concrete {
            Concrete::Value(bytes) => Ok(self.of_value(bytes.as_slice())),
            Concrete::Directory(children) => {
                let mut tree = self.empty();
                for (step, child) in children {
                    tree.add_tree(&[step], &self.of_concrete(child)?)?;
                }
                Ok(tree)
            }
        }
    }

    /// A copy that is in memory only and belongs to no store. Parts that are shared stay shared.
    ///
    /// Cost: one read for each directory, inode and value that is not in memory. The tree is hashed.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn to_memory(&self) -> Result<Self> {
        self.hash();
        let env = Env { rules: self.env.rules, source: None, proof: false };
        let root = copy(&self.env, Spot::Own(self.root()), Blinded::Refuse)?;
        Ok(Self::at(Arc::new(env), root, Pins::default()))
    }
}

fn concrete(env: &Env, spot: Spot<'_>) -> Result<Concrete> {
    let Some(node) = dir(env, spot)? else {
        return Ok(Concrete::Value(spot.value(env)?.unwrap_or_default()));
    };
    let child = |entry: Entry| Ok((entry.step().into(), concrete(env, entry.spot())?));
    let children: Result<BTreeMap<_, _>> = sorted(env, &node)?.into_iter().map(child).collect();
    Ok(Concrete::Directory(children?))
}
