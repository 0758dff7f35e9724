//! Reading ahead: what leads to many paths is read in a few batches, and no answer changes for it.
//!
//! Method: a store is written, and opened anew with nothing in memory, on a disk that counts, or
//! fails, or whose files are being collected.

use std::path::Path;
use std::sync::Arc;

use terrane_context::{
    Context, Error, GcPace, GcPhase, Hash, Meta, Options, Prefetch, Retain, Rules, Store,
    StoreReader, Tree, produce_tree_proof,
};
use terrane_io::SimDisk;
use terrane_io::{Access, CountedDisk, Counts, Disk, MemoryDisk, RealDisk};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::script::{Content, DIR, content_of, create, go, open, options, steps_of};

fn large() -> Options {
    options().cache_bytes(64 << 20).chunk_bytes(64 << 10)
}

/// Directories of all shapes, over four commits, so that there are deltas.
fn write(disk: &Arc<dyn Disk>, options: &Options, wide: u32) -> (Hash, Content) {
    let store = create(disk, options).unwrap();
    let mut context = store.empty();
    let mut content = Content::new();
    let mut head = store.rules().empty_hash();

    for round in 0..4 {
        let step = if round == 0 { 1 } else { 977 };
        for name in (0..wide).step_by(step) {
            let len = [3, 49, 300][(name % 3) as usize];
            let value = vec![(name + round) as u8; len];
            for path in [format!("wide/{name}"), format!("deep/{}/a/b/{name}", name % 7)] {
                context.add(&steps_of(&path), value.as_slice()).unwrap();
                content.insert(path, value.clone());
            }
        }
        head = store.commit(&context, &Meta::tezos(i64::from(round), "")).unwrap();
        context.advance(head);
    }

    store.close().unwrap();
    (head, content)
}

fn paths_of<'a>(content: impl IntoIterator<Item = &'a String>) -> Vec<Vec<&'a [u8]>> {
    content.into_iter().map(|path| steps_of(path)).collect()
}

fn checkout(store: &Store, hash: &Hash) -> Context {
    store.checkout(hash).unwrap().expect("it was committed")
}

fn check(context: &Context, content: &Content) {
    for (path, value) in content {
        assert_eq!(context.find(&steps_of(path)).unwrap().as_ref(), Some(value), "{path}");
    }
}

/// A store that was written, on a disk that counts.
fn counted() -> (Arc<CountedDisk>, Arc<dyn Disk>, Hash, Content) {
    let memory: Arc<dyn Disk> = MemoryDisk::new();
    let (head, content) = write(&memory, &large(), 20_000);
    let disk = CountedDisk::new(memory);
    let shared: Arc<dyn Disk> = disk.clone();
    (disk, shared, head, content)
}

#[test]
fn a_prefetch_takes_batches_by_levels_and_then_nothing_is_read() {
    let (disk, shared, head, content) = counted();
    let some: Content =
        content.iter().step_by(13).map(|(path, value)| (path.clone(), value.clone())).collect();
    let paths = paths_of(some.keys());

    let run = |prefetch: bool| -> (Counts, terrane_context::Stats, Counts) {
        let store = open(&shared, &large()).unwrap();
        let context = checkout(&store, &head);
        // Chunks are opened the first time that something in them is read.
        let opened = disk.counts();
        if prefetch {
            context.prefetch(&paths, Prefetch::Target);
        }
        let between = disk.counts();
        let stats = store.stats();
        check(&context, &some);
        (between - opened, stats, disk.counts() - between)
    };

    let (_, _, without) = run(false);
    let (ahead, stats, after) = run(true);
    assert!(paths.len() > 3_000 && without.reads > 4_000, "{} {without:?}", paths.len());
    assert_eq!(without.queued, 0);

    // Levels of `deep/N/a/b/X`: deep, N, a, b, three of inodes, the value; in each perhaps one of
    // what deltas are based on.
    assert!((5..=16).contains(&stats.batches), "{stats:?}");
    assert_eq!((after.reads, after.opens), (0, 0), "everything is in memory");
    assert!(ahead.queued > 100 && ahead.queued < stats.reads, "neighbours share reads: {ahead:?}");
    assert!(ahead.reads < without.reads / 2, "{ahead:?} {without:?}");
}

#[test]
fn what_is_in_memory_is_not_read() {
    let (disk, shared, head, content) = counted();
    let store = open(&shared, &large()).unwrap();
    let mut context = checkout(&store, &head);
    let paths = paths_of(content.keys().step_by(29));
    let absent = ["none", "wide/none", "wide/1/none", "deep/3", "deep/3/a/none/b"];
    let absent: Vec<_> = absent.into_iter().map(steps_of).collect();
    context.prefetch(&paths, Prefetch::Target);
    context.prefetch(&absent, Prefetch::Way);
    let before = disk.counts();

    // Changed, and loaded into the tree.
    for path in &paths {
        context.add(path, *b"changed").unwrap();
    }

    context.prefetch(&paths, Prefetch::Target);
    context.prefetch(&absent, Prefetch::Way);
    context.prefetch(&[Vec::<&str>::new(), vec![""]], Prefetch::Target);
    for path in &absent {
        assert!(!context.mem(path).unwrap());
    }
    assert_eq!(disk.counts() - before, Counts::default());

    // In memory only.
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    tree.add(&["a", "b"], *b"c").unwrap();
    tree.prefetch(&[["a", "b"], ["a", "c"]], Prefetch::Target);
    assert_eq!(tree.find(&["a", "b"]).unwrap().unwrap(), b"c");
}

/// The way alone leaves values where they are, and so many reads are saved.
#[test]
fn the_way_is_without_values_and_heads_of_directories() {
    let (disk, shared, head, content) = counted();
    let store = open(&shared, &large()).unwrap();
    let context = checkout(&store, &head);
    let long = content.iter().find(|(path, value)| path.starts_with("wide") && value.len() > 48);
    let (path, value) = long.unwrap();
    let path = steps_of(path);
    context.prefetch(std::slice::from_ref(&path), Prefetch::Way);
    let before = disk.counts();
    assert!(context.mem(&path).unwrap() && context.mem_tree(&["deep"]).unwrap());
    assert_eq!((disk.counts() - before).reads, 0);
    assert_eq!(context.find(&path).unwrap().as_ref(), Some(value));
    assert_eq!((disk.counts() - before).reads, 1);
    context.prefetch(&[["deep"]], Prefetch::Target);
    let before = disk.counts();
    assert_eq!(context.length(&["deep"]).unwrap(), 7);

    assert_eq!((disk.counts() - before).reads, 0);
}

#[test]
fn a_cache_that_is_too_small_makes_it_useless_and_nothing_else() {
    let memory: Arc<dyn Disk> = MemoryDisk::new();
    let (head, content) = write(&memory, &large(), 2_000);
    let paths = paths_of(content.keys());
    for cache_bytes in [0, 1, 20 << 10, 200 << 10] {
        let store = open(&memory, &large().cache_bytes(cache_bytes)).unwrap();
        let context = checkout(&store, &head);
        context.prefetch(&paths, Prefetch::Target);
        let batches = store.stats().batches;
        assert!(batches < 30, "{cache_bytes}: {batches}");
        assert!(store.stats().cache_bytes <= cache_bytes as u64);
        check(&context, &content);
    }
}

/// On a file system, through the queue that there is.
#[test]
fn past_the_page_cache_all_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut hashes = Vec::new();
    for access in [Access::Buffered, Access::Direct] {
        let dir = folder.path().join(format!("{access:?}"));
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let options = large().access(access);
        let store = Store::create(Arc::clone(&disk), &dir, &options).unwrap();
        let mut context = store.empty();
        let mut content = Content::new();

        for round in 0..20u32 {
            // What is not in the cache is read back from chunks that were just written.
            let paths: Vec<String> = (0..200).map(|n| format!("wide/{}", n * 7 + round)).collect();
            context.prefetch(&paths_of(&paths), Prefetch::Target);
            for path in paths {
                let value = vec![round as u8; 40 + path.len() * 10];
                context.add(&steps_of(&path), value.as_slice()).unwrap();
                content.insert(path, value);
            }

            let head = store.commit(&context, &Meta::tezos(i64::from(round), "")).unwrap();
            if round == 10 {
                store.collect(&Retain::newest(2), &mut go).unwrap();
            }
            context = checkout(&store, &head);
            hashes.push(head);
        }

        let head = hashes[hashes.len() - 1];
        assert!(store.stats().chunks > 5);
        drop(store);
        let store = Store::open(Arc::clone(&disk), &dir, &options).unwrap();
        let context = checkout(&store, &head);
        context.prefetch(&paths_of(content.keys()), Prefetch::Target);
        let read = store.stats().reads;
        check(&context, &content);

        assert_eq!(store.stats().reads, read);
    }

    assert_eq!(hashes[..20], hashes[20..]);
}

#[test]
fn threads_read_ahead_at_once() {
    let memory: Arc<dyn Disk> = MemoryDisk::new();
    let (head, content) = write(&memory, &large(), 2_000);
    let paths = paths_of(content.keys());

    for cache_bytes in [100 << 10, 64 << 20] {
        let store = open(&memory, &large().cache_bytes(cache_bytes)).unwrap();
        let reader = StoreReader::open(Arc::clone(&memory), Path::new(DIR), cache_bytes).unwrap();
        let shared = checkout(&store, &head);
        std::thread::scope(|scope| {
            for own in [checkout(&store, &head), reader.checkout(&head).unwrap().unwrap()] {
                for context in [shared.clone(), own] {
                    let paths = &paths;
                    let content = &content;
                    scope.spawn(move || {
                        context.prefetch(paths, Prefetch::Target);
                        check(&context, content);
                    });
                }
            }
        });
    }
}

/// A call that fails, or reads wrong bytes, in the midst of a prefetch leaves all answers as they
/// are.
#[test]
fn a_prefetch_whose_reads_fail_changes_nothing() {
    let mut struck = 0;
    for_each_seed("a_prefetch_whose_reads_fail_changes_nothing", by_effort(1, 2), |rng, seed| {
        let written = SimDisk::new(seed);
        let shared: Arc<dyn Disk> = written.clone();
        let rules = Rules { branching: 4, flat_limit: 6, ..Rules::TEZOS };
        let options = options().rules(rules);
        let (head, content) = write(&shared, &options, 60);
        let paths = paths_of(content.keys());
        let kinds = [FaultKind::Eio, FaultKind::Eagain, FaultKind::ShortRead];
        for kind in kinds.into_iter().chain(FaultKind::SILENT) {
            for repeat in [Repeat::Once, Repeat::Forever] {
                for call in 0.. {
                    let disk = written.clone_disk();
                    let shared: Arc<dyn Disk> = disk.clone();
                    let store = open(&shared, &options).unwrap();
                    let context = checkout(&store, &head);
                    let first = disk.calls();
                    disk.set_plan(FaultPlan::fail(first + call, kind, repeat));
                    let what = if rng.chance(1, 2) { Prefetch::Target } else { Prefetch::Way };
                    context.prefetch(&paths, what);
                    let is_struck = disk.faults() > 0;
                    disk.set_plan(FaultPlan::default());
                    check(&context, &content);
                    assert!(content_of(&context).unwrap() == content);
                    struck += usize::from(is_struck);
                    if !is_struck {
                        break;
                    }
                }
            }
        }
    });
    assert!(struck > by_effort(100, 200), "{struck}");
}

/// While a disk fails for good, the calls that need what was not read say so.
#[test]
fn errors_are_left_to_who_needs_what_was_not_read() {
    let disk = SimDisk::new(3);
    let shared: Arc<dyn Disk> = disk.clone();
    let (head, content) = write(&shared, &options(), 400);
    let store = open(&shared, &options()).unwrap();
    let context = checkout(&store, &head);
    disk.set_plan(FaultPlan::fail(disk.calls(), FaultKind::Eio, Repeat::Forever));
    let paths = paths_of(content.keys());
    context.prefetch(&paths, Prefetch::Target);
    assert!(matches!(context.find(&paths[0]), Err(Error::Disk(_))));
    disk.set_plan(FaultPlan::default());
    check(&context, &content);
}

/// A collection at work: contexts of the writer keep what they need, and those of a reader say what
/// was collected.
#[test]
fn a_collection_runs_meanwhile() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let small = large().chunk_bytes(8 << 10);
    let store = create(&disk, &small).unwrap();
    let mut context = store.empty();
    let mut content = Content::new();
    let mut commits: Vec<(Hash, Content)> = Vec::new();

    for round in 0..12u32 {
        for name in (round % 3..600).step_by(3) {
            let path = format!("wide/{name}");
            let value = vec![round as u8; 60];
            context.add(&steps_of(&path), value.as_slice()).unwrap();
            content.insert(path, value);
        }
        let hash = store.commit(&context, &Meta::tezos(i64::from(round), "")).unwrap();
        context.advance(hash);
        commits.push((hash, content.clone()));
    }

    store.close().unwrap();
    drop(store);
    let store = open(&disk, &small.cache_bytes(0)).unwrap();
    let reader = StoreReader::open(Arc::clone(&disk), Path::new(DIR), 0).unwrap();
    let held: Vec<Context> = commits.iter().map(|commit| checkout(&store, &commit.0)).collect();
    let seen = reader.checkout(&commits[0].0).unwrap().unwrap();
    let paths = paths_of(content.keys());
    let mut pieces = [0, 0];

    for kept in [5, 2] {
        // The first of these is let go before the second collection.
        let held = if kept == 5 { &held[..] } else { &held[6..] };
        store
            .collect(&Retain::newest(kept), &mut |progress| {
                let phase = usize::from(progress.phase == GcPhase::Reclaim);
                pieces[phase] += 1;
                let number = pieces[phase] % held.len();
                held[number].prefetch(&paths, Prefetch::Target);
                let offset = commits.len() - held.len();
                check(&held[number], &commits[offset + number].1);
                seen.prefetch(&paths, Prefetch::Target);
                GcPace::Go
            })
            .unwrap();
    }

    assert!(pieces[0] > 10 && pieces[1] > 10, "{pieces:?}");
    drop(held);
    store.collect(&Retain::newest(1), &mut go).unwrap();
    drop(reader.checkout(&commits[11].0).unwrap());
    seen.prefetch(&paths, Prefetch::Target);
    let lost = paths.iter().filter(|path| matches!(seen.find(path), Err(Error::Collected { .. })));

    assert!(lost.count() > 500, "what the reader has seen is gone");
}

#[test]
fn a_proof_has_nothing_of_what_was_only_read_ahead() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let (head, content) = write(&disk, &large(), 1_000);
    let store = open(&disk, &large()).unwrap();
    let context = checkout(&store, &head);
    let paths = paths_of(content.keys());

    let prove = |ahead: bool| {
        let (proof, ()) = produce_tree_proof(context.tree(), |tree| {
            if ahead {
                tree.prefetch(&paths, Prefetch::Target);
            }
            tree.find(&["wide", "3"])?;
            Ok((tree, ()))
        })
        .unwrap();
        proof
    };

    assert!(prove(true) == prove(false));
}
