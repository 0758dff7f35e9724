//! Targets of the context store: proofs, snapshot streams, files, histories.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use terrane_backends::BtreeIndexes;
use terrane_context::{
    CheckOptions, Context, Error, GcPace, Hash, IndexEngine, KindedHash, Meta, Options, Proof,
    Retain, Rules, Store, Tree, check, produce_tree_proof, repair,
};
use terrane_io::{Disk, Loss, MemoryDisk, SimDisk, Survival};

use crate::input::Input;

const DIR: &str = "/store";

/// Small directories are divided, so that few entries make each shape.
const RULES: Rules = Rules { branching: 2, flat_limit: 3, ..Rules::TEZOS };

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options::new(Arc::new(BtreeIndexes::new(1 << 20)))
        .rules(RULES)
        .chunk_bytes(4 << 10)
        .cache_bytes(1 << 20)
        .hash_threads(1)
}

/// One of the paths of the targets: a directory of one letter, and a name in it.
fn path_of(number: u8) -> [Vec<u8>; 2] {
    [vec![b'a' + number % 3], vec![b'0' + number / 3 % 40]]
}

fn key_of(path: &[Vec<u8>; 2]) -> Vec<u8> {
    path.concat()
}

/// A tree, roots of which honest proofs speak, and those proofs.
struct Honest {
    tree: Tree,
    root: KindedHash,
    proofs: Vec<Vec<u8>>,
}

static HONEST: LazyLock<Honest> = LazyLock::new(|| {
    let mut tree = Tree::new(RULES).expect("the rules hold");
    for number in 0..60 {
        tree.add(&path_of(number), [number; 3]).expect("a tree in memory");
    }
    let root = KindedHash { kind: tree.kind(), hash: tree.hash() };

    let proofs = [0_u8, 7, 61, 119].map(|number| {
        let seen = |tree: Tree| tree.find(&path_of(number)).map(|found| (tree, found));
        let (proof, _) = produce_tree_proof(&tree, seen).expect("a proof of a lookup");
        proof.encode().expect("a proof of few bytes")
    });
    Honest { tree, root, proofs: proofs.into() }
});

/// Any bytes are decoded as a proof.
pub(crate) fn context_proof(data: &[u8]) {
    let Ok(proof) = Proof::decode(data) else { return };
    assert_eq!(proof.encode().expect("what was decoded"), data, "a proof has one encoding");
    drop(proof.verify(&RULES, HONEST.root));
}

/// Facts that a changed proof shows of the trusted root are so.
pub(crate) fn context_proof_forged(data: &[u8]) {
    let mut input = Input(data);
    let honest = &*HONEST;
    let mut bytes = honest.proofs[input.index(honest.proofs.len())].clone();
    input.damage(&mut bytes);
    let Ok(proof) = Proof::decode(&bytes) else { return };
    let Ok(verified) = proof.verify(&RULES, honest.root) else { return };

    for number in 0..120 {
        let path = path_of(number);
        match verified.tree().find(&path) {
            Ok(found) => {
                assert_eq!(found, honest.tree.find(&path).expect("a tree in memory"), "{path:?}");
            }
            Err(Error::NotProvided { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A store of some commits; the last of them and the content of each.
fn fill(disk: Arc<dyn Disk>) -> (Store, Vec<(Hash, Content)>) {
    let store = Store::create(disk, Path::new(DIR), &options()).expect("a new store");
    let mut commits: Vec<(Hash, Content)> = Vec::new();
    for number in 0..8_u8 {
        let last = commits.last();
        let mut context = match last {
            Some((hash, _)) => store.checkout(hash).expect("sound").expect("just made"),
            None => store.empty(),
        };
        let mut content = last.map(|last| last.1.clone()).unwrap_or_default();
        for place in 0..20 {
            let path = path_of(place * 5 + number);
            context.add(&path, [number, place]).expect("sound");
            content.insert(key_of(&path), vec![number, place]);
        }
        let hash = store.commit(&context, &Meta::tezos(i64::from(number), "")).expect("sound");
        commits.push((hash, content));
    }
    store.set_branch(b"main", &commits[7].0).expect("sound");
    store.sync().expect("sound");
    (store, commits)
}

/// All values of a context, by the keys of their paths.
fn content_of(context: &Context) -> Result<Content, Error> {
    let mut content = Content::new();
    for number in 0..120 {
        let path = path_of(number);
        if let Some(value) = context.find(&path)? {
            content.insert(key_of(&path), value);
        }
    }
    Ok(content)
}

static STREAM: LazyLock<(Vec<u8>, Hash, Content)> = LazyLock::new(|| {
    let (store, mut commits) = fill(MemoryDisk::new());
    let (hash, content) = commits.pop().expect("some commits");
    let mut stream = Vec::new();
    store.export(&hash, &mut stream).expect("sound");
    (stream, hash, content)
});

/// A changed snapshot stream is refused, or gives the commit that it says with its content.
pub(crate) fn context_stream(data: &[u8]) {
    let (stream, hash, content) = &*STREAM;
    let mut stream = stream.clone();
    Input(data).damage(&mut stream);

    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let import = Store::import_new(disk, Path::new(DIR), &options(), &mut &*stream);
    let Ok((store, snapshot)) = import else { return };
    let Ok(Some(context)) = store.checkout(&snapshot.commit) else {
        panic!("an imported commit is there");
    };
    let found = content_of(&context).expect("imported");
    assert!(snapshot.commit != *hash || found == *content, "the content of a commit is its hash's");
}

/// A disk with a store, and the commits of it.
type Specimen = (Arc<SimDisk>, Vec<(Hash, Content)>);

static FILES: LazyLock<Specimen> = LazyLock::new(|| {
    let disk = SimDisk::new(1);
    let (store, commits) = fill(disk.clone());
    drop(store);
    (disk, commits)
});

/// A store with changed files is refused, or what is read of it was written; it is checked and
/// repaired without a panic.
pub(crate) fn context_files(data: &[u8]) {
    let (disk, commits) = &*FILES;
    let sim = disk.clone_disk();
    Input(data).damage_files(&sim, Path::new(DIR));
    let disk: Arc<dyn Disk> = sim.clone();

    let index: Arc<dyn IndexEngine> = Arc::new(BtreeIndexes::new(1 << 20));
    let everything = CheckOptions::default().index(&index).hashes(true);
    drop(check(&disk, Path::new(DIR), &everything, &mut |_| {}));
    if let Ok(store) = Store::open(Arc::clone(&disk), Path::new(DIR), &options()) {
        for (hash, content) in commits {
            let Ok(Some(context)) = store.checkout(hash) else { continue };
            // Checksums guard what hashes are not computed of while reading.
            if let Ok(found) = content_of(&context) {
                assert!(cfg!(fuzzing) || found == *content, "wrong data was read");
            }
        }
    }
    drop(repair(&disk, Path::new(DIR), &index, Loss::Accepted, &mut |_| {}));
}

/// Operations, collections and crashes; what was synced is there.
pub(crate) fn context_history(data: &[u8]) {
    let mut input = Input(data);
    let mut disk = SimDisk::new(1);
    let open = |disk: &Arc<SimDisk>| {
        let shared: Arc<dyn Disk> = disk.clone();
        match Store::open(Arc::clone(&shared), Path::new(DIR), &options()) {
            Ok(store) => store,
            Err(_) => Store::create(shared, Path::new(DIR), &options()).expect("a new store"),
        }
    };
    let mut store = open(&disk);
    store.sync().expect("sound");
    let mut commits: Vec<(Hash, Content)> = Vec::new();
    let mut durable = 0;

    for number in 0..64 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..10 => {
                let parent = (!commits.is_empty() && !input.byte().is_multiple_of(4)).then(|| {
                    let newest = commits.len() - 1 - input.index(commits.len().min(3));
                    commits[newest].clone()
                });
                let (mut context, mut content) = match &parent {
                    Some((hash, content)) => {
                        let context = store.checkout(hash).expect("sound").expect("a commit");
                        (context, content.clone())
                    }
                    None => (store.empty(), Content::new()),
                };
                for _ in 0..=input.index(12) {
                    let path = path_of(input.byte());
                    if input.byte().is_multiple_of(3) {
                        context.remove(&path).expect("sound");
                        content.remove(&key_of(&path));
                    } else {
                        let value = vec![input.byte(); input.index(200)];
                        context.add(&path, value.as_slice()).expect("sound");
                        content.insert(key_of(&path), value);
                    }
                }
                // A date of its own gives each commit a hash of its own.
                let hash = store.commit(&context, &Meta::tezos(number, "")).expect("sound");
                commits.push((hash, content));
            }
            10 | 11 => {
                store.sync().expect("sound");
                durable = commits.len();
            }
            12 => {
                let Some((head, _)) = commits.last().cloned() else { continue };
                store.sync().expect("sound");
                store.set_branch(b"main", &head).expect("a commit");
                store.collect(&Retain::newest(4), &mut |_| GcPace::Go).expect("sound");
                // Which commits went depends on their parents: the store says so.
                commits.retain(|(hash, _)| matches!(store.checkout(hash), Ok(Some(_))));
                assert!(commits.iter().any(|(hash, _)| *hash == head), "a head is kept");
                durable = commits.len();
            }
            13 => {
                drop(store);
                store = open(&disk);
                durable = commits.len();
            }
            _ => {
                let seed = input.byte().into();
                let crashed = disk.after_crash(Survival::Random(seed));
                drop(store);
                disk = crashed;
                store = open(&disk);
                for (hash, _) in &commits[..durable] {
                    assert!(
                        matches!(store.checkout(hash), Ok(Some(_))),
                        "a durable commit is lost"
                    );
                }
                commits.retain(|(hash, _)| matches!(store.checkout(hash), Ok(Some(_))));
                durable = 0;
            }
        }
        for (hash, content) in commits.iter().rev().take(3) {
            let context = store.checkout(hash).expect("sound").expect("a commit");
            assert!(content_of(&context).expect("sound") == *content, "a commit is what it was");
        }
    }
}
