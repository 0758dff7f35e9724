//! Versioned trees in memory: the plainest thing that a replay or a generator can be checked
//! against.
//!
//! A tree is a sorted map from paths to values. A directory is there as long as a value lies below
//! it, so nothing is to be pruned. Trees are shared until they are changed. A commit has no hash
//! but a number.
//!
//! Invariant: no path in a map is the beginning of another one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engines::context::{CommitHash, CommitInfo, Context, ContextEngine, HASH_BYTES, Steps};
use crate::engines::engine::Result;

type Path = Vec<Vec<u8>>;
type Tree = BTreeMap<Path, Vec<u8>>;
type Commits = Arc<Mutex<Vec<Arc<Tree>>>>;

/// Commits in memory.
#[derive(Debug, Default)]
pub struct MemoryContexts {
    commits: Commits,
}

#[derive(Debug)]
struct MemoryContext {
    commits: Commits,
    tree: Arc<Tree>,
}

impl MemoryContexts {
    /// A store without a commit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn context(&self, tree: Arc<Tree>) -> Box<dyn Context> {
        Box::new(MemoryContext { commits: Arc::clone(&self.commits), tree })
    }
}

/// The hash that stands for the commit of this number.
fn hash_of(number: usize) -> CommitHash {
    // Hashes are numbers: this engine only has to tell commits apart.
    let mut hash = [0; HASH_BYTES];
    hash[..8].copy_from_slice(&(number as u64).to_le_bytes());
    CommitHash(hash)
}

impl ContextEngine for MemoryContexts {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn has_tezos_hashes(&self) -> bool {
        false
    }

    fn empty(&self) -> Box<dyn Context> {
        self.context(Arc::default())
    }

    fn checkout(&self, commit: &CommitHash) -> Result<Option<Box<dyn Context>>> {
        let number = commit.0.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number));
        let commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        // A hash must not find a commit by its first bytes alone.
        let tree = commits.get(number as usize).filter(|_| hash_of(number as usize) == *commit);
        Ok(tree.map(|tree| self.context(Arc::clone(tree))))
    }
}

fn owned(path: Steps<'_>) -> Path {
    path.iter().map(<[u8]>::to_vec).collect()
}

impl MemoryContext {
    /// Entries at `path` and below.
    fn below(&self, path: &Path) -> impl Iterator<Item = (&Path, &Vec<u8>)> {
        let path = path.clone();
        self.tree.range(path.clone()..).take_while(move |(at, _)| at.starts_with(&path))
    }

    /// Makes room for something at `path`: nothing is below it, and no value in place of a
    /// directory above it.
    fn make_room(&mut self, path: &Path) {
        // A value takes the place of everything below it, and of values on its way.
        let mut gone: Vec<Path> = self.below(path).map(|(at, _)| at.clone()).collect();
        let above = (0..path.len()).map(|count| path[..count].to_vec());
        gone.extend(above.filter(|at| self.tree.contains_key(at)));
        if gone.is_empty() {
            return;
        }
        // Other contexts may share the tree, so it is copied only if something goes.
        let tree = Arc::make_mut(&mut self.tree);
        for at in &gone {
            tree.remove(at);
        }
    }
}

impl Context for MemoryContext {
    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self { commits: Arc::clone(&self.commits), tree: Arc::clone(&self.tree) })
    }

    fn mem(&mut self, path: Steps<'_>) -> Result<bool> {
        Ok(self.tree.contains_key(&owned(path)))
    }

    fn mem_tree(&mut self, path: Steps<'_>) -> Result<bool> {
        Ok(path.count() == 0 || self.below(&owned(path)).next().is_some())
    }

    fn find(&mut self, path: Steps<'_>, value: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = self.tree.get(&owned(path)) else { return Ok(false) };
        value.clone_from(found);
        Ok(true)
    }

    fn add(&mut self, path: Steps<'_>, value: &[u8]) -> Result<()> {
        let path = owned(path);
        self.make_room(&path);
        Arc::make_mut(&mut self.tree).insert(path, value.to_vec());
        Ok(())
    }

    fn remove(&mut self, path: Steps<'_>) -> Result<()> {
        let path = owned(path);
        let gone: Vec<Path> = self.below(&path).map(|(at, _)| at.clone()).collect();
        if !gone.is_empty() {
            let tree = Arc::make_mut(&mut self.tree);
            for at in &gone {
                tree.remove(at);
            }
        }
        Ok(())
    }

    fn copy(&mut self, from: Steps<'_>, to: Steps<'_>) -> Result<bool> {
        let from = owned(from);
        let to = owned(to);
        let moved = |at: &Path| [to.as_slice(), &at[from.len()..]].concat();
        let copied: Vec<(Path, Vec<u8>)> =
            self.below(&from).map(|(at, value)| (moved(at), value.clone())).collect();
        if copied.is_empty() {
            return Ok(false);
        }

        self.make_room(&to);
        Arc::make_mut(&mut self.tree).extend(copied);
        Ok(true)
    }

    fn commit(&mut self, _: &CommitInfo<'_>, _: &[CommitHash]) -> Result<CommitHash> {
        let mut commits = self.commits.lock().unwrap_or_else(PoisonError::into_inner);
        commits.push(Arc::clone(&self.tree));
        Ok(hash_of(commits.len() - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::context::StepsBuf;

    fn path(text: &str) -> StepsBuf {
        text.split('/').filter(|step| !step.is_empty()).map(str::as_bytes).collect()
    }

    /// A context with these values, each its own path.
    fn with(engine: &MemoryContexts, values: &[&str]) -> Box<dyn Context> {
        let mut context = engine.empty();
        for value in values {
            context.add(path(value).steps(), value.as_bytes()).unwrap();
        }
        context
    }

    /// Returns the kinds of some paths: value, directory or nothing.
    fn look(context: &mut dyn Context, paths: &str) -> String {
        let mut value = Vec::new();
        let mut look = |at: &str| {
            let path = path(at);
            let mut found = at.to_owned();
            let is_value = context.mem(path.steps()).unwrap();
            let is_there = context.mem_tree(path.steps()).unwrap();
            assert_eq!(context.find(path.steps(), &mut value).unwrap(), is_value);
            match (is_value, is_there) {
                (true, true) => found = format!("{found}={}", String::from_utf8_lossy(&value)),
                (false, true) => found += "/",
                (false, false) => found += "-",
                (true, false) => panic!("{at} is a value and not there"),
            }
            found
        };

        paths.split(' ').map(&mut look).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_value_replaces_what_is_in_its_way_and_removals_prune() {
        let engine = MemoryContexts::new();
        let mut context = with(&engine, &["a/b", "a/c", "x"]);
        assert_eq!(look(&mut *context, "a a/b a/c x x/y ab"), "a/ a/b=a/b a/c=a/c x=x x/y- ab-");
        context.add(path("x/y").steps(), b"1").unwrap();
        context.add(path("a").steps(), b"2").unwrap();
        assert_eq!(look(&mut *context, "a a/b x x/y"), "a=2 a/b- x/ x/y=1");
        context.remove(path("x/y/z").steps()).unwrap();
        context.remove(path("q").steps()).unwrap();

        assert_eq!(look(&mut *context, "a x/y"), "a=2 x/y=1");
        context.remove(path("x/y").steps()).unwrap();
        context.remove(path("").steps()).unwrap();
        assert_eq!(look(&mut *context, "a x"), "a- x-");
    }

    #[test]
    fn copies_and_duplicates_are_independent_and_an_absent_source_changes_nothing() {
        let engine = MemoryContexts::new();
        let mut context = with(&engine, &["a/b", "a/c/d", "to/old"]);
        let mut before = context.fork();
        assert!(!context.copy(path("q").steps(), path("to").steps()).unwrap());
        assert_eq!(look(&mut *context, "to/old"), "to/old=to/old");
        assert!(context.copy(path("a").steps(), path("to").steps()).unwrap());
        context.remove(path("a/c").steps()).unwrap();
        let paths = "a/b a/c to/b to/c/d to/old";
        assert_eq!(look(&mut *context, paths), "a/b=a/b a/c- to/b=a/b to/c/d=a/c/d to/old-");
        assert_eq!(look(&mut *before, paths), "a/b=a/b a/c/ to/b- to/c/d- to/old=to/old");
    }

    #[test]
    fn commits_stay_as_they_were() {
        let engine = MemoryContexts::new();
        let info = CommitInfo { date: 0, author: b"", message: b"" };
        let mut context = with(&engine, &["a"]);
        let first = context.commit(&info, &[]).unwrap();
        context.add(path("a").steps(), b"new").unwrap();
        let second = context.commit(&info, &[first]).unwrap();
        assert_eq!(look(&mut *engine.checkout(&first).unwrap().unwrap(), "a"), "a=a");
        assert_eq!(look(&mut *engine.checkout(&second).unwrap().unwrap(), "a"), "a=new");

        for absent in [hash_of(2), CommitHash([1; HASH_BYTES]), CommitHash([255; HASH_BYTES])] {
            assert!(engine.checkout(&absent).unwrap().is_none());
        }
    }
}
