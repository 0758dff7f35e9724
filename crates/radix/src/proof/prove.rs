//! Prover: makes a proof from a stored state.

use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::error::{Error, Result};
use crate::base::node_hash::{NodeHash, Root};
use crate::commit::hashing::{end_hash, extension_hashes, hash_node};
use crate::node::decode::PlainNode;
use crate::node::node::{Edge, Node};
use crate::proof::proof::{Proof, ProofPlace};
use crate::records::node_store::{Loaded, NodePlace, Nodes};
use crate::store::store::Tree;

impl Tree {
    /// Proves the values of addresses in a state, or their absence, for
    /// [`verify_proof`](crate::verify_proof). A repeated address is proven once.
    ///
    /// Cost: reads the nodes that the addresses lead through and are not in memory, those of a
    /// level side by side; hashes every node on the way.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the
    /// back-end.
    pub fn prove(&self, root: &Root, addresses: &[Address]) -> Result<Proof> {
        let (reader, edge) = self.open(root)?;
        let (mut proof, place) = Proof::begin(addresses);
        let Some(edge) = edge else {
            // The empty root is the hash of the empty node, which proves that no address has a
            // value.
            proof.push(&place, NodeHash::EMPTY, Arc::default());
            return Ok(proof);
        };

        let nodes = self.inner().nodes(&*reader, root);
        let sorted: Vec<&[u8]> = proof.addresses().iter().map(Address::as_bytes).collect();
        // Reads each level side by side; what follows then finds the nodes in memory.
        nodes.find(&edge, &sorted)?;

        Prover { nodes: &nodes, root: *root, proof: &mut proof }.edge(
            &edge,
            Prefix::EMPTY,
            place,
        )?;

        Ok(proof)
    }
}

struct Prover<'a> {
    nodes: &'a Nodes<'a>,
    root: Root,
    proof: &'a mut Proof,
}

impl Prover<'_> {
    fn check(&self, path: Prefix, expected: NodeHash, found: NodeHash) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        let what = format!("a node that hashes to {found}");
        Err(Error::Corruption { root: Some(self.root), path, node: expected, what })
    }

    /// Adds the nodes of an edge and the nodes below it on the paths of addresses. At most 36 deep.
    fn edge(&mut self, edge: &Edge, mut path: Prefix, mut place: ProofPlace) -> Result<()> {
        let end = end_hash(edge);

        let extension = edge.extension.as_bytes();
        // From the top of the extension down to the node at its end.
        let mut hashes: Vec<NodeHash> =
            std::iter::once(end).chain(extension_hashes(end, extension)).collect();
        hashes.reverse();
        // A wrong hash in the store would give a proof that is refused far from its cause.
        self.check(path, edge.top, hashes[0])?;

        for (at, token) in extension.iter().enumerate() {
            let node = PlainNode { value: None, children: vec![(*token, hashes[at + 1])] };
            self.proof.push(&place, hashes[at], Arc::new(node));
            let below = self.proof.below(&place);
            let Some((_, next)) = below.into_iter().find(|(other, _)| other == token) else {
                // No address goes on from here, so the rest of the extension proves nothing.
                return Ok(());
            };
            place = next;
        }

        path.extend(extension);
        let loaded = match &edge.end {
            Node::Leaf(value) => Loaded::Value(Arc::clone(value)),
            Node::Stored(node) => self.nodes.load(&NodePlace { node: *node, path })?,
        };

        let (node, branch) = match loaded {
            Loaded::Value(value) => (PlainNode { value: Some(value), children: Vec::new() }, None),
            Loaded::Branch(branch) => (PlainNode::of(&branch), Some(branch)),
        };

        self.check(path, end, hash_node(&node.encode()))?;
        self.proof.push(&place, end, Arc::new(node));
        let Some(branch) = branch else { return Ok(()) };

        for (token, below) in self.proof.below(&place) {
            if let Some(child) = branch.child(token) {
                let mut path = path;
                path.extend(&[token]);
                self.edge(&child.to_edge(), path, below)?;
            }
        }

        Ok(())
    }
}
