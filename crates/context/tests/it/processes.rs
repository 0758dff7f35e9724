//! Real processes: one commits and collects, three read, and all of them are killed now and then.
//!
//! Goal: each reader sees whole commits, never an older newest one than before, and in each exactly
//! what it must hold, or the word that it was collected; a writer that was killed goes on from a
//! state that has every commit it had reported; nobody waits for the dead. Readers write nothing.
//!
//! Method: the test starts itself as writer and as readers. What commit n holds follows from n
//! alone, and so does its hash. `cargo xtask readers` and `kill` do it for long.

use std::env;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use terrane_context::{
    Context, Durability, Error, Meta, Options, Result, Retain, Store, StoreReader,
};
use terrane_io::{CountedDisk, Disk, RealDisk, RealOptions};
use terrane_testkit::draw::Draw;
use terrane_testkit::process::{Child, WriterBesideReaders, say};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::script::{content_of, go, options};

/// Role of the process: `writer` or `reader`.
const ROLE: &str = "TERRANE_CONTEXT_ROLE";
/// Names the store in such a process.
const CHILD_DIR: &str = "TERRANE_CONTEXT_DIR";
const TEST: &str = "processes::readers_see_whole_commits_whoever_is_killed";

const MAIN: &[u8] = b"main";
/// Directories with so many names each: commit n changes the name `n mod width` of each.
const WIDTHS: [u64; 3] = [8, 64, 400];
/// Each so manieth commit removes what it would change.
const REMOVE_EVERY: u64 = 11;
/// The writer collects each so many commits, and keeps so many.
const COLLECT_EVERY: u64 = 40;
const KEPT: u64 = 15;

fn disk() -> Arc<dyn Disk> {
    RealDisk::new(RealOptions::default()).unwrap()
}

fn store_options() -> Options {
    options().durability(Durability::Buffered).chunk_bytes(32 << 10)
}

fn path(width: u64, name: u64) -> [String; 2] {
    [format!("width-{width}"), name.to_string()]
}

/// Value that commit `number` binds, `None` if it removes a name.
fn value(number: u64) -> Option<Vec<u8>> {
    let len = [8, 60, 300][(number % 3) as usize];
    let bytes = number.to_le_bytes().into_iter().cycle().take(len).collect();
    (!number.is_multiple_of(REMOVE_EVERY)).then_some(bytes)
}

/// Value of commit `number` at a name.
fn expected(number: u64, width: u64, name: u64) -> Option<Vec<u8>> {
    let last = (number + width - name) / width * width + name;
    let last = if last > number { last.checked_sub(width)? } else { last };
    if last == 0 { None } else { value(last) }
}

fn number_of(context: &Context) -> Result<u64> {
    let bytes = context.find(&["number"])?.expect("each commit has its number");
    Ok(u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Commits until it is killed.
fn write(dir: &Path) {
    let store = match Store::open(disk(), dir, &store_options()) {
        Err(Error::NotFound { .. }) => Store::create(disk(), dir, &store_options()),
        opened => opened,
    };
    let store = Arc::new(store.unwrap());
    let mut context = match store.branch(MAIN) {
        Some(head) => store.checkout(&head).unwrap().expect("a head is there"),
        None => store.empty(),
    };
    let last = if context.parents().is_empty() { 0 } else { number_of(&context).unwrap() };
    say(&format!("opened {last}"));

    if store.has_unfinished_collection() {
        store.collect(&Retain::everything(), &mut go).unwrap();
        say("finished");
    }

    let mut collection: Option<thread::JoinHandle<()>> = None;
    for number in last + 1.. {
        context.add(&["number"], number.to_le_bytes()).unwrap();
        for width in WIDTHS {
            match value(number) {
                Some(value) => context.add(&path(width, number % width), value),
                None => context.remove(&path(width, number % width)),
            }
            .unwrap();
        }

        let hash = store.commit(&context, &Meta::tezos(number.cast_signed(), "")).unwrap();
        context.advance(hash);
        store.set_branch(MAIN, &hash).unwrap();
        say(&format!("committed {number}"));

        if number.is_multiple_of(COLLECT_EVERY) {
            if let Some(collection) = collection.take() {
                collection.join().unwrap();
                say("collected");
            }
            context = store.checkout(&hash).unwrap().unwrap();
            let store = Arc::clone(&store);
            let collect = move || {
                store.collect(&Retain::newest(KEPT), &mut go).unwrap();
            };
            collection = Some(thread::spawn(collect));
        }
    }
}

/// Reads the content of a commit, `None` if it was collected meanwhile; counts comparisons.
fn check(context: &Context, rng: &mut ChaCha8Rng, checks: &mut u64) -> Result<u64> {
    let number = number_of(context)?;
    for _ in 0..60 {
        let width = WIDTHS[rng.index(WIDTHS.len())];
        let name = rng.below(width);
        let found = context.find(&path(width, name))?;
        assert_eq!(found, expected(number, width, name), "commit {number}: {width}/{name}");
        *checks += 1;
    }

    if rng.chance(1, 10) {
        let all = content_of(context)?;
        let wanted = WIDTHS.iter().flat_map(|&width| (0..width).map(move |name| (width, name)));
        let count = wanted.filter(|&(width, name)| expected(number, width, name).is_some()).count();
        assert_eq!(all.len(), count + 1, "commit {number}");
        *checks += all.len() as u64;
    }

    Ok(number)
}

/// Passes by what was collected while it was read.
fn unless_collected<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Collected { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Reads until it is killed, or sees what must not be.
fn read(dir: &Path) {
    let counted = CountedDisk::new(disk());
    let shared: Arc<dyn Disk> = counted.clone();
    let reader = loop {
        match StoreReader::open(Arc::clone(&shared), dir, 1 << 20) {
            Ok(reader) => break reader,
            Err(Error::NotFound { .. }) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let rng = &mut ChaCha8Rng::seed_from_u64(u64::from(std::process::id()));
    let mut newest = 0;
    let mut checks = 0_u64;
    let mut held = None;

    loop {
        reader.sync().unwrap();
        let Some(head) = reader.branch(MAIN) else { continue };
        if let Some(context) = unless_collected(reader.checkout(&head)).flatten() {
            if let Some(number) = unless_collected(check(&context, rng, &mut checks)) {
                assert!(number >= newest, "commit {number} after commit {newest}");
                newest = number;
            }
            // What was checked out stays what it is, or is said to be collected.
            let earlier = held.replace(context);
            earlier.and_then(|context| unless_collected(check(&context, rng, &mut checks)));
        }

        let mut before = None;
        for commit in reader.newest().take(5) {
            let Some(commit) = unless_collected(commit) else { break };
            assert!(before.is_none_or(|before| commit.date + 1 == before), "{before:?}");
            before = Some(commit.date);
            let context = unless_collected(reader.checkout(&commit.hash)).flatten();
            let Some(context) = context else { continue };
            if let Some(number) = unless_collected(check(&context, rng, &mut checks)) {
                assert_eq!(number.cast_signed(), commit.date);
            }
        }

        let counts = counted.counts();
        let written = counts.writes + counts.syncs + counts.locks + counts.removes + counts.renames;
        assert_eq!(written, 0, "{counts:?}");
        say(&format!("checks {checks} {newest}"));
    }
}

/// Output of the writer so far.
#[derive(Debug, Default)]
struct Said {
    committed: u64,
    collected: u64,
    finished: u64,
}

impl Said {
    const WORDS: [&str; 4] = ["opened", "committed", "collected", "finished"];

    fn heed(&mut self, word: &str, numbers: &[u64]) {
        let number = numbers.first().copied().unwrap_or(0);
        match word {
            "opened" => {
                let committed = self.committed;
                assert!(number >= committed, "commit {committed} was made, and {number} is there");
            }
            "committed" => self.committed = number,
            "collected" => self.collected += 1,
            _ => self.finished += 1,
        }
    }
}

#[test]
fn readers_see_whole_commits_whoever_is_killed() {
    if let Ok(role) = env::var(ROLE) {
        let dir = env::var(CHILD_DIR).unwrap();
        if role == "writer" {
            write(Path::new(&dir));
        } else {
            read(Path::new(&dir));
        }
        return;
    }

    for_each_seed("readers_see_whole_commits_whoever_is_killed", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("store");
        let start =
            |role: &str| Child::start(TEST, [(ROLE, role.as_ref()), (CHILD_DIR, dir.as_ref())]);

        let mut said = Said::default();
        let processes = WriterBesideReaders { start: &start, words: &Said::WORDS, lines_max: 200 };
        let checks = processes.run(rng, |word, numbers| said.heed(word, numbers));

        println!("readers compared {checks} values beside a writer that has {said:?}");
        assert!(checks > 1_000 && said.collected > 0, "{checks} {said:?}");
    });
}
