//! Hashing: computes the hash of every node and value below a root that has none, each once, level
//! by level from the leaves up. Nodes of a level are hashed in the lanes of the processor, and
//! large levels on several threads.
//!
//! A store has one [`Hasher`], whose threads and buffers stay from commit to commit.

use rayon_core::{ThreadPool, ThreadPoolBuilder};
use terrane_io::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::hashing::Preimages;
use crate::base::stats::PreimageSizes;
use crate::object::entries::Stored;
use crate::object::inner::Inner;
use crate::object::record::RecordBody;
use crate::tree::node::{Content, Env, Member, Node, Shape, Spot, Value};

/// Bytes of preimages from which on a level is divided among threads: below, a thread costs more
/// than it saves.
const THREAD_BYTES: usize = 64 << 10;
/// Largest buffer that is kept for the next commit, in bytes.
const SPARE_BYTES_MAX: usize = 1 << 20;
/// Bytes of preimages of one batch.
const BATCH_BYTES: usize = 64 << 10;

enum Job<'a> {
    Value(&'a Value),
    Node(&'a Node),
}

/// Work of hashing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hashed {
    /// Nodes and values.
    pub(crate) count: u64,
    /// Bytes of the preimages.
    pub(crate) bytes: u64,
    pub(crate) sizes: PreimageSizes,
    /// Values stored in these nodes, hashed for the hash of the node.
    pub(crate) again: u64,
}

impl Hashed {
    fn add(&mut self, preimage: usize) {
        self.count += 1;
        self.bytes += preimage as u64;
        self.sizes.add(preimage);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.sizes.merge(&other.sizes);
        self.again += other.again;
    }
}

/// Threads and buffers of hashing.
#[derive(Debug)]
pub(crate) struct Hasher {
    threads: usize,
    /// Threads beside the caller, begun with the first large level; `None` if there are none.
    helpers: OnceLock<Option<ThreadPool>>,
    spare: Mutex<Vec<Buffers>>,
}

/// Buffers of one thread: preimages of nodes, and those of the values stored in them.
#[derive(Debug)]
struct Buffers {
    nodes: Preimages,
    inline: Preimages,
}

impl Buffers {
    fn new(env: &Env) -> Self {
        Self { nodes: Preimages::new(env.rules), inline: Preimages::new(env.rules) }
    }
}

impl Hasher {
    /// Returns a hasher on `threads` threads, the caller included.
    pub(crate) fn new(threads: usize) -> Self {
        debug_assert!(threads > 0, "the caller hashes too");
        Self { threads, helpers: OnceLock::new(), spare: Mutex::default() }
    }

    /// Threads beside the caller. If the system refuses them, the caller hashes alone.
    fn helpers(&self) -> Option<&ThreadPool> {
        let begin = || {
            let name = |number| format!("terrane-hash-{number}");
            let helpers = ThreadPoolBuilder::new().num_threads(self.threads - 1).thread_name(name);
            helpers.build().ok()
        };
        (self.threads > 1).then(|| self.helpers.get_or_init(begin).as_ref()).flatten()
    }

    /// Calls `work` for each part, on the caller and on the helpers, as each becomes free.
    pub(crate) fn for_each<T: Send>(&self, parts: &mut [T], work: impl Fn(&mut T) + Sync) {
        let helpers = if parts.len() > 1 { self.helpers() } else { None };
        let Some(helpers) = helpers else {
            return parts.iter_mut().for_each(work);
        };

        let threads = self.threads.min(parts.len());
        let rest = Mutex::new(parts.iter_mut());
        let take = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
        let run = || {
            while let Some(part) = take() {
                work(part);
            }
        };
        helpers.in_place_scope(|scope| {
            (1..threads).for_each(|_| scope.spawn(|_| run()));
            run();
        });
    }

    /// Whether there are threads beside the caller.
    pub(crate) fn has_helpers(&self) -> bool {
        self.helpers().is_some()
    }

    /// Hashes all below these nodes on this thread, and not the nodes themselves: their siblings
    /// share the lanes of the processor with them.
    pub(crate) fn hash_below<'a>(
        &self,
        env: &Env,
        nodes: impl Iterator<Item = &'a Node>,
    ) -> Hashed {
        let mut levels = HashLevels::default();
        for node in nodes {
            levels.add_below(node);
        }
        self.with_buffers(env, |buffers| {
            let mut hashed = Hashed::default();
            for jobs in &levels.jobs {
                hashed.merge(&hash_jobs(jobs, buffers));
            }
            hashed
        })
    }

    /// Hashes `root` and all below it.
    pub(crate) fn hash(&self, env: &Env, root: &Node) -> (Hash, Hashed) {
        let mut levels = HashLevels::default();
        if root.hash.get().is_none() {
            let level = levels.add_below(root);
            levels.push(level, Job::Node(root));
        }
        debug_assert!(
            levels.jobs.iter().all(|jobs| !jobs.is_empty()),
            "a node of a level has a child on the level below"
        );

        // A level needs the hashes of the levels below, so levels are hashed one after the other.
        let mut hashed = Hashed::default();
        for jobs in &levels.jobs {
            hashed.merge(&self.level(env, jobs));
        }

        debug_assert_eq!(
            hashed.count,
            levels.jobs.iter().map(|jobs| jobs.len() as u64).sum::<u64>(),
            "each node and value was hashed once"
        );
        (*root.hash.get().expect("the root is in the last level"), hashed)
    }

    /// Hashes the nodes of a level.
    fn level(&self, env: &Env, jobs: &[Job<'_>]) -> Hashed {
        let bytes: usize = jobs.iter().map(preimage_bytes).sum();
        let threads = self.threads.min(bytes / THREAD_BYTES + 1);

        // A small level wakes no thread.
        let shares = jobs.chunks(jobs.len().div_ceil(threads).max(1));
        let mut shares: Vec<_> = shares.map(|share| (share, Hashed::default())).collect();
        self.for_each(&mut shares, |(share, hashed)| {
            *hashed = self.with_buffers(env, |buffers| hash_jobs(share, buffers));
        });

        let mut all = Hashed::default();
        for (_, hashed) in &shares {
            all.merge(hashed);
        }
        all
    }

    /// Calls `work` with buffers that were used before.
    fn with_buffers<R>(&self, env: &Env, work: impl FnOnce(&mut Buffers) -> R) -> R {
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = spare().pop();
        let mut buffers = taken.unwrap_or_else(|| Buffers::new(env));
        let result = work(&mut buffers);

        // A level of one huge directory leaves no huge buffer behind.
        if buffers.nodes.capacity() <= SPARE_BYTES_MAX {
            spare().push(buffers);
        }
        result
    }
}

/// Nodes and values to be hashed, by their distance from the leaves.
#[derive(Default)]
struct HashLevels<'a> {
    jobs: Vec<Vec<Job<'a>>>,
    /// Distances of nodes that may be met again: a tree may be bound at several paths.
    shared: FastMap<*const Node, usize>,
}

// Pointers are compared, never dereferenced.
impl<'a> HashLevels<'a> {
    /// Adds all below `root` that have no hash, with a list of the open nodes: a path may have more
    /// nodes than a thread has stack for. Returns the distance of `root` from the leaves.
    fn add_below(&mut self, root: &'a Node) -> usize {
        if root.hash.get().is_some() {
            return 0;
        }

        let mut way = vec![Adding { node: root, is_shared: false, next: 0, level: 0 }];
        while let Some(adding) = way.last_mut() {
            match adding.next_below() {
                Some(Below::Value(value)) => {
                    adding.level = adding.level.max(1);
                    self.push(0, Job::Value(value));
                }
                Some(Below::Node(node)) => {
                    // A node with one owner is met once, so its level need not be kept.
                    let is_shared = Arc::strong_count(node) > 1;
                    let known = self.shared.get(&Arc::as_ptr(node)).filter(|_| is_shared);
                    match known {
                        Some(level) => adding.level = adding.level.max(*level),
                        None => way.push(Adding { node, is_shared, next: 0, level: 0 }),
                    }
                }
                None => {
                    let &mut Adding { node, is_shared, level, .. } = adding;
                    way.pop();
                    let Some(above) = way.last_mut() else { return level };
                    above.level = above.level.max(level + 1);
                    self.push(level, Job::Node(node));
                    if is_shared {
                        self.shared.insert(node, level + 1);
                    }
                }
            }
        }

        unreachable!("the way ends with the root")
    }

    fn push(&mut self, level: usize, job: Job<'a>) {
        if self.jobs.len() <= level {
            self.jobs.resize_with(level + 1, Vec::new);
        }
        self.jobs[level].push(job);
    }
}

/// Node that is being added, after the nodes below it.
struct Adding<'a> {
    node: &'a Node,
    /// Whether the node may be met again.
    is_shared: bool,
    /// Number of the next entry, or the next bucket.
    next: usize,
    /// Lower bound of the distance from the leaves.
    level: usize,
}

enum Below<'a> {
    Value(&'a Value),
    Node(&'a Arc<Node>),
}

impl<'a> Adding<'a> {
    /// Returns the next child without a hash.
    fn next_below(&mut self) -> Option<Below<'a>> {
        loop {
            let node = self.node;
            let number = match &node.record().body {
                RecordBody::Entries(entries) => {
                    let mut stale = entries.stale_from(self.next);
                    let item = stale.find(|item| !entries.is_inline(*item))?;
                    self.next = item + 1;
                    item
                }
                RecordBody::Inner(inner) => {
                    let rest = inner.stale().checked_shr(self.next as u32).unwrap_or(0);
                    if rest == 0 {
                        return None;
                    }
                    let bucket = self.next + rest.trailing_zeros() as usize;
                    self.next = bucket + 1;
                    inner.rank(bucket)?
                }
            };
            match node.member(number) {
                Some(Member::Node(node)) if node.hash.get().is_none() => {
                    return Some(Below::Node(node));
                }
                Some(Member::Value(value)) if value.hash.get().is_none() => {
                    return Some(Below::Value(value));
                }
                _ => {}
            }
        }
    }
}

/// Approximate bytes of a preimage.
fn preimage_bytes(job: &Job<'_>) -> usize {
    match job {
        Job::Value(value) => value.bytes.len() + 8,
        Job::Node(node) => match &node.record().body {
            RecordBody::Entries(entries) => entries.list().len(),
            RecordBody::Inner(inner) => inner.list().len(),
        },
    }
}

fn hash_jobs(jobs: &[Job<'_>], buffers: &mut Buffers) -> Hashed {
    let mut hashed = Hashed::default();

    // Batches bound the memory of preimages, and still fill the lanes of the processor.
    let mut rest = jobs;
    while !rest.is_empty() {
        let mut bytes = 0;
        let batch = rest.iter().take_while(|job| {
            let is_first = bytes == 0;
            bytes += preimage_bytes(job);
            is_first || bytes <= BATCH_BYTES
        });
        let (batch, after) = rest.split_at(batch.count());
        debug_assert!(!batch.is_empty(), "each batch goes on");
        hash_batch(batch, buffers, &mut hashed);
        rest = after;
    }

    hashed
}

/// Hashes a batch, and stores the hashes.
fn hash_batch(batch: &[Job<'_>], buffers: &mut Buffers, hashed: &mut Hashed) {
    // `get_or_init`: another thread may have hashed a shared node meanwhile, to the same hash.
    for (job, hash) in batch.iter().zip(hashes(batch, buffers, hashed)) {
        match job {
            Job::Value(value) => value.hash.get_or_init(|| hash),
            Job::Node(node) => node.hash.get_or_init(|| hash),
        };
    }
}

/// Returns the hashes of a batch: first hashes the values stored in its nodes, whose hashes go into
/// the preimages of the nodes.
fn hashes(batch: &[Job<'_>], buffers: &mut Buffers, hashed: &mut Hashed) -> Vec<Hash> {
    let Buffers { nodes: preimages, inline } = buffers;
    for job in batch {
        match job {
            Job::Value(value) => preimages.value(&value.bytes),
            Job::Node(node) => preimage(node, inline, preimages),
        }
    }

    // The next change of the node keeps the hashes of its values.
    hashed.again += inline.lengths().count() as u64;
    let inline = inline.finish();
    preimages.fill_in(&inline);
    let mut rest = inline.as_slice();
    for job in batch {
        if let Job::Node(node) = job
            && let Shape::Entries(entries) = node.shape()
        {
            let entries = entries.entries();
            let own = entries.stale().filter(|item| entries.is_inline(*item)).count();
            let (own, others) = rest.split_at(own);
            node.keep_inline_hashes(own);
            rest = others;
        }
    }
    preimages.lengths().for_each(|length| hashed.add(length));

    let hashes = preimages.finish();
    debug_assert_eq!(hashes.len(), batch.len(), "a hash for each node and value");
    hashes
}

/// Hashes the content of a node, and ignores the hash that the node has.
pub(crate) fn hash_of(env: &Env, node: &Node) -> Hash {
    let mut buffers = Buffers::new(env);
    hashes(&[Job::Node(node)], &mut buffers, &mut Hashed::default())[0]
}

/// Appends the preimage of a node whose children have hashes. Values stored in the node that have
/// no hash are appended to `inline`, and their hashes are filled in later.
fn preimage(node: &Node, inline: &mut Preimages, out: &mut Preimages) {
    let near = |number: usize| node.member(number).and_then(Member::hash).expect(HASHED);
    match &node.record().body {
        RecordBody::Inner(inner) => {
            out.inner(inner.depth, inner.count, inner.len() as u32);
            let start = out.list(inner.list());
            for bucket in inner.buckets().filter(|bucket| inner.stale() >> bucket & 1 == 1) {
                let rank = inner.rank(bucket).expect("the bucket is there");
                out.replace(start + Inner::hash_at(rank), near(rank));
            }
        }
        RecordBody::Entries(entries) => {
            if entries.leaf {
                out.leaf(entries.len() as u64);
            } else {
                out.flat(entries.len() as u64);
            }
            let start = out.list(entries.list());
            for item in entries.stale() {
                let at = start + entries.hash_at(item);
                match entries.stored(item) {
                    Stored::Inline(bytes) => {
                        inline.value(bytes);
                        out.blank(at);
                    }
                    _ => out.replace(at, near(item)),
                }
            }
        }
    }
}

const HASHED: &str = "the levels below are hashed first";

/// Hash of a child; a directory or value in memory must have its hash already.
pub(crate) fn spot_hash(env: &Env, spot: Spot<'_>) -> Hash {
    match spot.content() {
        Content::Inline(bytes) => env.rules.value_hash(bytes),
        Content::ValueAt(link) | Content::DirAt(link) => link.hash,
        // A value taken out of a directory has no hash yet.
        Content::Value(value) => *value.hash.get_or_init(|| env.rules.value_hash(&value.bytes)),
        Content::Dir(node) => *node.hash.get().expect(HASHED),
        Content::Blinded { hash, .. } => hash,
    }
}
