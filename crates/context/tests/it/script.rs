//! Scripts: what is done to a store, as data, with the state that each step leads to.
//!
//! The tests of crashes and of faults run a script until something goes wrong, and then ask which
//! of the states there is. A script is drawn from a seed; each commit in it has a date of its own,
//! so no two have one hash.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Context, Durability, Error, GcPace, GcProgress, Hash, Indexing, Meta, Options, Result, Retain,
    Rules, Store, Tree,
};
use terrane_io::{Access, Disk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;

/// Where the store is.
pub(crate) const DIR: &str = "/store";

/// Expected content of a commit: paths joined by `/`.
pub(crate) type Content = BTreeMap<String, Vec<u8>>;

pub(crate) fn options() -> Options {
    Options::new(Arc::new(BtreeIndexes::new(1 << 20)))
        .chunk_bytes(8 << 10)
        .cache_bytes(1 << 20)
        .hash_threads(1)
}

pub(crate) fn create(disk: &Arc<dyn Disk>, options: &Options) -> Result<Store> {
    Store::create(Arc::clone(disk), Path::new(DIR), options)
}

pub(crate) fn open(disk: &Arc<dyn Disk>, options: &Options) -> Result<Store> {
    Store::open(Arc::clone(disk), Path::new(DIR), options)
}

pub(crate) fn go(_: &GcProgress) -> GcPace {
    GcPace::Go
}

pub(crate) fn steps_of(path: &str) -> Vec<&[u8]> {
    path.split('/').map(str::as_bytes).collect()
}

/// All values of a tree.
pub(crate) fn content_of(tree: &Tree) -> Result<Content> {
    let mut content = Content::new();
    let mut open = vec![(String::new(), tree.clone())];
    while let Some((prefix, tree)) = open.pop() {
        if let Some(value) = tree.to_value()? {
            content.insert(prefix, value);
            continue;
        }
        for (step, child) in tree.list(&[] as &[&str], 0, usize::MAX)? {
            let step = String::from_utf8(step.into_vec()).unwrap();
            let path = if prefix.is_empty() { step } else { format!("{prefix}/{step}") };
            open.push((path, child));
        }
    }

    Ok(content)
}

/// The hash of a tree that was never stored.
pub(crate) fn fresh_hash(rules: &Rules, content: &Content) -> Hash {
    let mut tree = Tree::new(*rules).unwrap();
    for (path, value) in content {
        tree.add(&steps_of(path), value.as_slice()).unwrap();
    }
    tree.hash()
}

/// Each commit has a date of its own.
fn date_of(number: usize) -> i64 {
    i64::try_from(number).unwrap()
}

/// A change of one path, or a copy of what is at another.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Add(String, Vec<u8>),
    Remove(String),
    Copy(String, String),
}

impl Change {
    pub(crate) fn apply(&self, content: &mut Content) {
        let below = |content: &Content, path: &str| -> Content {
            let is_below = |other: &str| {
                other
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            content
                .iter()
                .filter(|(other, _)| is_below(other))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        };

        match self {
            Self::Add(path, value) => drop(content.insert(path.clone(), value.clone())),
            Self::Remove(path) => {
                for path in below(content, path).keys() {
                    content.remove(path);
                }
            }
            Self::Copy(from, to) => {
                let copied = below(content, from);
                if copied.is_empty() {
                    return;
                }
                Self::Remove(to.clone()).apply(content);
                for (path, value) in copied {
                    content.insert(format!("{to}{}", &path[from.len()..]), value);
                }
            }
        }
    }

    fn make(&self, context: &mut Context) -> Result<()> {
        match self {
            Self::Add(path, value) => context.add(&steps_of(path), value.as_slice())?,
            Self::Remove(path) => context.remove(&steps_of(path))?,
            Self::Copy(from, to) => match context.find_tree(&steps_of(from))? {
                Some(tree) => context.add_tree(&steps_of(to), &tree)?,
                None => false,
            },
        };
        Ok(())
    }
}

/// One step of a script. Commits are named by their numbers in the script.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Commit {
        number: usize,
        parent: Option<usize>,
        changes: Vec<Change>,
    },
    Branch(&'static str, Option<usize>),
    /// Writes a tree that no commit reaches.
    Flush(u8),
    Sync,
    Split,
    Collect(u64),
    AddVolume,
    Reopen,
}

/// Content of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// Numbers of the commits, in the order in which they were made.
    pub(crate) commits: Vec<usize>,
    pub(crate) branches: BTreeMap<&'static str, usize>,
    /// With any, a collection takes no commit away.
    pub(crate) volumes: u16,
}

impl State {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Commit { number, .. } => self.commits.push(*number),
            Step::Branch(name, Some(head)) => drop(self.branches.insert(name, *head)),
            Step::Branch(name, None) => drop(self.branches.remove(name)),
            Step::AddVolume => self.volumes += 1,
            Step::Collect(_) if self.volumes > 0 => {}
            Step::Collect(newest) => {
                let heads: BTreeSet<usize> = self.branches.values().copied().collect();
                let first = self.commits.len().saturating_sub(*newest as usize);
                let mut at = 0;
                self.commits.retain(|number| {
                    at += 1;
                    at > first || heads.contains(number)
                });
            }
            Step::Flush(_) | Step::Sync | Step::Split | Step::Reopen => {}
        }
    }
}

/// Step of a script, and its result.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) options: Options,
    wide: u64,
    pub(crate) steps: Vec<Step>,
    /// The state before each step, and after the last.
    pub(crate) states: Vec<State>,
    pub(crate) commits: Vec<Made>,
}

/// Content of a commit, and its hashes.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) content: Content,
    /// Hashes of a tree that was never stored.
    root: Hash,
    pub(crate) hash: Hash,
}

/// Which scripts are drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) commits: usize,
    /// Names in the widest directory.
    pub(crate) wide: u64,
    pub(crate) collects: bool,
    pub(crate) reopens: bool,
}

fn draw_changes(rng: &mut ChaCha8Rng, wide: u64, is_first: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    if is_first {
        changes.extend((0..wide).map(|name| Change::Add(format!("data/wide/{name}"), vec![1; 3])));
    }
    for _ in 0..3 + rng.below(6) {
        let value = vec![rng.below(256) as u8; [4, 30, 48, 49, 300][rng.index(5)]];
        changes.push(match rng.below(10) {
            0..4 => Change::Add(format!("data/wide/{}", rng.below(wide + 30)), value),
            4 => Change::Remove(format!("data/wide/{}", rng.below(wide + 30))),
            5..8 => Change::Add(format!("data/{}/{}", rng.below(5), rng.below(9)), value),
            8 => Change::Remove(format!("data/{}", rng.below(5))),
            _ => Change::Copy(format!("data/{}", rng.below(5)), format!("copy/{}", rng.below(3))),
        });
    }

    changes
}

impl Script {
    /// Draws a script, and the states by a model.
    pub(crate) fn draw(rng: &mut ChaCha8Rng, options: Options, kind: Kind) -> Self {
        let mut script = Self {
            options,
            wide: kind.wide,
            steps: Vec::new(),
            states: vec![State::default()],
            commits: Vec::new(),
        };
        while script.commits.len() < kind.commits {
            let state = script.states[script.states.len() - 1].clone();
            let known = &state.commits;
            let some =
                |rng: &mut ChaCha8Rng| known[known.len() - 1 - rng.index(known.len().min(4))];
            let step = match rng.below(20) {
                _ if known.is_empty() => script.draw_commit(rng, None),
                0 => Step::Branch(["main", "a/b", "x"][rng.index(3)], None),
                1..4 => Step::Branch(["main", "a/b", "x"][rng.index(3)], Some(some(rng))),
                4 => Step::Flush(rng.below(256) as u8),
                5 => Step::Sync,
                6 if rng.chance(1, 3) => Step::Split,
                7 if kind.reopens => Step::Reopen,
                8 if kind.collects => Step::Collect(2 + rng.below(6)),
                9 => {
                    let parent = some(rng);
                    script.draw_commit(rng, Some(parent))
                }
                _ => script.draw_commit(rng, known.last().copied()),
            };

            script.push(step);
        }

        script
    }

    fn draw_commit(&mut self, rng: &mut ChaCha8Rng, parent: Option<usize>) -> Step {
        let changes = draw_changes(rng, self.wide, parent.is_none());
        let number = self.commits.len();
        let mut content =
            parent.map_or_else(Content::new, |parent| self.commits[parent].content.clone());
        for change in &changes {
            change.apply(&mut content);
        }
        let root = fresh_hash(&self.options.rules, &content);
        let parents: Vec<Hash> = parent.iter().map(|parent| self.commits[*parent].hash).collect();
        let Meta { date, author, message } = Meta::tezos(date_of(number), "");
        let info =
            terrane_context::CommitInfo { root: &root, parents: &parents, date, author, message };
        let hash = self.options.rules.commit_hash(&info);
        self.commits.push(Made { content, root, hash });

        Step::Commit { number, parent, changes }
    }

    /// Adds a commit of the newest one with some changes.
    pub(crate) fn push_commit(&mut self, rng: &mut ChaCha8Rng) {
        let parent = self.states[self.states.len() - 1].commits.last().copied();
        let step = self.draw_commit(rng, parent);
        self.push(step);
    }

    pub(crate) fn push(&mut self, step: Step) {
        let mut state = self.states[self.states.len() - 1].clone();
        state.apply(&step);
        self.steps.push(step);
        self.states.push(state);
    }

    /// Whether everything up to the end of a step is durable once it has returned.
    pub(crate) fn is_durable(&self, step: &Step) -> bool {
        match step {
            Step::Commit { .. } | Step::Branch(..) => self.options.durability == Durability::Each,
            Step::Flush(_) => false,
            Step::Sync | Step::Split | Step::Collect(_) | Step::AddVolume | Step::Reopen => true,
        }
    }

    /// Takes a step.
    pub(crate) fn take(&self, store: &mut Store, disk: &Arc<dyn Disk>, step: &Step) -> Result<()> {
        match step {
            Step::Commit { number, parent, changes } => {
                let mut context = match parent {
                    None => store.empty(),
                    Some(parent) => {
                        let hash = self.commits[*parent].hash;
                        store.checkout(&hash)?.ok_or(Error::UnknownCommit { hash })?
                    }
                };
                for change in changes {
                    change.make(&mut context)?;
                }
                let hash = store.commit(&context, &Meta::tezos(date_of(*number), ""))?;
                assert_eq!(hash, self.commits[*number].hash, "commit {number}");
                Ok(())
            }
            Step::Branch(name, Some(head)) => {
                store.set_branch(name.as_bytes(), &self.commits[*head].hash)
            }
            Step::Branch(name, None) => store.remove_branch(name.as_bytes()).map(drop),
            Step::Flush(byte) => {
                let mut tree = store.empty();
                tree.add(&["garbage"], vec![*byte; 500])?;
                store.flush(&tree)
            }
            Step::Sync => store.sync(),
            Step::Split => match store.split() {
                Err(Error::EmptyChunk) => store.sync(),
                other => other,
            },
            Step::Collect(newest) => store.collect(&Retain::newest(*newest), &mut go).map(drop),
            Step::AddVolume => match store.add_volume() {
                // The collection before it was interrupted, which nobody can tell from one that has
                // ended.
                Err(Error::EmptyVolume { .. }) => {
                    store.collect(&Retain::newest(1), &mut go)?;
                    store.add_volume().map(drop)
                }
                other => other.map(drop),
            },
            Step::Reopen => {
                store.close()?;
                *store = open(disk, &self.options)?;
                Ok(())
            }
        }
    }

    /// Reads the content of a store, by the order of its commits and its branches.
    pub(crate) fn state_of(&self, store: &Store) -> Result<State> {
        let number = |hash: &Hash| {
            let found = self.commits.iter().position(|made| made.hash == *hash);
            found.unwrap_or_else(|| panic!("{hash} was never made"))
        };

        let mut state = State { volumes: store.volumes().len() as u16, ..State::default() };
        for commit in store.newest() {
            state.commits.insert(0, number(&commit?.hash));
        }
        for (name, head) in store.branches() {
            let known = ["main", "a/b", "x"].into_iter().find(|known| known.as_bytes() == name);
            state.branches.insert(known.unwrap(), number(&head));
        }

        Ok(state)
    }

    /// Compares commits with what they must hold: `whole` of them byte for byte, of the others that
    /// they are there.
    pub(crate) fn check_commits(&self, store: &Store, state: &State, whole: usize) {
        for (at, &number) in state.commits.iter().rev().enumerate() {
            let Made { content, root, hash } = &self.commits[number];
            let context =
                store.checkout(hash).unwrap().unwrap_or_else(|| panic!("commit {number}"));
            if at < whole {
                assert!(content_of(&context).unwrap() == *content, "commit {number}");
                assert_eq!(context.tree().hash(), *root);
            } else if let Some((path, value)) = content.iter().nth(number % content.len().max(1)) {
                assert_eq!(context.find(&steps_of(path)).unwrap().as_ref(), Some(value), "{path}");
            }
        }

        for (name, head) in store.branches() {
            assert!(store.exists(&head).unwrap(), "branch {}", String::from_utf8_lossy(&name));
        }
        for (number, Made { hash, .. }) in self.commits.iter().enumerate() {
            let is_there = state.commits.contains(&number);
            assert_eq!(store.exists(hash).unwrap(), is_there, "commit {number}");
        }
    }
}

/// Options of a seed: half of the stores are relaxed, half are read past the page cache, a third
/// index every object, and in most a directory of 20 names is divided.
pub(crate) fn draw_options(rng: &mut ChaCha8Rng) -> Options {
    options()
        .durability(if rng.chance(1, 2) { Durability::Buffered } else { Durability::Each })
        .indexing(if rng.chance(1, 3) { Indexing::Always } else { Indexing::Minimal })
        .rules(match rng.below(3) {
            0 => Rules::TEZOS,
            1 => Rules { branching: 4, flat_limit: 16, ..Rules::BLAKE3 },
            _ => Rules { branching: 4, flat_limit: 16, ..Rules::TEZOS },
        })
        .access(if rng.chance(1, 2) { Access::Direct } else { Access::Buffered })
}
