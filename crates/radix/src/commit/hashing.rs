//! Hashes of nodes: each new node once, in waves from the leaves upwards.
//!
//! The nodes of a wave do not depend on each other, so they are hashed side by side in the lanes of
//! the processor, and on several threads if the wave is large. The result does not depend on the
//! number of threads.

use crate::base::cbor::{node_bytes_max, put_node};
use crate::base::node_hash::NodeHash;
use crate::commit::new_tree::{Child, NewEdge, NewNode};
use crate::node::branch::Branch;
use crate::node::node::{Edge, Node};
use terrane_hash::sha512::{self, BLOCK_BYTES, ChainJob};

/// SHA-512 blocks for which one more thread is worth starting.
const BLOCKS_FOR_A_THREAD: usize = 4096;

/// Bytes of encoded nodes that are hashed at a time; a single node may have more.
const BYTES_AT_ONCE: usize = 512 << 10;

/// The hash of the bytes of a node.
pub(crate) fn hash_node(bytes: &[u8]) -> NodeHash {
    NodeHash(sha512::hash(bytes))
}

/// The hash of a node with a value and no children.
pub(crate) fn hash_leaf(value: &[u8]) -> NodeHash {
    let mut bytes = Vec::new();
    put_node(&mut bytes, 0, [].into_iter(), Some(value));
    hash_node(&bytes)
}

/// The hash of a branch.
pub(crate) fn hash_branch(branch: &Branch) -> NodeHash {
    let mut bytes = Vec::new();
    put_node(&mut bytes, branch.len(), branch.hashes(), branch.value());
    hash_node(&bytes)
}

/// The hashes of the nodes of an extension, from the one above the node upwards.
pub(crate) fn extension_hashes(end: NodeHash, extension: &[u8]) -> impl Iterator<Item = NodeHash> {
    let mut jobs = [ChainJob { hash: end.0, tokens: extension }];
    sha512::hash_chain_steps(&mut jobs).into_iter().map(NodeHash)
}

/// The hash of the uppermost node of an extension, or of the node if there is none.
pub(crate) fn top_of(end: NodeHash, extension: &[u8]) -> NodeHash {
    let mut jobs = [ChainJob { hash: end.0, tokens: extension }];
    sha512::hash_chains(&mut jobs);
    NodeHash(jobs[0].hash)
}

/// The hash of the node of an edge.
pub(crate) fn end_hash(edge: &Edge) -> NodeHash {
    match &edge.end {
        Node::Stored(hash) => *hash,
        Node::Leaf(_) if edge.extension.as_bytes().is_empty() => edge.top,
        Node::Leaf(value) => hash_leaf(value),
    }
}

/// Hashes all nodes of a list, in which children stand before their parents.
pub(crate) fn hash_all(list: &mut [NewEdge], threads: usize) {
    let waves = list.iter().map(|new| new.height + 1).max().unwrap_or(0);
    let mut by_height: Vec<Vec<usize>> = vec![Vec::new(); waves];
    for (at, new) in list.iter().enumerate() {
        by_height[new.height].push(at);
    }

    let mut hashers: Vec<Hasher> = Vec::new();
    // A wave needs the hashes of those before it.
    for wave in by_height {
        debug_assert!(!wave.is_empty(), "a node of height n has a child of height n - 1");
        let blocks: usize = wave.iter().map(|&at| blocks_of(&list[at])).sum();

        // Where there is little to hash, a thread costs more than it saves.
        let threads = threads.min(blocks / BLOCKS_FOR_A_THREAD + 1).max(1);
        if hashers.len() < threads {
            hashers.resize_with(threads, Hasher::default);
        }

        // Each thread hashes a run of the wave, so that results come back in order.
        let parts = || wave.chunks(wave.len().div_ceil(threads));
        for hasher in &mut hashers[..threads] {
            // Reserved here and not in the thread, so that the buffer lives from wave to wave.
            hasher.bytes.reserve((blocks * BLOCK_BYTES / threads).min(BYTES_AT_ONCE));
        }

        // Most waves have too little work for a second thread.
        if let [hasher] = &mut hashers[..threads] {
            hasher.hash(list, &wave);
        } else {
            let list = &*list;
            std::thread::scope(|scope| {
                for (hasher, part) in hashers.iter_mut().zip(parts()) {
                    scope.spawn(|| hasher.hash(list, part));
                }
            });
        }

        for (hasher, part) in hashers.iter_mut().zip(parts()) {
            debug_assert_eq!(hasher.done.len(), part.len(), "each edge of the part has its hashes");
            for (&at, (end, top)) in part.iter().zip(hasher.done.drain(..)) {
                list[at].end_hash = end;
                list[at].top = top;
            }
        }
    }
}

/// Estimate of the SHA-512 blocks that an edge takes.
fn blocks_of(new: &NewEdge) -> usize {
    let end = match &new.end {
        NewNode::Kept(_) => 0,
        NewNode::Leaf(value) => value.len() / BLOCK_BYTES + 1,
        NewNode::Branch(branch) => branch.count / 2 + 1,
    };
    end + new.extension.as_bytes().len()
}

/// Buffers of one thread, kept from wave to wave.
#[derive(Default)]
struct Hasher {
    /// Encoded nodes, one after the other.
    bytes: Vec<u8>,
    /// End of each encoded node.
    ends: Vec<usize>,
    /// Hashes of the nodes of the wave, in their order.
    hashes: Vec<[u8; 32]>,
    /// The hashes of nodes and tops of the edges of a wave, in their order.
    done: Vec<(NodeHash, NodeHash)>,
}

impl Hasher {
    /// Hashes edges whose children are hashed.
    fn hash(&mut self, list: &[NewEdge], wave: &[usize]) {
        self.hashes.clear();
        for &at in wave {
            let node_bytes = match &list[at].end {
                NewNode::Kept(Node::Stored(_)) => continue,
                NewNode::Kept(Node::Leaf(value)) | NewNode::Leaf(value) => {
                    node_bytes_max(0, Some(value))
                }
                NewNode::Branch(branch) => node_bytes_max(branch.count, branch.value.as_deref()),
            };

            // Bounds the buffer, however many nodes a wave has.
            if self.bytes.len() + node_bytes > BYTES_AT_ONCE {
                self.hash_bytes();
            }

            self.bytes.reserve(node_bytes);
            match &list[at].end {
                NewNode::Kept(Node::Stored(_)) => {}
                NewNode::Kept(Node::Leaf(value)) | NewNode::Leaf(value) => {
                    put_node(&mut self.bytes, 0, [].into_iter(), Some(value));
                }
                NewNode::Branch(branch) => {
                    let hashes = branch.children().map(|(token, child)| match child {
                        Child::Old(branch, at) => (token, branch.edge_at(at).top),
                        Child::New(at) => (token, &list[at].top.0),
                    });
                    put_node(&mut self.bytes, branch.count, hashes, branch.value.as_deref());
                }
            }

            self.ends.push(self.bytes.len());
        }

        self.hash_bytes();

        // A kept node has its hash already; every other node of the wave was hashed above, in
        // order.
        let mut hashed = self.hashes.iter().copied();
        let mut extensions: Vec<ChainJob<'_>> = Vec::with_capacity(wave.len());
        for &at in wave {
            let hash = match &list[at].end {
                NewNode::Kept(Node::Stored(hash)) => hash.0,
                _ => hashed.next().unwrap_or_default(),
            };
            extensions.push(ChainJob { hash, tokens: list[at].extension.as_bytes() });
        }

        debug_assert!(hashed.next().is_none(), "each node that was hashed has its edge");

        self.done.extend(extensions.iter().map(|job| (NodeHash(job.hash), NodeHash(job.hash))));
        sha512::hash_chains(&mut extensions);
        for ((_, top), job) in self.done.iter_mut().zip(extensions) {
            *top = NodeHash(job.hash);
        }
    }

    /// Hashes the encoded nodes, and empties the buffer.
    fn hash_bytes(&mut self) {
        debug_assert_eq!(
            self.ends.last().copied().unwrap_or(0),
            self.bytes.len(),
            "the last node ends with the buffer"
        );
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let nodes: Vec<&[u8]> =
            starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect();
        let before = self.hashes.len();
        self.hashes.resize(before + nodes.len(), [0; 32]);
        sha512::hash_many(&nodes, &mut self.hashes[before..]);
        self.bytes.clear();
        self.ends.clear();
    }
}
