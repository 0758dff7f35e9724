//! Random histories against a sorted map.
//!
//! Goal: whatever is done in whatever order, trees, commits and branches are what a map of paths
//! would be, through reopening, collections and readers, and each hash is that of the same tree
//! built afresh. Method: random operations on several contexts, with small parameters, where every
//! shape is met often, and with those of Tezos.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_context::{
    Context, Hash, Indexing, Meta, Options, Prefetch, Retain, Rules, Store, StoreReader,
};
use terrane_io::{Access, Disk, MemoryDisk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::script::{
    Change, Content, DIR, content_of, create, fresh_hash, go, open, options, steps_of,
};

/// A context that is being changed, and what it must hold.
struct Open {
    context: Context,
    content: Content,
    parents: Vec<Hash>,
}

struct Bench {
    disk: Arc<dyn Disk>,
    options: Options,
    store: Store,
    reader: StoreReader,
    open: Vec<Open>,
    /// In the order in which they were made.
    commits: Vec<(Hash, Content)>,
    branches: BTreeMap<Vec<u8>, Hash>,
    date: i64,
}

fn draw_path(rng: &mut ChaCha8Rng, wide: u64) -> String {
    let names = (0..=rng.below(3)).map(|_| match rng.below(3) {
        0 => rng.below(wide).to_string(),
        _ => ["a", "b", "longer", "z"][rng.index(4)].to_owned(),
    });
    names.collect::<Vec<_>>().join("/")
}

/// A value on the way is replaced by a directory, and a directory by a value.
fn add(content: &mut Content, path: &str, value: Vec<u8>) {
    for (at, _) in path.match_indices('/') {
        content.remove(&path[..at]);
    }
    Change::Remove(path.to_owned()).apply(content);
    content.insert(path.to_owned(), value);
}

fn below<'a>(content: &'a Content, path: &str) -> Vec<(&'a str, &'a Vec<u8>)> {
    let rest = |other: &'a str| other.strip_prefix(path)?.strip_prefix('/');
    content.iter().filter_map(|(other, value)| Some((rest(other)?, value))).collect()
}

impl Bench {
    fn new(options: Options) -> Self {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let store = create(&disk, &options).unwrap();
        let reader = StoreReader::open(Arc::clone(&disk), Path::new(DIR), 1 << 20).unwrap();
        let open = Open { context: store.empty(), content: Content::new(), parents: Vec::new() };

        Self {
            disk,
            options,
            store,
            reader,
            open: vec![open],
            commits: Vec::new(),
            branches: BTreeMap::new(),
            date: 0,
        }
    }

    fn change(&mut self, rng: &mut ChaCha8Rng, wide: u64) {
        let at = rng.index(self.open.len());
        let Open { context, content, .. } = &mut self.open[at];
        let path = draw_path(rng, wide);
        let steps = steps_of(&path);

        match rng.below(10) {
            0..6 => {
                let value = vec![rng.below(3) as u8; [0, 2, 48, 49, 90][rng.index(5)]];
                let changed = context.add(&steps, value.as_slice()).unwrap();
                assert_eq!(changed, content.get(&path) != Some(&value), "{path}");
                add(content, &path, value);
            }
            6..8 => {
                let is_there = content.contains_key(&path) || !below(content, &path).is_empty();
                assert_eq!(context.remove(&steps).unwrap(), is_there, "{path}");
                Change::Remove(path).apply(content);
            }
            _ => {
                let to = draw_path(rng, wide);
                let Some(tree) = context.find_tree(&steps).unwrap() else {
                    assert!(below(content, &path).is_empty() && !content.contains_key(&path));
                    return;
                };
                let copied: Content = below(content, &path)
                    .into_iter()
                    .map(|(k, v)| (k.to_owned(), v.clone()))
                    .collect();
                let value = content.get(&path).cloned();
                context.add_tree(&steps_of(&to), &tree).unwrap();
                // A placeholder makes the way; a directory takes its place.
                add(content, &to, value.clone().unwrap_or_default());
                if value.is_none() {
                    content.remove(&to);
                    content.extend(copied.into_iter().map(|(k, v)| (format!("{to}/{k}"), v)));
                }
            }
        }
    }

    fn look(&self, rng: &mut ChaCha8Rng, wide: u64) {
        let Open { context, content, .. } = &self.open[rng.index(self.open.len())];
        let path = draw_path(rng, wide);
        if rng.chance(1, 2) {
            let mut paths: Vec<String> = (0..rng.below(20)).map(|_| draw_path(rng, wide)).collect();
            paths.push(path.clone());
            let paths: Vec<_> = paths.iter().map(|path| steps_of(path)).collect();
            let what = if rng.chance(1, 2) { Prefetch::Target } else { Prefetch::Way };
            context.prefetch(&paths, what);
        }

        let steps = steps_of(&path);
        assert_eq!(context.find(&steps).unwrap().as_ref(), content.get(&path), "{path}");
        assert_eq!(context.mem(&steps).unwrap(), content.contains_key(&path));
        let below = below(content, &path);
        let mut names: Vec<&str> =
            below.iter().map(|(rest, _)| rest.split('/').next().unwrap()).collect();
        names.dedup();
        assert_eq!(context.length(&steps).unwrap(), names.len() as u64, "{path}");
        let is_there = content.contains_key(&path) || !below.is_empty();
        assert_eq!(context.mem_tree(&steps).unwrap(), is_there, "{path}");
        let mut listed = Vec::new();

        loop {
            let page = context.list(&steps, listed.len(), 3).unwrap();
            if page.is_empty() {
                break;
            }
            listed
                .extend(page.into_iter().map(|(name, _)| String::from_utf8(name.into()).unwrap()));
        }

        listed.sort();
        names.sort_unstable();
        assert_eq!(listed, names, "{path}");
    }

    fn commit(&mut self, rng: &mut ChaCha8Rng) {
        let at = rng.index(self.open.len());
        self.date += 1;
        let meta = Meta::tezos(self.date, "");
        let Open { context, content, parents } = &mut self.open[at];
        let root = fresh_hash(self.store.rules(), content);
        assert_eq!(context.tree().hash(), root);
        let expected = self.store.hash(context, &meta);
        let hash = self.store.commit(context, &meta).unwrap();
        assert_eq!(hash, expected);
        let commit = self.store.commit_info(&hash).unwrap();
        assert_eq!((commit.root, &commit.parents), (root, &*parents));
        self.commits.push((hash, content.clone()));

        if rng.chance(3, 4) {
            context.advance(hash);
            *parents = vec![hash];
        }
    }

    fn checkout(&mut self, rng: &mut ChaCha8Rng) {
        let Some((hash, content)) = self.commits.get(rng.index(self.commits.len().max(1))) else {
            return;
        };
        let context = self.store.checkout(hash).unwrap().unwrap();
        let open = Open { context, content: content.clone(), parents: vec![*hash] };
        if self.open.len() < 3 {
            self.open.push(open);
        } else {
            let at = rng.index(3);
            self.open[at] = open;
        }
    }

    fn branch(&mut self, rng: &mut ChaCha8Rng) {
        let name = [b"main".as_slice(), b"x/y", b"\xFF"][rng.index(3)];
        match self.commits.get(rng.index(self.commits.len() + 1)) {
            Some((hash, _)) => {
                self.store.set_branch(name, hash).unwrap();
                self.branches.insert(name.to_vec(), *hash);
            }
            None => {
                let removed = self.store.remove_branch(name).unwrap();
                assert_eq!(removed, self.branches.remove(name).is_some());
            }
        }
    }

    fn collect(&mut self, rng: &mut ChaCha8Rng) {
        let kept = 1 + rng.index(6);
        self.store.collect(&Retain::newest(kept as u64), &mut go).unwrap();
        let first = self.commits.len().saturating_sub(kept);
        let mut at = 0;
        self.commits.retain(|(hash, _)| {
            at += 1;
            at > first || self.branches.values().any(|head| head == hash)
        });
    }

    fn reopen(&mut self) {
        self.open.truncate(1);
        let Open { content, parents, .. } = self.open.remove(0);
        self.store.close().unwrap();
        self.store = open(&self.disk, &self.options).unwrap();
        // What was not committed is made once more.
        let mut context = self.store.empty();
        for (path, value) in &content {
            context.add(&steps_of(path), value.as_slice()).unwrap();
        }
        context.set_parents(parents.clone());
        self.open.push(Open { context, content, parents });
    }

    fn check(&self) {
        self.reader.sync().unwrap();
        let branches: Vec<(Vec<u8>, Hash)> = self.branches.clone().into_iter().collect();
        assert_eq!(self.store.branches(), branches);
        assert_eq!(self.reader.branches(), branches);
        let newest: Vec<Hash> = self.store.newest().map(|commit| commit.unwrap().hash).collect();
        assert!(newest.iter().eq(self.commits.iter().rev().map(|(hash, _)| hash)));
        let newest: Vec<Hash> = self.reader.newest().map(|commit| commit.unwrap().hash).collect();
        assert!(newest.iter().eq(self.commits.iter().rev().map(|(hash, _)| hash)), "reader");

        for (hash, content) in &self.commits {
            let context = self.store.checkout(hash).unwrap().unwrap();
            assert_eq!(&content_of(&context).unwrap(), content);
            let context = self.reader.checkout(hash).unwrap().unwrap();
            assert_eq!(&content_of(&context).unwrap(), content, "reader");
        }

        for Open { context, content, .. } in &self.open {
            assert_eq!(&content_of(context).unwrap(), content);
            assert_eq!(context.tree().hash(), fresh_hash(self.store.rules(), content));
        }
    }
}

fn run(rng: &mut ChaCha8Rng, rules: Rules, wide: u64) {
    let indexing = if rng.chance(1, 2) { Indexing::Always } else { Indexing::Minimal };
    let cache_bytes = [0, 4 << 10, 1 << 20][rng.index(3)];
    let access = if rng.chance(1, 2) { Access::Direct } else { Access::Buffered };
    let mut bench = Bench::new(
        options().rules(rules).indexing(indexing).cache_bytes(cache_bytes).access(access),
    );

    for _ in 0..600 {
        match rng.below(60) {
            0..35 => bench.change(rng, wide),
            35..45 => bench.look(rng, wide),
            45..50 => bench.commit(rng),
            50..53 => bench.checkout(rng),
            53..56 => bench.branch(rng),
            56 => bench.collect(rng),
            57 => bench.reopen(),
            58 => drop(bench.reader.sync().unwrap()),
            _ => bench.check(),
        }
    }

    bench.check();
}

#[test]
fn any_history_is_that_of_a_map_with_small_parameters() {
    for_each_seed("any_history_is_that_of_a_map_with_small_parameters", 12, |rng, seed| {
        let rules = if seed % 2 == 0 { Rules::TEZOS } else { Rules::BLAKE3 };
        run(rng, Rules { branching: 2, flat_limit: 3, ..rules }, 30);
    });
}

#[test]
fn any_history_is_that_of_a_map_with_the_parameters_of_tezos() {
    for_each_seed("any_history_is_that_of_a_map_with_the_parameters_of_tezos", 4, |rng, seed| {
        let rules = if seed % 2 == 0 { Rules::TEZOS } else { Rules::BLAKE3 };
        run(rng, rules, 1_000);
    });
}
