//! Forgetting of loaded nodes below a depth.

use std::sync::Arc;

use crate::tree::node::{Child, Node, Shape};
use crate::tree::tree::Tree;

impl Tree {
    /// Forgets the loaded nodes of all directories deeper than `depth` steps that can be loaded
    /// again; the root has depth 0. Unstored changes stay, at any depth.
    ///
    /// A clone of the tree keeps what it has loaded; nodes up to `depth` that it shares are copied.
    /// [`clear`](Self::clear) forgets the root too.
    ///
    /// Cost: no I/O; visits the loaded nodes up to `depth`, and all unstored ones. Later reads load
    /// again.
    pub fn clear_below(&mut self, depth: usize) {
        // Values that wait go into the nodes first: applying them later must need no I/O.
        if self.apply_buffer().is_err() {
            return;
        }
        match self.base_mut() {
            Child::Dir(root) => clear_below(root, depth),
            Child::DirAt(far) => {
                if let Some(root) = far.1.get_mut() {
                    clear_below(root, depth);
                }
            }
            Child::Value(_) | Child::ValueAt(_) | Child::Blinded { .. } => {}
        }
    }
}

/// Open node of the walk.
struct Open {
    node: Arc<Node>,
    /// Steps from the root to the directory of the node.
    depth: usize,
    /// Number of the next child.
    next: usize,
}

fn clear_below(root: &mut Arc<Node>, depth: usize) {
    // With a list: a path may have more nodes than a thread has stack for.
    let taken = std::mem::replace(root, Arc::new(Node::empty(false)));
    let mut stack = vec![Open { node: taken, depth: 0, next: 0 }];

    while let Some(open) = stack.last_mut() {
        let Some(number) = open.node.next_node(open.next) else {
            let Some(done) = stack.pop() else { return };
            match stack.last_mut() {
                // The child was taken out of this number.
                Some(above) => Arc::make_mut(&mut above.node).put_node(above.next - 1, done.node),
                None => *root = done.node,
            }
            continue;
        };

        open.next = number + 1;
        let is_inode = matches!(open.node.shape(), Shape::Inner(_));
        let below = open.depth + usize::from(!is_inode);

        // The places of stored children must be in the record, from which they are loaded again.
        let node = Arc::make_mut(&mut open.node);
        node.settle();
        let can_load = node.can_load(number);
        let Some(child) = node.take_node(number) else { continue };
        if below <= depth || !can_load {
            stack.push(Open { node: child, depth: below, next: 0 });
        }
    }
}
