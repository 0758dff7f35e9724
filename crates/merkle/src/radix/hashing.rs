//! The hashes of nodes: each new node once, in waves from the leaves upwards. What a wave hashes is independent of each other,
//! so that it is hashed side by side, and shared by threads if it is much. The result does not depend on their number.

use crate::radix::branch::Branch;
use crate::radix::build::{Child, New, NewStop};
use crate::radix::cbor::{node_bytes_max, put_node};
use crate::radix::node::{Edge, Stop};
use crate::radix::node_hash::NodeHash;
use crate::sha512::{self, BLOCK_BYTES, ChainJob};

/// Blocks of a wave from which on it is worth a thread more.
const BLOCKS_FOR_A_THREAD: usize = 4096;

/// Bytes of nodes that are rendered at a time, if they are more than one.
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

/// The hashes of the nodes of a chain, from the one above the stop upwards.
pub(crate) fn chain_hashes(stop: NodeHash, chain: &[u8]) -> impl Iterator<Item = NodeHash> {
    let mut jobs = [ChainJob { hash: stop.0, tokens: chain }];
    sha512::hash_chain_steps(&mut jobs).into_iter().map(NodeHash)
}

/// The hash of the uppermost node of a chain, or of the stop if there is none.
pub(crate) fn top_of(stop: NodeHash, chain: &[u8]) -> NodeHash {
    let mut jobs = [ChainJob { hash: stop.0, tokens: chain }];
    sha512::hash_chains(&mut jobs);
    NodeHash(jobs[0].hash)
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
        let blocks: usize = wave.iter().map(|&at| blocks_of(&list[at])).sum();
        let threads = threads.min(blocks / BLOCKS_FOR_A_THREAD + 1).max(1);
        let hashes: Vec<(NodeHash, NodeHash)> = if threads == 1 {
            hashes_of(list, &wave)
        } else {
            let list = &*list;
            std::thread::scope(|scope| {
                let parts = wave.chunks(wave.len().div_ceil(threads));
                let handles: Vec<_> =
                    parts.map(|part| scope.spawn(|| hashes_of(list, part))).collect();
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

/// About how many blocks are hashed for an edge.
fn blocks_of(new: &New) -> usize {
    let stop = match &new.stop {
        NewStop::Kept(_) => 0,
        NewStop::Leaf(value) => value.len() / BLOCK_BYTES + 1,
        NewStop::Branch(branch) => branch.count / 2 + 1,
    };
    stop + new.chain.as_bytes().len()
}

/// The hashes of stops and tops of edges whose children are hashed, in their order.
fn hashes_of(list: &[New], wave: &[usize]) -> Vec<(NodeHash, NodeHash)> {
    let mut stops = Vec::with_capacity(wave.len());
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for &at in wave {
        let node_bytes = match &list[at].stop {
            NewStop::Kept(Stop::Row(_)) => 0,
            NewStop::Kept(Stop::Leaf(value)) | NewStop::Leaf(value) => {
                node_bytes_max(0, Some(value))
            }
            NewStop::Branch(branch) => node_bytes_max(branch.count, branch.value.as_deref()),
        };
        if bytes.len() + node_bytes > BYTES_AT_ONCE {
            hash_stops(&mut bytes, &mut ends, &mut stops);
        }
        bytes.reserve(node_bytes);
        match &list[at].stop {
            NewStop::Kept(Stop::Row(_)) => {}
            NewStop::Kept(Stop::Leaf(value)) | NewStop::Leaf(value) => {
                put_node(&mut bytes, 0, [].into_iter(), Some(value));
            }
            NewStop::Branch(branch) => {
                let hashes = branch.children().map(|(token, child)| match child {
                    Child::Old(branch, at) => (token, branch.edge_at(at).top),
                    Child::New(at) => (token, &list[at].top.0),
                });
                put_node(&mut bytes, branch.count, hashes, branch.value.as_deref());
            }
        }
        if node_bytes > 0 {
            ends.push(bytes.len());
        }
    }
    hash_stops(&mut bytes, &mut ends, &mut stops);

    let mut hashed = stops.into_iter();
    let mut chains: Vec<ChainJob<'_>> = Vec::with_capacity(wave.len());
    for &at in wave {
        let hash = match &list[at].stop {
            NewStop::Kept(Stop::Row(hash)) => hash.0,
            _ => hashed.next().unwrap_or_default(),
        };
        chains.push(ChainJob { hash, tokens: list[at].chain.as_bytes() });
    }
    let stops: Vec<NodeHash> = chains.iter().map(|job| NodeHash(job.hash)).collect();
    sha512::hash_chains(&mut chains);
    stops.into_iter().zip(chains.into_iter().map(|job| NodeHash(job.hash))).collect()
}

/// Hashes nodes, whose bytes follow each other up to their ends, and takes them away.
fn hash_stops(bytes: &mut Vec<u8>, ends: &mut Vec<usize>, hashes: &mut Vec<[u8; 32]>) {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let nodes: Vec<&[u8]> = starts.zip(&*ends).map(|(start, end)| &bytes[start..*end]).collect();
    let before = hashes.len();
    hashes.resize(before + nodes.len(), [0; 32]);
    sha512::hash_many(&nodes, &mut hashes[before..]);
    bytes.clear();
    ends.clear();
}
