//! Each kind of store, behind one interface: numbered commits whose content follows from the
//! number.
//!
//! Commit n sets and removes some of [`KEYS`] keys, and sets [`LAST`] to n. So a store that holds
//! some commit says which one, and everything else in it follows. A check panics on an answer that
//! is no content of that commit, and returns an error if the store reports one: a wrong answer and
//! a reported fault never look alike.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use terrane_backends::lmdb::{LmdbDatabase, LmdbOptions};
use terrane_backends::sqlite::{SqliteDatabase, SqliteOptions};
use terrane_backends::{BtreeDatabase, BtreeIndexes, BtreeOptions, LsmDatabase, LsmOptions};
use terrane_btree as btree;
use terrane_context as context;
use terrane_io::Disk;
use terrane_kv::Database;
use terrane_lsm as lsm;
use terrane_mpt as mpt;
use terrane_radix as radix;
use terrane_testkit::draw::Draw;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

/// Number of different keys.
const KEYS: u64 = 60;

/// Key of the number of the last commit.
const LAST: &[u8] = b"zz";

pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// An error of any engine, as text.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// An error with its causes.
fn text(error: impl Into<Box<dyn Error>>) -> String {
    let error = error.into();
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Changes of a commit.
fn changes(number: u64) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let rng = &mut ChaCha8Rng::seed_from_u64(number);
    let mut changes: BTreeMap<_, _> = (0..6)
        .map(|_| {
            let key = rng.below(KEYS);
            let key = vec![b'a' + (key % 3) as u8, b'0' + (key / 3) as u8];
            let len = if rng.chance(1, 12) { 700 } else { 8 + rng.index(30) };
            (key, (!rng.chance(1, 4)).then(|| rng.bytes(len)))
        })
        .collect();
    changes.insert(LAST.to_vec(), Some(number.to_le_bytes().to_vec()));
    changes
}

/// Content after commit `number`; nothing after commit 0.
pub(crate) fn content(number: u64) -> Content {
    /// Contents after the first commits, which small stores ask for again and again.
    static FIRST: LazyLock<Vec<Content>> = LazyLock::new(|| {
        let mut contents = vec![Content::new()];
        for number in 1..32 {
            let mut content = contents[number - 1].clone();
            apply(&mut content, number as u64);
            contents.push(content);
        }
        contents
    });

    let known = FIRST.len().min(number as usize + 1) - 1;
    let mut content = FIRST[known].clone();
    (known as u64 + 1..=number).for_each(|number| apply(&mut content, number));
    content
}

/// Makes commit `number` in a content.
fn apply(content: &mut Content, number: u64) {
    for (key, value) in changes(number) {
        match value {
            Some(value) => content.insert(key, value),
            None => content.remove(&key),
        };
    }
}

fn number_of(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().expect("a number")))
}

/// Compares what was read with the content after the commit that it names.
fn check_content(what: &str, found: &Content) -> u64 {
    let number = number_of(found.get(LAST).map(Vec::as_slice));
    assert!(*found == content(number), "{what} is not the content after commit {number}");
    number
}

/// A store that is open.
pub(crate) trait Opened {
    /// Reads everything; returns the number of the last commit.
    fn check(&self) -> Result<u64>;

    /// Makes commit `number`, durable when it returns. The one before it was the last.
    fn commit(&mut self, number: u64) -> Result<()>;

    /// One of the engine's own works: a checkpoint, a collection, a retained version, a pruning.
    fn maintain(&mut self, draw: u64) -> Result<()>;

    /// Backs the store up to a directory, where the engine can; a store of the same kind.
    fn back_up(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()>;
}

/// Kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lsm,
    Btree,
    Context,
    RadixLsm,
    RadixBtree,
    Mpt,
    RadixSqlite,
    RadixLmdb,
}

impl Kind {
    /// Those on a [`Disk`].
    pub(crate) const ON_DISK: [Self; 6] =
        [Self::Lsm, Self::Btree, Self::Context, Self::RadixLsm, Self::RadixBtree, Self::Mpt];

    /// All of them, of which two are on the real disk only.
    pub(crate) const ALL: [Self; 8] = [
        Self::Lsm,
        Self::Btree,
        Self::Context,
        Self::RadixLsm,
        Self::RadixBtree,
        Self::Mpt,
        Self::RadixSqlite,
        Self::RadixLmdb,
    ];

    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lsm => "lsm",
            Self::Btree => "btree",
            Self::Context => "context",
            Self::RadixLsm => "radix-lsm",
            Self::RadixBtree => "radix-btree",
            Self::Mpt => "mpt",
            Self::RadixSqlite => "radix-sqlite",
            Self::RadixLmdb => "radix-lmdb",
        }
    }

    /// Whether one process at a time may have a store open for writing. Those of SQLite and LMDB
    /// take turns.
    pub(crate) fn locks(self) -> bool {
        !matches!(self, Self::RadixSqlite | Self::RadixLmdb)
    }

    /// Makes a store that holds nothing.
    pub(crate) fn create(self, disk: &Arc<dyn Disk>, dir: &Path) -> Result<()> {
        match self {
            Self::Lsm => {
                let store = open_lsm(disk, dir, 0, true)?;
                let config = lsm::TableConfig::default();
                let config = config.write_buffer(lsm::WriteBuffer::Entries(8));
                for name in TABLES {
                    let name = lsm::TableName::new(name).map_err(text)?;
                    store.create_table(&name, &config).map_err(text)?;
                }
                store.close().map_err(text)
            }
            Self::Btree => {
                let index = btree::Index::create(Arc::clone(disk), dir, &index_config(0));
                index.map_err(text)?.close().map_err(text)
            }
            Self::Context => {
                let store = context::Store::create(Arc::clone(disk), dir, &context_options(0));
                store.map_err(text)?.close().map_err(text)
            }
            Self::Mpt => open_mpt(disk, dir, 0)?.close().map_err(text),
            _ => {
                let store = self.radix(disk, dir, 0)?;
                store.create_tree(TREE).map_err(text)?;
                store.close().map_err(text)
            }
        }
    }

    /// Opens a store for writing, with options drawn from `settings`. With settings 0 there are no
    /// threads.
    pub(crate) fn open(
        self,
        disk: &Arc<dyn Disk>,
        dir: &Path,
        settings: u64,
    ) -> Result<Box<dyn Opened>> {
        Ok(match self {
            Self::Lsm => Box::new(Lsm(open_lsm(disk, dir, settings, false)?)),
            Self::Btree => {
                let index = btree::Index::open(Arc::clone(disk), dir, &index_config(settings));
                Box::new(Btree(index.map_err(text)?))
            }
            Self::Context => {
                let options = context_options(settings);
                let store = context::Store::open(Arc::clone(disk), dir, &options);
                Box::new(Context(store.map_err(text)?))
            }
            Self::Mpt => Box::new(Mpt(open_mpt(disk, dir, settings)?)),
            _ => {
                let store = self.radix(disk, dir, settings)?;
                let tree = store.tree(TREE).map_err(text)?;
                Box::new(Radix { store, tree })
            }
        })
    }

    /// The engine's own check of a store that nobody has open.
    pub(crate) fn verify(self, disk: &Arc<dyn Disk>, dir: &Path) -> Result<()> {
        let problems = match self {
            Self::Lsm => {
                let report = lsm::verify::verify(disk, dir, &mut |_, _| {}).map_err(text)?;
                report.problems.iter().map(|problem| format!("{problem:?}")).collect()
            }
            Self::Btree => {
                let report = btree::check(disk, dir, &mut |_, _| {}).map_err(text)?;
                report.problems.iter().map(|problem| format!("{problem:?}")).collect()
            }
            Self::Context => {
                let index: Arc<dyn context::IndexEngine> = Arc::new(BtreeIndexes::new(1 << 20));
                let options = context::CheckOptions::default().index(&index).hashes(true);
                let report = context::check(disk, dir, &options, &mut |_| {}).map_err(text)?;
                report.problems.iter().map(|problem| format!("{problem:?}")).collect()
            }
            Self::Mpt => {
                let state = open_mpt(disk, dir, 0)?;
                let report = state.verify().map_err(text)?;
                report.problems.iter().map(|problem| format!("{problem:?}")).collect()
            }
            _ => {
                let report = self.radix(disk, dir, 0)?.verify().map_err(text)?;
                report.problems.iter().map(|problem| format!("{problem:?}")).collect::<Vec<_>>()
            }
        };
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    fn radix(self, disk: &Arc<dyn Disk>, dir: &Path, settings: u64) -> Result<radix::Store> {
        let indexes = &radix::INDEXES;
        let disk = Arc::clone(disk);
        let database: Arc<dyn Database> = match self {
            Self::RadixBtree => {
                let mut options = BtreeOptions::default();
                options.memory_bytes = 1 << 20;
                options.buffer_bytes = Some(2_000 << (settings % 4));
                options.log_bytes_max = 64 << 10;
                Arc::new(BtreeDatabase::open(disk, dir, indexes, &options).map_err(text)?)
            }
            Self::RadixSqlite => {
                std::fs::create_dir_all(dir).map_err(text)?;
                let options = SqliteOptions::file(dir.join("database"));
                Arc::new(SqliteDatabase::open(indexes, &options).map_err(text)?)
            }
            Self::RadixLmdb => {
                std::fs::create_dir_all(dir).map_err(text)?;
                let options = LmdbOptions::default();
                Arc::new(LmdbDatabase::open(dir.join("database"), indexes, &options).map_err(text)?)
            }
            _ => {
                let mut options = LsmOptions::default();
                options.write_buffer_bytes = Some(2_000 << (settings % 4));
                options.log_bytes_max = Some(64 << 10);
                options.background = settings % 2 == 1;
                Arc::new(LsmDatabase::open(disk, dir, indexes, &options).map_err(text)?)
            }
        };
        let options = radix::Options::default().cache_bytes(1 << 10).threads(1);
        radix::Store::open(database, &options).map_err(text)
    }
}

const TABLES: [&str; 2] = ["main", "other"];

fn open_lsm(disk: &Arc<dyn Disk>, dir: &Path, settings: u64, is_new: bool) -> Result<lsm::Store> {
    let session = lsm::SessionOptions::with_salt(7);
    let session = if is_new { session.create_dir() } else { session };
    let thread = match settings % 2 {
        0 => lsm::CheckpointThread::Caller,
        _ => lsm::CheckpointThread::Background,
    };
    let options = lsm::StoreOptions::default().session(session).durability(lsm::Durability::Each);
    let options = options.log_bytes_max((64 << 10) << (settings % 3)).checkpoint_thread(thread);
    lsm::Store::open(Arc::clone(disk), dir, &options).map_err(text)
}

struct Lsm(lsm::Store);

/// Reads a table whose `get` is given.
fn read_table(
    cursor: lsm::Result<lsm::Cursor>,
    get: impl Fn(&[u8]) -> lsm::Result<lsm::Lookup>,
) -> Result<Content> {
    let read = || -> lsm::Result<Content> {
        cursor?.map(|record| record.map(|it| (it.key, it.value.into_vec()))).collect()
    };
    let found = read().map_err(text);
    for (key, value) in found.iter().flatten() {
        let got = get(key).map_err(text)?;
        assert!(
            matches!(&got, lsm::Lookup::Found(got) if got[..] == value[..]),
            "a lookup gives {got:?}, and a scan {value:?}"
        );
    }
    found
}

impl Opened for Lsm {
    fn check(&self) -> Result<u64> {
        let mut found = Content::new();
        for name in TABLES {
            let table = self.0.table(name).map_err(text)?;
            found.extend(read_table(table.cursor(), |key| table.get(key))?);
        }
        let last = check_content("the store", &found);

        for version in self.0.versions().map_err(text)? {
            let version = self.0.version(version.number).map_err(text)?;
            let mut found = Content::new();
            for name in TABLES {
                let table = version.table(name).map_err(text)?;
                found.extend(read_table(table.cursor(), |key| table.get(key))?);
            }
            check_content("a retained version", &found);
        }
        Ok(last)
    }

    fn commit(&mut self, number: u64) -> Result<()> {
        let [main, other] = TABLES.map(|name| self.0.table(name));
        let (main, other) = (main.map_err(text)?, other.map_err(text)?);
        let changes = changes(number);
        let updates = |is_main: bool| -> Vec<(&[u8], lsm::Update<'_>)> {
            let mine = changes.iter().filter(|(key, _)| (key[0] % 2 == 0) == is_main);
            mine.map(|(key, value)| match value {
                Some(value) => (key.as_slice(), lsm::Update::Insert(value)),
                None => (key.as_slice(), lsm::Update::Delete),
            })
            .collect()
        };
        let batches = [(&main, &updates(true)[..]), (&other, &updates(false)[..])];
        self.0.commit(&batches).and_then(|ticket| ticket.wait()).map_err(text)
    }

    fn maintain(&mut self, draw: u64) -> Result<()> {
        let versions = self.0.versions().map_err(text)?;
        match (draw % 3, versions.first()) {
            (0, _) => self.0.checkpoint(),
            (1, Some(first)) if versions.len() > 2 => self.0.release(first.number),
            _ => self.0.retain(None).map(drop),
        }
        .map_err(text)
    }

    fn back_up(&self, dir: &Path) -> Result<()> {
        let place = lsm::BackupPlace::new(dir);
        self.0.back_up(&place, &mut |_, _| {}).map(drop).map_err(text)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close().map_err(text)
    }
}

fn index_config(settings: u64) -> btree::Config {
    let buffer = 1_000 << (settings % 4);
    let mut config = btree::Config::variable().memory_bytes(1 << 20).buffer_bytes(buffer);
    config.log_bytes_max = 1 << 16;
    config
}

struct Btree(btree::Index);

impl Opened for Btree {
    fn check(&self) -> Result<u64> {
        let read = || -> btree::Result<Content> { self.0.iter()?.collect() };
        match read() {
            Ok(found) => {
                for (key, value) in &found {
                    let got = self.0.find(key).map_err(text)?;
                    assert_eq!(got.as_ref(), Some(value), "a lookup and a scan differ");
                }
                Ok(check_content("the index", &found))
            }
            // Other leaves are read all the same.
            Err(error) => {
                let last = self.0.find(LAST).map_err(text)?;
                let content = content(number_of(last.as_deref()));
                for key in 0..KEYS {
                    let key = [b'a' + (key % 3) as u8, b'0' + (key / 3) as u8];
                    if let Ok(found) = self.0.find(&key) {
                        assert_eq!(found.as_ref(), content.get(&key[..]), "behind damage");
                    }
                }
                Err(text(error))
            }
        }
    }

    fn commit(&mut self, number: u64) -> Result<()> {
        let changes = changes(number);
        let updates: Vec<_> = changes
            .iter()
            .map(|(key, value)| match value {
                Some(value) => btree::Update::Replace(key, value),
                None => btree::Update::Remove(key),
            })
            .collect();
        let position = self.0.commit(&updates).map_err(text)?;
        self.0.sync_to(position).map_err(text)
    }

    fn maintain(&mut self, draw: u64) -> Result<()> {
        match draw % 2 {
            0 => self.0.checkpoint(),
            _ => self.0.flush(true),
        }
        .map_err(text)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close().map_err(text)
    }
}

fn context_options(settings: u64) -> context::Options {
    // Small directories are divided, so that few entries make each shape.
    let rules = context::Rules { branching: 2, flat_limit: 3, ..context::Rules::TEZOS };
    context::Options::new(Arc::new(BtreeIndexes::new(1 << 20)))
        .rules(rules)
        .chunk_bytes(4 << 10)
        .cache_bytes(1 << (12 + settings % 9))
        .hash_threads(1)
}

const BRANCH: &[u8] = b"main";

struct Context(context::Store);

fn path(key: &[u8]) -> [&[u8]; 2] {
    key.split_at(1).into()
}

fn read_context(found: &context::Context) -> Result<Content> {
    let mut content = Content::new();
    for key in (0..KEYS).map(|key| vec![b'a' + (key % 3) as u8, b'0' + (key / 3) as u8]) {
        if let Some(value) = found.find(&path(&key)).map_err(text)? {
            content.insert(key, value);
        }
    }
    if let Some(value) = found.find(&path(LAST)).map_err(text)? {
        content.insert(LAST.to_vec(), value);
    }
    Ok(content)
}

impl Opened for Context {
    fn check(&self) -> Result<u64> {
        let head = self.0.branch(BRANCH);
        let mut last = 0;
        for commit in self.0.newest() {
            let commit = commit.map_err(text)?;
            let found = self.0.checkout(&commit.hash).map_err(text)?.ok_or("a commit is gone")?;
            let number = check_content("a commit", &read_context(&found)?);
            assert_eq!(number, commit.date as u64, "a commit has its content");
            if Some(commit.hash) == head {
                last = number;
            }
        }
        assert!(head.is_none() || last > 0, "the head of a branch is a commit");
        Ok(last)
    }

    fn commit(&mut self, number: u64) -> Result<()> {
        let mut context = match self.0.branch(BRANCH) {
            Some(head) => self.0.checkout(&head).map_err(text)?.ok_or("the head is gone")?,
            None => self.0.empty(),
        };
        for (key, value) in changes(number) {
            match value {
                Some(value) => context.add(&path(&key), value.as_slice()).map_err(text)?,
                None => context.remove(&path(&key)).map_err(text)?,
            };
        }
        let meta = context::Meta::tezos(number.cast_signed(), "");
        self.0.commit_to(BRANCH, &context, &meta).map_err(text)?;
        self.0.sync().map_err(text)
    }

    fn maintain(&mut self, draw: u64) -> Result<()> {
        if draw.is_multiple_of(3) {
            return self.0.split().map_err(text);
        }
        let retain = context::Retain::newest(3);
        self.0.collect(&retain, &mut |_| context::GcPace::Go).map(drop).map_err(text)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close().map_err(text)
    }
}

const TREE: &str = "state";

struct Radix {
    store: radix::Store,
    tree: radix::Tree,
}

impl Radix {
    /// The newest version.
    fn head(&self) -> Result<radix::Root> {
        let versions = self.tree.versions().map_err(text)?;
        let newest = versions.iter().max_by_key(|version| version.id);
        Ok(newest.map_or(radix::Root::EMPTY, |version| version.root))
    }

    fn read(&self, root: &radix::Root) -> Result<Content> {
        let prefix = radix::Prefix::new(&[]).map_err(text)?;
        let leaves = self.tree.leaves(root, &prefix).map_err(text)?;
        leaves
            .map(|leaf| {
                let (address, value) = leaf.map_err(text)?;
                Ok((address.as_bytes().to_vec(), value))
            })
            .collect()
    }
}

impl Opened for Radix {
    fn check(&self) -> Result<u64> {
        let versions = self.tree.versions().map_err(text)?;
        for version in &versions {
            check_content("a version", &self.read(&version.root)?);
        }
        match self.head()? {
            radix::Root::EMPTY => Ok(0),
            head => Ok(check_content("the newest version", &self.read(&head)?)),
        }
    }

    fn commit(&mut self, number: u64) -> Result<()> {
        let parent = self.head()?;
        // A key that is absent cannot be deleted.
        let before = content(number - 1);
        let mut batch = Vec::new();
        for (key, value) in changes(number) {
            let address = radix::Address::new(&key).map_err(text)?;
            match value {
                Some(value) => batch.push(radix::Change::Set(address, value)),
                None if before.contains_key(&key) => batch.push(radix::Change::Delete(address)),
                None => {}
            }
        }
        self.tree.commit(&parent, &batch).map(drop).map_err(text)
    }

    fn maintain(&mut self, _draw: u64) -> Result<()> {
        match self.head()? {
            radix::Root::EMPTY => Ok(()),
            head => self.tree.prune_below(&head, 3).map(drop).map_err(text),
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        drop(self.tree);
        self.store.close().map_err(text)
    }
}

fn open_mpt(disk: &Arc<dyn Disk>, dir: &Path, settings: u64) -> Result<mpt::State> {
    let thread = match settings % 2 {
        0 => lsm::CheckpointThread::Caller,
        _ => lsm::CheckpointThread::Background,
    };
    // A salt that is known, so that runs are alike.
    let session = lsm::SessionOptions::with_salt(7).create_dir();
    let store = lsm::StoreOptions::default().session(session).checkpoint_thread(thread);
    let options = mpt::Options::default().store(store.log_bytes_max(1 << 20)).history(true);
    mpt::State::open(Arc::clone(disk), dir, &options).map_err(text)
}

struct Mpt(mpt::State);

/// The account of a key.
fn address(key: &[u8]) -> mpt::Address {
    mpt::Address::left_padding_from(key)
}

/// The balance that stands for a value.
fn balance(value: &[u8]) -> mpt::U256 {
    mpt::U256::from_le_slice(&value[..8])
}

impl Opened for Mpt {
    fn check(&self) -> Result<u64> {
        let last = self.0.account(&address(LAST)).map_err(text)?;
        let last = last.map_or(0, |account| account.balance.to::<u64>());
        let content = content(last);
        for key in (0..KEYS).map(|key| vec![b'a' + (key % 3) as u8, b'0' + (key / 3) as u8]) {
            let found = self.0.account(&address(&key)).map_err(text)?;
            let expected = content.get(&key).map(|value| balance(value));
            assert_eq!(found.map(|account| account.balance), expected, "an account");
        }
        let tip = self.0.tip().map_or(0, |tip| tip.height + 1);
        assert_eq!(tip, last, "the tip is the last block");
        for height in tip.saturating_sub(4)..tip {
            // Below the floor of the history nothing is known.
            let Ok(at) = self.0.at(height) else { continue };
            let proof = at.prove(&address(LAST), &[]).map_err(text)?;
            assert_eq!(proof.verify(at.block().root), Ok(()), "a proof at height {height}");
        }
        let report = self.0.verify().map_err(text)?;
        if report.is_clean() { Ok(last) } else { Err(format!("{:?}", report.problems)) }
    }

    fn commit(&mut self, number: u64) -> Result<()> {
        let hash = |number: u64| mpt::B256::from(mpt::U256::from(number));
        let mut block = self.0.block(number - 1, hash(number - 1)).map_err(text)?;
        for (key, value) in changes(number) {
            match value {
                Some(value) => {
                    let account = mpt::Account::new(1, balance(&value));
                    block.set_account(address(&key), &account);
                }
                None => block.delete_account(address(&key)),
            }
        }
        let committed = block.commit(hash(number)).map_err(text)?;
        committed.ticket.wait().map_err(text)
    }

    fn maintain(&mut self, draw: u64) -> Result<()> {
        let height = self.0.tip().map_or(0, |tip| tip.height);
        match draw % 2 {
            0 => self.0.store().checkpoint().map_err(text),
            _ => self.0.prune_history(height.saturating_sub(3)).map(drop).map_err(text),
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close().map_err(text)
    }
}
