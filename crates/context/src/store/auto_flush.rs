//! Automatic flushes: a context that writes its changes to the store after so many of them.

use std::sync::{Arc, Weak};

use crate::base::error::{Error, Result};
use crate::store::context::{AutoFlush, Context, FlushTarget};
use crate::store::store::Store;
use crate::tree::tree::Tree;

impl FlushTarget for Store {
    fn flush_tree(&self, tree: &Tree) -> Result<()> {
        self.flush(tree)
    }
}

impl Context {
    /// Makes changes of this context [flush](Store::flush) the tree to the store, and forget the
    /// loaded nodes, each time that one of the limits is reached. `None` ends that.
    ///
    /// The calls of [`Context`] itself count: [`add`](Self::add), [`add_tree`](Self::add_tree),
    /// [`remove`](Self::remove), [`update`](Self::update), [`update_tree`](Self::update_tree).
    /// Changes by [`tree_mut`](Self::tree_mut) do not. A clone counts on its own; a context of a
    /// later checkout needs a call of its own.
    ///
    /// A flush writes garbage: what it wrote counts as live only once a commit reaches it, and what
    /// no commit reaches stays on the disk until a [collection](Store::collect).
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use terrane_context::{AutoFlush, Context, Result, Store};
    /// # fn build(store: &Arc<Store>) -> Result<()> {
    /// let mut context: Context = store.empty();
    /// context.set_auto_flush(store, AutoFlush::OCTEZ)?;
    /// for number in 0..1_000_000_u64 {
    ///     context.add(&["data", &number.to_string()], number.to_le_bytes())?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The store is not kept open. If it is gone, a change that is due for a flush returns
    /// [`Closed`](Error::Closed).
    ///
    /// # Errors
    /// [`ForeignTree`](Error::ForeignTree) for a context of another store.
    pub fn set_auto_flush(
        &mut self,
        store: &Arc<Store>,
        limits: impl Into<Option<AutoFlush>>,
    ) -> Result<()> {
        if !Arc::ptr_eq(&self.tree().env, &store.inner.env) {
            return Err(Error::ForeignTree);
        }
        let target: Weak<Store> = Arc::downgrade(store);
        self.flush_to(limits.into().map(|limits| (target as Weak<dyn FlushTarget>, limits)));
        Ok(())
    }
}
