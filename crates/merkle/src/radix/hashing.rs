//! The hashes of nodes: each new node once, in waves from the leaves upwards, so that what a wave hashes is independent of
//! each other and can be shared by threads. The result does not depend on their number.

use crate::radix::build::{Child, New, NewStop};
use crate::radix::cbor::put_node;
use crate::radix::node::{Branch, Edge, Stop};
use crate::radix::node_hash::NodeHash;
use sha2::{Digest, Sha512};

/// Bytes of nodes in a wave from which on it is worth a thread more.
const BYTES_FOR_A_THREAD: usize = 256 << 10;
/// Bytes of a node with one child and no value.
const CHAIN_NODE_BYTES: usize = 76;

/// The hash of the bytes of a node.
pub(crate) fn hash_node(bytes: &[u8]) -> NodeHash {
    let digest = Sha512::digest(bytes);
    NodeHash(digest.first_chunk().copied().unwrap_or_default())
}

/// The hash of a node with a value and no children.
pub(crate) fn hash_leaf(value: &[u8]) -> NodeHash {
    let mut bytes = Vec::new();
    put_node(&mut bytes, [].into_iter(), Some(value));
    hash_node(&bytes)
}

/// The hash of a branch.
pub(crate) fn hash_branch(branch: &Branch) -> NodeHash {
    let mut bytes = Vec::new();
    put_node(&mut bytes, branch.hashes(), branch.value.as_deref());
    hash_node(&bytes)
}

/// The hashes of the nodes of a chain, from the one above the stop upwards.
pub(crate) fn chain_hashes(stop: NodeHash, chain: &[u8]) -> impl Iterator<Item = NodeHash> {
    let mut bytes = Vec::with_capacity(2 * CHAIN_NODE_BYTES);
    chain.iter().rev().scan(stop, move |below, token| {
        bytes.clear();
        put_node(&mut bytes, [(*token, &*below)].into_iter(), None);
        *below = hash_node(&bytes);
        Some(*below)
    })
}

/// The hash of the uppermost node of a chain, or of the stop if there is none.
pub(crate) fn top_of(stop: NodeHash, chain: &[u8]) -> NodeHash {
    chain_hashes(stop, chain).last().unwrap_or(stop)
}

/// The hash of the stop of an edge.
pub(crate) fn stop_hash(edge: &Edge) -> NodeHash {
    match &edge.stop {
        Stop::Row(hash) => *hash,
        Stop::Leaf(_) if edge.chain.as_bytes().is_empty() => edge.top,
        Stop::Leaf(value) => hash_leaf(value),
    }
}

/// Hashes all nodes of a list, in which children stand before their parents.
pub(crate) fn hash_all(list: &mut [New], threads: usize) {
    let waves = list.iter().map(|new| new.height + 1).max().unwrap_or(0);
    let mut by_height: Vec<Vec<usize>> = vec![Vec::new(); waves];
    for (at, new) in list.iter().enumerate() {
        by_height[new.height].push(at);
    }
    for wave in by_height {
        let bytes: usize = wave.iter().map(|&at| bytes_of(&list[at])).sum();
        let threads = threads.min(bytes / BYTES_FOR_A_THREAD + 1).max(1);
        let hashes: Vec<(NodeHash, NodeHash)> = if threads == 1 {
            wave.iter().map(|&at| hashes_of(list, at)).collect()
        } else {
            let list = &*list;
            std::thread::scope(|scope| {
                let parts = wave.chunks(wave.len().div_ceil(threads));
                let handles: Vec<_> = parts
                    .map(|part| {
                        scope.spawn(|| part.iter().map(|&at| hashes_of(list, at)).collect())
                    })
                    .collect();
                let join = |handle: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
                    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                handles.into_iter().flat_map(join).collect()
            })
        };
        for (at, (stop, top)) in wave.into_iter().zip(hashes) {
            list[at].stop_hash = stop;
            list[at].top = top;
        }
    }
}

/// About how many bytes are hashed for an edge.
fn bytes_of(new: &New) -> usize {
    let stop = match &new.stop {
        NewStop::Kept(_) => 0,
        NewStop::Leaf(value) => value.len(),
        NewStop::Branch { children, .. } => children.len() * CHAIN_NODE_BYTES,
    };
    stop + new.chain.as_bytes().len() * CHAIN_NODE_BYTES
}

/// The hashes of stop and top of an edge whose children are hashed.
fn hashes_of(list: &[New], at: usize) -> (NodeHash, NodeHash) {
    let new = &list[at];
    let stop = match &new.stop {
        NewStop::Kept(Stop::Row(hash)) => *hash,
        NewStop::Kept(Stop::Leaf(value)) | NewStop::Leaf(value) => hash_leaf(value),
        NewStop::Branch { value, children } => {
            let hashes = children.iter().map(|(token, child)| match child {
                Child::Old(edge) => (*token, &edge.top),
                Child::New(at) => (*token, &list[*at].top),
            });
            let mut bytes = Vec::new();
            put_node(&mut bytes, hashes, value.as_deref());
            hash_node(&bytes)
        }
    };
    (stop, top_of(stop, new.chain.as_bytes()))
}
