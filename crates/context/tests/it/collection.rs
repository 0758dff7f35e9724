//! Collections: kept commits stay readable, others are gone, and so are their bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Context, Error, GcPace, GcPhase, Hash, Indexing, Kind, Loss, Meta, Options, Retain, Store,
    StoreReader, Tree,
};
use terrane_io::{Disk, ErrorKind, MemoryDisk, SimDisk, Survival};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::{by_effort, places};
use terrane_testkit::{ChaCha8Rng, SeedableRng};

const DIR: &str = "store";

fn options() -> Options {
    Options::new(Arc::new(BtreeIndexes::new(1 << 20))).chunk_bytes(16 << 10)
}

#[test]
fn objects_are_found_by_their_hashes_until_they_are_collected() {
    let all = options().indexing(Indexing::Always);
    let mut bench = Bench::new(all.clone());

    let trees = |bench: &Bench| {
        let head = bench.commits[bench.commits.len() - 1].0;
        let context = bench.store.checkout(&head).unwrap().unwrap();
        // The wide directory is one of inodes; each of those below is flat.
        let wide = context.find_tree(&["data"]).unwrap().unwrap();
        assert!(wide.length(&[] as &[&str]).unwrap() > 256);
        let mut trees = vec![context.tree().clone(), wide.clone()];
        trees.extend(wide.list(&[] as &[&str], 0, usize::MAX).unwrap().into_iter().map(|(_, t)| t));
        trees
    };

    let below = |tree: &Tree| {
        let found = tree.list(&[] as &[&str], 0, usize::MAX).unwrap();
        found.into_iter().map(|(step, tree)| (step, tree.hash())).collect::<Vec<_>>()
    };

    let check = |bench: &Bench, trees: &[Tree]| {
        for tree in trees {
            let hash = tree.hash();
            let found = bench.store.find_object(Kind::Directory, &hash).unwrap().unwrap();
            assert!(!found.is_shallow() && found == *tree && below(&found) == below(tree));
            assert!(bench.store.find_object(Kind::Value, &hash).unwrap().is_none());
            for (step, child) in tree.list(&[] as &[&str], 0, usize::MAX).unwrap() {
                let Some(value) = child.to_value().unwrap() else { continue };
                let found = bench.store.find_object(Kind::Value, &child.hash()).unwrap();
                let found = found.map(|found| found.to_value().unwrap().unwrap());
                assert_eq!(found, (value.len() > 48).then_some(value), "{step:?}");
            }
        }
    };

    bench.chain(20);
    let early = trees(&bench);
    check(&bench, &early);
    let empty = bench.store.rules().empty_hash();
    assert!(bench.store.find_object(Kind::Directory, &empty).unwrap().unwrap().is_empty());
    let hashes: Vec<Hash> = early.iter().map(Tree::hash).collect();
    drop(early);
    bench.reopen();
    check(&bench, &trees(&bench));
    bench.chain(30);

    // What was found is held, and the rest of its commit goes.
    let held = bench.store.find_object(Kind::Directory, &hashes[1]).unwrap().unwrap();
    let content = below(&held);
    let mut pieces = 0;
    bench
        .store
        .collect(&Retain::newest(1), &mut |progress| {
            pieces += 1;
            let root = bench.store.find_object(Kind::Directory, &hashes[0]).unwrap();
            if progress.phase == GcPhase::Reclaim {
                // It was looked for, and so held, or it goes.
                assert!(root.is_none_or(|root| root.find_tree(&["data"]).unwrap().is_some()));
            }
            assert!(bench.store.find_object(Kind::Directory, &hashes[1]).unwrap().is_some());
            GcPace::Go
        })
        .unwrap();
    assert!(pieces > 5, "{pieces}");
    assert!(bench.store.find_object(Kind::Directory, &hashes[0]).unwrap().is_none());
    assert_eq!(below(&held), content);
    drop(held);
    bench.store.collect(&Retain::newest(1), &mut go).unwrap();
    assert!(bench.store.find_object(Kind::Directory, &hashes[1]).unwrap().is_none());
    bench.store.close().unwrap();
    assert!(matches!(bench.store.find_object(Kind::Value, &hashes[1]), Err(Error::Closed)));
    let mut minimal = Bench::new(options());
    let hash = minimal.commit(None);
    let root = minimal.store.commit_info(&hash).unwrap().root;

    assert!(minimal.store.find_object(Kind::Directory, &root).unwrap().is_none());
}

/// Expected content of a commit.
type Content = BTreeMap<Vec<String>, Vec<u8>>;

struct Bench {
    disk: Arc<dyn Disk>,
    options: Options,
    store: Store,
    rng: ChaCha8Rng,
    commits: Vec<(Hash, Content)>,
}

fn go(_: &terrane_context::GcProgress) -> GcPace {
    GcPace::Go
}

impl Bench {
    fn new(options: Options) -> Self {
        Self::on(MemoryDisk::new(), options)
    }

    fn on(disk: Arc<dyn Disk>, options: Options) -> Self {
        let store = Store::create(Arc::clone(&disk), Path::new(DIR), &options).unwrap();
        Self { disk, options, store, rng: ChaCha8Rng::seed_from_u64(7), commits: Vec::new() }
    }

    fn reopen(&mut self) {
        self.store.close().unwrap();
        self.store = Store::open(Arc::clone(&self.disk), Path::new(DIR), &self.options).unwrap();
    }

    /// Commits a child of the `parent`-th commit, or of nothing, with some changes.
    fn commit(&mut self, parent: Option<usize>) -> Hash {
        let (mut context, mut content) = match parent {
            Some(parent) => {
                let (hash, content) = &self.commits[parent];
                (self.store.checkout(hash).unwrap().unwrap(), content.clone())
            }
            None => (self.store.empty(), Content::new()),
        };
        for _ in 0..30 {
            let wide = self.rng.below(600).to_string();
            let path = vec!["data".to_owned(), wide, self.rng.below(3).to_string()];
            if self.rng.below(4) == 0 {
                context.remove(&path).unwrap();
                content.remove(&path);
            } else {
                let len = [4, 20, 100][self.rng.below(3) as usize];
                let value = vec![self.rng.below(256) as u8; len];
                context.add(&path, value.clone()).unwrap();
                content.insert(path, value);
            }
        }

        let date = i64::try_from(self.commits.len()).unwrap();
        let hash = self.store.commit(&context, &Meta::tezos(date, "")).unwrap();
        self.commits.push((hash, content));
        hash
    }

    fn chain(&mut self, count: usize) {
        for _ in 0..count {
            let parent = self.commits.len().checked_sub(1);
            self.commit(parent);
        }
    }

    /// Commits a child of the last commit that replaces 8 of 12 large values.
    fn try_large(&mut self) -> Result<(), Error> {
        let (mut context, mut content) = match self.commits.last() {
            Some((hash, content)) => {
                (self.store.checkout(hash)?.expect("the last one is kept"), content.clone())
            }
            None => (self.store.empty(), Content::new()),
        };
        for _ in 0..8 {
            let path = vec!["data".to_owned(), self.rng.below(12).to_string(), "0".to_owned()];
            let mut value = vec![0; 2_000];
            value[..8].copy_from_slice(&self.rng.below(u64::MAX).to_le_bytes());
            context.add(&path, value.clone()).unwrap();
            content.insert(path, value);
        }

        let date = i64::try_from(self.commits.len()).unwrap();
        let hash = self.store.commit(&context, &Meta::tezos(date, ""))?;
        self.commits.push((hash, content));
        Ok(())
    }

    fn disk_bytes(&self) -> u64 {
        let entries = self.disk.list(Path::new(DIR)).unwrap();
        let chunks = entries.iter().filter(|entry| entry.name.starts_with("chunk-"));
        let len = |name: &str| {
            let path = Path::new(DIR).join(name);
            let mode = terrane_io::OpenMode::Read;
            self.disk.open(&path, mode, terrane_io::Access::Buffered).unwrap().len().unwrap()
        };
        chunks.map(|entry| len(&entry.name)).sum()
    }

    /// The kept commits have their content, byte for byte and hash for hash; the others are
    /// unknown.
    fn check(&self, kept: impl Fn(usize) -> bool) {
        let reader = StoreReader::open(Arc::clone(&self.disk), Path::new(DIR), 0).unwrap();
        for (number, (hash, content)) in self.commits.iter().enumerate() {
            let context = self.store.checkout(hash).unwrap();
            assert_eq!(context.is_some(), kept(number), "commit {number}");
            assert_eq!(reader.exists(hash).unwrap(), kept(number), "reader, commit {number}");
            let Some(context) = context else { continue };
            assert_eq!(&content_of(&context), content, "commit {number}");
            let seen = reader.checkout(hash).unwrap().unwrap();
            assert_eq!(&content_of(&seen), content, "reader, commit {number}");
            let mut fresh = Tree::new(*self.store.rules()).unwrap();
            for (path, value) in content {
                fresh.add(path, value.as_slice()).unwrap();
            }
            assert_eq!(fresh.hash(), self.store.commit_info(hash).unwrap().root);
        }

        let wanted: Vec<Hash> = self
            .commits
            .iter()
            .enumerate()
            .filter(|(n, _)| kept(*n))
            .map(|(_, c)| c.0)
            .rev()
            .collect();
        let newest: Vec<Hash> = self.store.newest().map(|commit| commit.unwrap().hash).collect();
        assert_eq!(newest, wanted);
        let newest: Vec<Hash> = reader.newest().map(|commit| commit.unwrap().hash).collect();

        assert_eq!(newest, wanted, "reader");
    }
}

fn content_of(context: &Context) -> Content {
    let mut content = Content::new();
    for (wide, below) in context.list(&["data"], 0, usize::MAX).unwrap() {
        for (name, value) in below.list(&[] as &[&str], 0, usize::MAX).unwrap() {
            let text = |step: &[u8]| String::from_utf8(step.to_vec()).unwrap();
            let path = vec!["data".to_owned(), text(&wide), text(&name)];
            content.insert(path, value.to_value().unwrap().unwrap());
        }
    }
    content
}

#[test]
fn the_newest_commits_stay_and_the_rest_goes() {
    let mut bench = Bench::new(options());
    bench.chain(150);
    bench.check(|_| true);
    let before = bench.disk_bytes();
    let report = bench.store.collect(&Retain::newest(10), &mut go).unwrap();
    assert_eq!((report.kept, report.collected), (10, 140), "{report:?}");
    assert!(report.compacted + report.removed > 5, "{report:?}");
    bench.check(|number| number >= 140);
    let after = bench.disk_bytes();
    assert!(after * 4 < before, "{before} to {after}");

    // All but a sixteenth of what is left is in use, beside heads and maps.
    assert!(after < report.live_bytes * 13 / 10 + (20 << 10), "{after} {report:?}");

    bench.reopen();
    bench.check(|number| number >= 140);
    assert!(!bench.store.has_unfinished_collection());
    bench.chain(20);
    bench.check(|number| number >= 140);
    let report = bench.store.collect(&Retain::newest(3), &mut go).unwrap();
    assert_eq!((report.kept, report.collected), (3, 27));
    bench.check(|number| number >= 167);
    bench.reopen();
    bench.check(|number| number >= 167);
    let report = bench.store.collect(&Retain::everything(), &mut go).unwrap();
    assert_eq!((report.kept, report.collected), (3, 0));

    bench.check(|number| number >= 167);
}

#[test]
fn a_commit_and_all_after_it_and_single_ones_and_heads_of_branches() {
    let mut bench = Bench::new(options());
    bench.chain(40);

    // Two forks of commit 5: parents are not followed.
    bench.commit(Some(5));
    bench.commit(Some(5));
    bench.store.set_branch(b"fork", &bench.commits[3].0.clone()).unwrap();
    let retain = Retain::since(bench.commits[30].0).and(bench.commits[7].0);
    let report = bench.store.collect(&retain, &mut go).unwrap();
    let kept = |number: usize| number >= 30 || number == 7 || number == 3;
    bench.check(kept);
    assert_eq!(report.kept, 14);
    let parents = bench.store.commit_info(&bench.commits[40].0).unwrap().parents;
    assert_eq!(parents, [bench.commits[5].0], "known by its hash only");
    bench.reopen();
    bench.check(kept);

    // Again: what was an exception is one still only if it is asked for, or a head.
    bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    bench.check(|number| number >= 40 || number == 3);
    bench.store.remove_branch(b"fork").unwrap();
    bench.store.collect(&Retain::newest(1), &mut go).unwrap();
    bench.check(|number| number == 41);

    // What was collected can be committed again.
    let content = bench.commits[0].1.clone();
    let mut again = bench.store.empty();
    for (path, value) in &content {
        again.add(path, value.as_slice()).unwrap();
    }
    let hash = bench.store.commit(&again, &Meta::tezos(0, "")).unwrap();
    assert_eq!(hash, bench.commits[0].0);
    let unknown = Retain::since(bench.commits[12].0);

    assert!(matches!(bench.store.collect(&unknown, &mut go), Err(Error::UnknownCommit { .. })));
}

/// A collection that keeps the newest 6 of 7 commits once took the sixth, the head of a branch far
/// below the others, for the first of all that are kept; what had been collected in between was
/// there again for readers, and the next collection looked for tables that were gone.
#[test]
fn a_collection_that_keeps_a_head_far_below_brings_nothing_back() {
    let mut bench = Bench::new(options());
    bench.chain(40);
    bench.store.set_branch(b"a", &bench.commits[3].0.clone()).unwrap();
    bench.store.set_branch(b"b", &bench.commits[17].0.clone()).unwrap();
    let kept = |number: usize| number >= 35 || number == 3 || number == 17;
    for count in [5, 6, 6] {
        bench.store.collect(&Retain::newest(count), &mut go).unwrap();
        bench.check(kept);
    }
    bench.reopen();
    bench.check(kept);
}

#[test]
fn trees_that_are_in_use_stay_whole() {
    let mut bench = Bench::new(options());
    bench.chain(60);
    let mut held = bench.store.checkout(&bench.commits[20].0).unwrap().unwrap();
    let subtree = {
        let context = bench.store.checkout(&bench.commits[25].0).unwrap().unwrap();
        context.find_tree(&["data"]).unwrap().unwrap()
    };
    bench.store.collect(&Retain::newest(1), &mut go).unwrap();
    bench.check(|number| number == 59);
    assert_eq!(content_of(&held), bench.commits[20].1);

    // A commit of what was held brings it back.
    held.add(&["new"], *b"1").unwrap();
    let hash = bench.store.commit(&held, &Meta::tezos(99, "")).unwrap();
    let mut grafted = bench.store.empty();
    grafted.add_tree(&["data"], &subtree).unwrap();
    let grafted = bench.store.commit(&grafted, &Meta::tezos(100, "")).unwrap();
    drop((held, subtree));
    bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    bench.reopen();
    let context = bench.store.checkout(&hash).unwrap().unwrap();
    assert_eq!(content_of(&context), bench.commits[20].1);
    let context = bench.store.checkout(&grafted).unwrap().unwrap();

    assert_eq!(content_of(&context), bench.commits[25].1);
}

#[test]
fn a_collection_that_is_cancelled_changes_nothing_or_leaves_garbage() {
    let mut bench = Bench::new(options());
    bench.chain(80);

    let cancel_in = |phase: GcPhase| {
        move |progress: &terrane_context::GcProgress| {
            if progress.phase == phase { GcPace::Cancel } else { GcPace::Go }
        }
    };

    let cancelled = bench.store.collect(&Retain::newest(5), &mut cancel_in(GcPhase::Mark));
    assert!(matches!(cancelled, Err(Error::GcCancelled)));
    bench.check(|_| true);
    bench.reopen();
    bench.check(|_| true);
    let before = bench.disk_bytes();
    let cancelled = bench.store.collect(&Retain::newest(5), &mut cancel_in(GcPhase::Reclaim));
    assert!(matches!(cancelled, Err(Error::GcCancelled)));
    bench.check(|number| number >= 75);
    assert!(bench.store.has_unfinished_collection());
    bench.reopen();
    bench.check(|number| number >= 75);
    assert!(bench.disk_bytes() > before / 2);
    bench.store.collect(&Retain::everything(), &mut go).unwrap();
    assert!(!bench.store.has_unfinished_collection());
    bench.check(|number| number >= 75);

    assert!(bench.disk_bytes() < before / 3);
}

#[test]
fn one_collection_at_a_time() {
    let mut bench = Bench::new(options());
    bench.chain(10);
    let store = &bench.store;
    let mut second = None;
    let mut pace = |_: &terrane_context::GcProgress| {
        second.get_or_insert_with(|| store.collect(&Retain::newest(1), &mut go));
        GcPace::Go
    };
    store.collect(&Retain::newest(5), &mut pace).unwrap();
    assert!(matches!(second, Some(Err(Error::GcRunning))), "{second:?}");
    bench.check(|number| number >= 5);
}

#[test]
fn commits_go_on_during_collections() {
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let mut bench = Bench::new(options().indexing(indexing));
        bench.chain(50);
        let stop = AtomicBool::new(false);
        let store = &bench.store;
        let (last, content) = bench.commits.last().cloned().unwrap();
        let made = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut commits = vec![last];
                let mut content = content.clone();
                let mut rng = ChaCha8Rng::seed_from_u64(11);
                while !stop.load(Ordering::Relaxed) || commits.len() < 20 {
                    let mut context = store.checkout(commits.last().unwrap()).unwrap().unwrap();
                    for _ in 0..10 {
                        let path = vec![
                            "data".to_owned(),
                            rng.below(600).to_string(),
                            rng.below(3).to_string(),
                        ];
                        let value = vec![rng.below(4) as u8; 60];
                        context.add(&path, value.clone()).unwrap();
                        content.insert(path, value);
                    }
                    let date = 1000 + i64::try_from(commits.len()).unwrap();
                    commits.push(store.commit(&context, &Meta::tezos(date, "")).unwrap());
                }
                (commits, content)
            });
            for _ in 0..5 {
                store.collect(&Retain::newest(2), &mut go).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        let (commits, content) = made;
        bench.reopen();
        let context = bench.store.checkout(commits.last().unwrap()).unwrap().unwrap();
        assert_eq!(content_of(&context), content, "{indexing:?}");
        bench.store.collect(&Retain::newest(1), &mut go).unwrap();
        bench.reopen();
        let context = bench.store.checkout(commits.last().unwrap()).unwrap().unwrap();
        assert_eq!(content_of(&context), content, "{indexing:?}");

        assert_eq!(bench.store.newest().count(), 1);
    }
}

/// A context that was advanced from commit to commit kept every one of them from being collected.
#[test]
fn a_context_that_is_advanced_holds_its_last_commit_only() {
    let bench = Bench::new(options());
    let mut context = bench.store.empty();
    let mut commits = Vec::new();

    for block in 0..200u32 {
        context.add(&["large"], block.to_le_bytes().repeat(500)).unwrap();
        context.add(&["n"], block.to_le_bytes()).unwrap();
        let hash = bench.store.commit(&context, &Meta::tezos(i64::from(block), "")).unwrap();
        context.advance(hash);
        commits.push(hash);
    }

    assert!(bench.disk_bytes() > 400_000);
    let report = bench.store.collect(&Retain::newest(1), &mut go).unwrap();
    assert_eq!(report.collected, 199);
    assert!(bench.disk_bytes() < 40_000, "{} {report:?}", bench.disk_bytes());

    // It goes on from where it was.
    context.add(&["n"], *b"next").unwrap();
    let last = bench.store.commit(&context, &Meta::tezos(999, "")).unwrap();
    assert_eq!(bench.store.commit_info(&last).unwrap().parents, [commits[199]]);
    let seen = bench.store.checkout(&last).unwrap().unwrap();

    assert_eq!(seen.find(&["large"]).unwrap().unwrap(), 199u32.to_le_bytes().repeat(500));
}

/// Commits made while a collection begins stay, whatever it keeps.
#[test]
fn commits_made_during_a_collection_of_everything_stay() {
    let mut bench = Bench::new(options());
    bench.chain(20);
    let store = &bench.store;
    let mut made = None;

    let mut pace = |_: &terrane_context::GcProgress| {
        made.get_or_insert_with(|| {
            let mut context = store.empty();
            context.add(&["made"], *b"meanwhile").unwrap();
            store.commit(&context, &Meta::tezos(5, "")).unwrap()
        });
        GcPace::Go
    };

    let report = store.collect(&Retain::default(), &mut pace).unwrap();
    assert_eq!((report.kept, report.collected), (0, 20));
    let made = made.expect("a collection asks now and then");
    let newest: Vec<Hash> = store.newest().map(|commit| commit.unwrap().hash).collect();
    assert_eq!(newest, [made]);
    let context = store.checkout(&made).unwrap().unwrap();

    assert_eq!(context.find(&["made"]).unwrap(), Some(b"meanwhile".to_vec()));
}

#[test]
fn closing_a_store_cancels_its_collection() {
    let mut bench = Bench::new(options());
    bench.chain(60);
    let store = &bench.store;
    let (begun, wait) = std::sync::mpsc::channel();
    let outcome = std::thread::scope(|scope| {
        let collection = scope.spawn(move || {
            let mut rounds = 0;
            store.collect(&Retain::newest(1), &mut |_| {
                rounds += 1;
                if rounds == 1 {
                    begun.send(()).unwrap();
                }
                GcPace::Go
            })
        });
        wait.recv().unwrap();
        store.close().unwrap();
        collection.join().unwrap()
    });

    // It may have ended just before.
    assert!(matches!(outcome, Ok(_) | Err(Error::GcCancelled)), "{outcome:?}");
    let options = options();
    let disk = Arc::clone(&bench.disk);
    bench.store = Store::open(disk, Path::new(DIR), &options).unwrap();
    let has_switched = outcome.is_ok() || bench.store.has_unfinished_collection();

    bench.check(|number| !has_switched || number == 59);
}

/// A branch that was set to a commit that was to be collected made the collection fail; now the
/// collection keeps the commit, like one that is kept anyway, or is made meanwhile.
#[test]
fn a_branch_that_is_set_during_a_collection_keeps_its_head() {
    let mut bench = Bench::new(options());
    bench.chain(30);

    let collect = |bench: &Bench, head: Option<usize>| {
        let store = &bench.store;
        let mut is_set = false;

        let mut pace = |_: &terrane_context::GcProgress| {
            if !std::mem::replace(&mut is_set, true) {
                let head = match head {
                    Some(number) => bench.commits[number].0,
                    None => store.commit(&store.empty(), &Meta::tezos(77, "")).unwrap(),
                };
                store.set_branch(b"late", &head).unwrap();
            }
            GcPace::Go
        };

        store.collect(&Retain::newest(5).and(bench.commits[2].0), &mut pace)
    };

    let report = collect(&bench, Some(3)).unwrap();
    assert_eq!((report.kept, report.collected), (7, 23));
    bench.check(|number| number >= 25 || number == 2 || number == 3);
    bench.store.remove_branch(b"late").unwrap();
    let kept = |number: usize| number >= 25 || number == 2;
    let report = collect(&bench, Some(27)).unwrap();
    assert_eq!((report.kept, report.collected), (6, 1));
    bench.check(kept);
    collect(&bench, Some(2)).unwrap();
    bench.check(kept);
    let made = collect(&bench, None).and(bench.store.branch(b"late").ok_or(Error::EmptyChunk));

    assert!(bench.store.exists(&made.unwrap()).unwrap());
}

/// Removals from the index come in pieces, so that a collection of many objects takes no memory for
/// them.
#[test]
fn an_index_of_all_objects_loses_what_is_collected() {
    let mut bench = Bench::new(options().indexing(Indexing::Always));
    bench.chain(60);
    bench.store.collect(&Retain::newest(2), &mut go).unwrap();

    let indexed = |bench: &mut Bench| {
        bench.store.close().unwrap();
        let engine: Arc<dyn terrane_context::IndexEngine> = Arc::new(BtreeIndexes::new(1 << 20));
        let index = engine.open(Arc::clone(&bench.disk), &Path::new(DIR).join("index")).unwrap();
        let mut keys = Vec::new();
        index
            .each_from(&[0; 33], &mut |key, _| {
                keys.push(*key);
                true
            })
            .unwrap();
        index.close().unwrap();
        keys
    };

    let after = indexed(&mut bench);
    let engine: Arc<dyn terrane_context::IndexEngine> = Arc::new(BtreeIndexes::new(1 << 20));
    terrane_context::repair(&bench.disk, Path::new(DIR), &engine, Loss::Refused, &mut |_| {})
        .unwrap();

    // What is there is what is in use: that of an index made anew.
    assert_eq!(after, indexed(&mut bench));
    assert!(after.len() > 300, "{}", after.len());
}

#[test]
fn chunks_before_the_target_go_and_the_one_that_it_is_in_stays() {
    let mut bench = Bench::new(options().chunk_bytes(1 << 20));
    // Three commits a chunk, each of a value of its own.
    for number in 0..12u8 {
        let mut context = bench.store.empty();
        context.add(&["data", "a", "b"], vec![number; 20_000]).unwrap();
        let hash = bench.store.commit(&context, &Meta::tezos(i64::from(number), "")).unwrap();
        let path = ["data", "a", "b"].map(str::to_owned).to_vec();
        bench.commits.push((hash, Content::from([(path, vec![number; 20_000])])));
        if number % 3 == 2 {
            bench.store.split().unwrap();
            assert!(matches!(bench.store.split(), Err(Error::EmptyChunk)), "nothing was written");
        }
    }

    bench.check(|_| true);
    let present = |bench: &Bench| -> Vec<bool> {
        let entries = bench.disk.list(Path::new(DIR)).unwrap();
        let is_there =
            |number: u32| entries.iter().any(|entry| entry.name == format!("chunk-{number:08x}"));
        (0..4).map(is_there).collect()
    };

    assert_eq!(present(&bench), [true; 4]);
    for (target, removed, chunks) in [
        (5, 1, [false, true, true, true]),  // the last commit of a chunk
        (7, 1, [false, false, true, true]), // the second one
        (8, 0, [false, false, true, true]),
    ] {
        let before = bench.disk_bytes();
        let mut peak = before;

        let mut pace = |_: &terrane_context::GcProgress| {
            peak = peak.max(bench.disk_bytes());
            GcPace::Go
        };

        let report = bench.store.collect(&Retain::since(bench.commits[target].0), &mut pace);
        let report = report.unwrap();
        assert_eq!(report.removed, removed, "{target}: {report:?}");
        assert_eq!(present(&bench), chunks, "{target}");
        bench.check(|number| number >= target);

        // What is dead in the chunk that stays is counted, and given back.
        assert!(report.freed_bytes >= 20_000, "{report:?}");
        let live = (12 - target as u64) * 20_000;
        assert!((live..live + 10_000).contains(&report.live_bytes), "{target}: {report:?}");

        // No more than one chunk is there twice.
        assert!(peak <= before + 65_000, "{target}: {before} {peak}");
    }
}

/// A commit that was made again while a collection ran was found to be there already, was reported
/// as made, and was collected. A ledger does so when it goes back and applies a block once more.
#[test]
fn a_commit_that_is_made_again_during_a_collection_stays() {
    for phase in [GcPhase::Mark, GcPhase::Reclaim] {
        let mut bench = Bench::new(options());
        bench.chain(30);
        let store = &bench.store;
        let (old, content) = bench.commits[4].clone();
        let info = store.commit_info(&old).unwrap();
        let mut context = store.checkout(&old).unwrap().unwrap();
        context.set_parents(info.parents.clone());
        let mut is_made = false;

        let mut pace = |progress: &terrane_context::GcProgress| {
            if progress.phase == phase && !std::mem::replace(&mut is_made, true) {
                let message = String::from_utf8(info.message.clone()).unwrap();
                let meta =
                    Meta { date: info.date, author: &info.author, message: message.as_bytes() };
                assert_eq!(store.commit(&context, &meta).unwrap(), old);
            }
            GcPace::Go
        };

        store.collect(&Retain::newest(5), &mut pace).unwrap();
        assert!(is_made && store.exists(&old).unwrap(), "{phase:?}");
        bench.reopen();
        let context = bench.store.checkout(&old).unwrap().unwrap();
        assert_eq!(content_of(&context), content);

        assert_eq!(
            bench.store.newest().count(),
            6,
            "no other commit stays, and none is there twice"
        );
    }
}

/// A store that is nothing but garbage and two commits, on a disk without a free byte: what it has,
/// and the disk.
fn full_of_garbage() -> (Bench, Arc<SimDisk>, u64) {
    let disk = SimDisk::new(5);
    let options = options().chunk_bytes(64 << 10);
    let mut bench = Bench::on(disk.clone(), options);
    disk.set_plan(FaultPlan::capacity(2 << 20));
    let error = (0..1_000).find_map(|_| bench.try_large().err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let capacity = (2 << 20) - disk.free_bytes(Path::new(DIR)).unwrap();
    disk.set_plan(FaultPlan::capacity(capacity));
    (bench, disk, capacity)
}

/// A collection on a full disk failed as a whole.
#[test]
fn garbage_is_collected_where_no_byte_is_free() {
    let (mut bench, disk, _) = full_of_garbage();
    let last = bench.commits.len() - 1;
    let report = bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    assert!(report.freed_bytes > 512 << 10 && report.put_off == 0, "{report:?}");
    bench.check(|number| number + 2 > last);
    for _ in 0..20 {
        bench.try_large().unwrap();
    }
    assert!(disk.free_bytes(Path::new(DIR)).unwrap() > 0);
    bench.store.close().unwrap();
}

/// The sync of the reserve is one of the control record, and its failure was told to the collection
/// alone.
#[test]
fn a_reserve_that_cannot_be_given_up_durably_poisons_the_store() {
    let (mut bench, disk, capacity) = full_of_garbage();
    let fails = FaultPlan::fail(disk.calls(), FaultKind::FailedSync, Repeat::Once);
    disk.set_plan(FaultPlan { capacity_bytes: Some(capacity), ..fails });
    bench.store.collect(&Retain::newest(2), &mut go).unwrap_err();
    let refused = bench.try_large().unwrap_err();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
}

#[test]
fn after_a_crash_in_a_collection_on_a_full_disk_nothing_kept_is_lost_and_it_goes_on() {
    let (bench, disk, capacity) = full_of_garbage();
    let Bench { store, options, commits, .. } = bench;
    drop(store);
    let disk = disk.process_kill();

    let run = |crash: Option<u64>| {
        let disk = disk.process_kill();
        disk.set_plan(FaultPlan::capacity(capacity));
        let shared: Arc<dyn Disk> = disk.clone();
        let store = Store::open(shared, Path::new(DIR), &options).unwrap();
        let before = disk.calls();
        let crash_at_call = crash.map(|call| before + call);
        disk.set_plan(FaultPlan { crash_at_call, ..FaultPlan::capacity(capacity) });
        let done = store.collect(&Retain::newest(2), &mut go);
        assert!(done.is_ok() || crash.is_some(), "{done:?}");
        let calls = disk.calls() - before;
        drop(store);
        (disk, calls)
    };

    let (_, calls) = run(None);
    for call in places(0..calls, by_effort(calls / 10, 1), 5) {
        let (disk, _) = run(Some(call));
        let disk = disk.after_crash(Survival::Random(call));
        disk.set_plan(FaultPlan::capacity(capacity));
        let shared: Arc<dyn Disk> = disk.clone();
        let store = Store::open(shared, Path::new(DIR), &options).unwrap();
        let report = store.collect(&Retain::newest(2), &mut go);
        assert!(report.is_ok(), "call {call}: {report:?}");
        for (hash, content) in &commits[commits.len() - 2..] {
            let context = store.checkout(hash).unwrap().unwrap();
            assert!(&content_of(&context) == content, "call {call}");
        }
        store.close().unwrap();
    }
}

/// A chunk that the disk had no room to rewrite kept all older objects from being referred to by
/// their hashes, until everything was collected. Its garbage is in no index, so nothing refers to
/// that.
#[test]
fn objects_are_found_by_their_hashes_also_after_a_chunk_was_put_off() {
    let small = options().indexing(Indexing::Always).chunk_bytes(128 << 10);
    let options = small.clone().chunk_bytes(2 << 20);

    let fill = |context: &mut Context, dir: &str, values: u8| {
        for number in 0..values {
            let value = format!("{dir} {number} ").repeat(1_200);
            context.add(&[dir, &number.to_string()], value.as_bytes()).unwrap();
        }
    };

    let disk = SimDisk::new(5);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = Store::create(Arc::clone(&shared), Path::new(DIR), &small).unwrap();

    // A short chunk of garbage, one that is mostly in use, and the commit that stays.
    let mut context = store.empty();
    fill(&mut context, "first", 10);
    store.commit(&context, &Meta::tezos(0, "")).unwrap();
    store.split().unwrap();
    store.close().unwrap();
    drop((context, store));
    let store = Store::open(Arc::clone(&shared), Path::new(DIR), &options).unwrap();
    let commit = |context: &Context, date| store.commit(context, &Meta::tezos(date, "")).unwrap();
    let mut context = store.empty();
    fill(&mut context, "used", 100);
    commit(&context, 1);
    let mut both = context.clone();
    fill(&mut both, "garbage", 20);
    commit(&both, 2);
    drop(both);
    store.split().unwrap();

    // So much that the chunk is not worth rewriting.
    fill(&mut context, "last", 20);
    commit(&context, 3);
    drop(context);

    // The disk fills up when the collection knows what is in use, but for a third of that.
    let mut is_full = false;
    let mut pace = |progress: &terrane_context::GcProgress| {
        let all = 64 << 20;
        if progress.phase == GcPhase::Reclaim && !std::mem::replace(&mut is_full, true) {
            disk.set_plan(FaultPlan::capacity(all));
            let used = all - disk.free_bytes(Path::new(DIR)).unwrap();
            disk.set_plan(FaultPlan::capacity(used + (200 << 10)));
        }
        GcPace::Go
    };

    let report = store.collect(&Retain::newest(1), &mut pace).unwrap();
    assert_eq!(report.put_off, 1, "{report:?}");
    assert!(!store.has_unfinished_collection());
    disk.set_plan(FaultPlan::default());

    let write_anew = |store: &Store, dir: &str, values: u8, date: i64| {
        let before = store.stats().committed.values;
        let mut context = store.empty();
        fill(&mut context, dir, values);
        store.commit(&context, &Meta::tezos(date, "")).unwrap();
        store.stats().committed.values - before
    };

    assert_eq!(write_anew(&store, "used", 100, 4), 0);
    assert_eq!(write_anew(&store, "garbage", 20, 5), 20, "what was collected is written again");
    store.close().unwrap();
    drop(store);
    let store = Store::open(Arc::clone(&shared), Path::new(DIR), &options).unwrap();
    assert_eq!(write_anew(&store, "used", 100, 6), 0);
    store.collect(&Retain::everything(), &mut go).unwrap();
    assert_eq!(write_anew(&store, "garbage", 20, 7), 0);
    store.close().unwrap();
    drop(store);
    let engine: Arc<dyn terrane_context::IndexEngine> = options.index;
    let whole = terrane_context::CheckOptions::default().index(&engine).hashes(true);
    let report = terrane_context::check(&shared, Path::new(DIR), &whole, &mut |_| {}).unwrap();

    assert_eq!((report.problems, report.commits), (Vec::new(), 5));
}
