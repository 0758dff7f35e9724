//! Hashing of what changed: every node and value below a root that has no hash yet, each once, from the leaves up,
//! several at once by the processor's lanes and large levels on several threads.

use std::thread;

use crate::hash::Hash;
use crate::node::{Body, Child, Env, InnerNode, Item, Node, Slot, Spot, Value};
use crate::record::Stored;
use crate::rules::Preimages;
use crate::stats::PreimageSizes;

/// From so many bytes of preimages on, a level is divided among threads: below it a thread costs more than it saves.
const THREAD_BYTES: usize = 64 << 10;
/// Preimages that are collected before they are hashed.
const BATCH_BYTES: usize = 16 << 10;

enum Job<'a> {
    Value(&'a Value),
    Node(&'a Node),
}

/// What hashing has cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hashed {
    /// Nodes and values.
    pub(crate) count: u64,
    /// Bytes of their preimages.
    pub(crate) bytes: u64,
    pub(crate) sizes: PreimageSizes,
}

impl Hashed {
    fn add(&mut self, preimage: usize) {
        self.count += 1;
        self.bytes += preimage as u64;
        self.sizes.add(preimage);
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.sizes.merge(&other.sizes);
    }
}

/// The hash of `root`, and of everything below it, on up to `threads` threads.
pub(crate) fn hash(env: &Env, root: &Node, threads: usize) -> (Hash, Hashed) {
    let mut levels = Vec::new();
    level_of(root, &mut levels);
    let mut hashed = Hashed::default();
    for jobs in &levels {
        let bytes: usize = jobs.iter().map(preimage_bytes).sum();
        let threads = threads.min(bytes / THREAD_BYTES + 1);
        let share = jobs.len().div_ceil(threads);
        thread::scope(|scope| {
            let mut shares = jobs.chunks(share.max(1));
            let own = shares.next();
            let others: Vec<_> =
                shares.map(|share| scope.spawn(|| hash_jobs(env, share))).collect();
            hashed.merge(&hash_jobs(env, own.unwrap_or_default()));
            for other in others {
                // A panic there is passed on when the scope ends.
                other.join().iter().for_each(|other| hashed.merge(other));
            }
        });
    }
    (*root.hash.get().expect("the root is in the last level"), hashed)
}

/// Sorts what is to be hashed by its distance from the leaves; the distance of `node`, 0 if it has a hash.
fn level_of<'a>(node: &'a Node, levels: &mut Vec<Vec<Job<'a>>>) -> usize {
    if node.hash.get().is_some() {
        return 0;
    }
    let mut level = 0;
    match &node.body {
        Body::Entries(entries) => {
            for item in &entries.items {
                let Item::Own { child, .. } = item else { continue };
                let below = match child {
                    Child::Dir(dir) => level_of(dir, levels),
                    Child::Value(value) if value.hash.get().is_none() => {
                        push(levels, 0, Job::Value(value));
                        1
                    }
                    _ => 0,
                };
                level = level.max(below);
            }
        }
        Body::Inner(inner) => {
            for slot in &inner.slots {
                if let Slot::Own(below) = slot {
                    level = level.max(level_of(below, levels));
                }
            }
        }
    }
    push(levels, level, Job::Node(node));
    level + 1
}

fn push<'a>(levels: &mut Vec<Vec<Job<'a>>>, level: usize, job: Job<'a>) {
    if levels.len() <= level {
        levels.resize_with(level + 1, Vec::new);
    }
    levels[level].push(job);
}

/// How many bytes will be hashed, about.
fn preimage_bytes(job: &Job<'_>) -> usize {
    match job {
        Job::Value(value) => value.bytes.len() + 8,
        Job::Node(node) => match &node.body {
            Body::Entries(entries) => entries.items.len() * 64,
            Body::Inner(inner) => inner.slots.len() * 34,
        },
    }
}

fn hash_jobs(env: &Env, jobs: &[Job<'_>]) -> Hashed {
    let mut hashed = Hashed::default();
    let mut preimages = Preimages::new(env.rules);
    let mut begun = 0;
    for (number, job) in jobs.iter().enumerate() {
        match job {
            Job::Value(value) => preimages.value(&value.bytes),
            Job::Node(node) => preimage(env, node, &mut preimages),
        }
        if preimages.len() >= BATCH_BYTES || number + 1 == jobs.len() {
            preimages.lengths().for_each(|length| hashed.add(length));
            for (job, hash) in jobs[begun..=number].iter().zip(preimages.finish()) {
                match job {
                    Job::Value(value) => value.hash.get_or_init(|| hash),
                    Job::Node(node) => node.hash.get_or_init(|| hash),
                };
            }
            begun = number + 1;
        }
    }
    hashed
}

/// The preimage of a node whose children have hashes.
fn preimage(env: &Env, node: &Node, out: &mut Preimages) {
    match &node.body {
        Body::Inner(inner) => inner_preimage(inner, out),
        Body::Entries(entries) => {
            let count = entries.items.len();
            if entries.leaf {
                out.leaf(count as u64);
            } else {
                out.flat(count as u64);
            }
            for item in 0..count {
                let spot = entries.spot(item);
                let hash = spot_hash(env, spot);
                if entries.leaf {
                    out.leaf_entry(entries.step(item), spot.is_value(), &hash);
                } else {
                    out.flat_entry(entries.step(item), spot.is_value(), &hash);
                }
            }
        }
    }
}

fn inner_preimage(inner: &InnerNode, out: &mut Preimages) {
    let filled = inner.slots.iter().filter(|slot| !matches!(slot, Slot::Empty)).count();
    out.inner(inner.depth, inner.count, filled as u32);
    for (bucket, slot) in inner.slots.iter().enumerate() {
        match slot {
            Slot::Empty => {}
            Slot::Kept(_) => out.bucket(bucket, &inner.kept(bucket).hash),
            Slot::Own(node) => out.bucket(bucket, node.hash.get().expect(HASHED)),
            Slot::Blinded(hash) => out.bucket(bucket, hash),
        }
    }
}

const HASHED: &str = "the levels below are hashed first";

/// The hash of what is bound; of a directory or value in memory, the one that it was given before.
pub(crate) fn spot_hash(env: &Env, spot: Spot<'_>) -> Hash {
    match spot {
        Spot::Kept { entries, ordinal, .. } => match entries.stored(ordinal as usize) {
            Stored::Inline(bytes) => env.rules.value_hash(bytes),
            Stored::Value(link) | Stored::Dir(link) => link.hash,
        },
        Spot::Own(Child::Value(value)) => *value.hash.get().expect(HASHED),
        Spot::Own(Child::Dir(node)) => *node.hash.get().expect(HASHED),
        Spot::Own(Child::ValueAt(link)) => link.hash,
        Spot::Own(Child::DirAt(far)) => far.0.hash,
        Spot::Own(Child::Blinded { hash, .. }) => *hash,
    }
}
