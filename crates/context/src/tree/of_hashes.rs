//! Directories of which only the hashes of the children are known.

use crate::base::error::Result;
use crate::base::hash::Hash;
use crate::base::hashing::Rules;
use crate::tree::edit::bind;
use crate::tree::node::Child;
use crate::tree::tree::{Kind, Tree, check_steps, empty_dir};

impl Tree {
    /// Returns a directory without a store whose children are known by their kinds and hashes only.
    /// Its [hash](Self::hash) is that of the directory. Of equal steps the last one counts.
    ///
    /// A child may be a directory with the hash of the empty directory, which other calls take for
    /// the empty directory, and leave out. No store commits such a child.
    ///
    /// ```
    /// use terrane_context::{Kind, Rules, Tree};
    ///
    /// let empty = Rules::TEZOS.empty_hash();
    /// let tree = Tree::of_hashes(Rules::TEZOS, [("a", Kind::Directory, empty)])?;
    /// assert_eq!(tree.length::<&str>(&[])?, 1);
    /// assert_ne!(tree.hash(), empty);
    /// # Ok::<(), terrane_context::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`StepSize`](crate::Error::StepSize), and [`InvalidConfig`](crate::Error::InvalidConfig) for
    /// rules that no store has. [`DanglingHash`](crate::Error::DanglingHash) if a child is read;
    /// also from a commit, for a child that the index of all objects does not have.
    pub fn of_hashes<S: AsRef<[u8]>>(
        rules: Rules,
        children: impl IntoIterator<Item = (S, Kind, Hash)>,
    ) -> Result<Self> {
        let tree = Self::new(rules)?;
        let mut root = empty_dir();

        for (step, kind, hash) in children {
            let path = [step.as_ref()];
            check_steps(&path)?;
            let is_value = kind == Kind::Value;
            bind(&tree.env, &mut root, &path, Child::Blinded { is_value, hash: Box::new(hash) })?;
        }

        Ok(tree.with_root(root))
    }
}
