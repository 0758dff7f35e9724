//! The database in memory keeps the rules.

use std::sync::Arc;

use terrane_kv::Memory;
use terrane_kv::conformance::{Extent, RULES, Subject, check};
use terrane_kv::{Database, Result};
use terrane_testkit::effort::by_effort;

use crate::numbered::extent;

/// Databases in memory.
pub(crate) struct InMemory;

impl Subject for InMemory {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        Ok(Arc::new(Memory::new(indexes)?))
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.fresh(indexes)
    }

    fn is_persistent(&self) -> bool {
        false
    }
}

#[test]
fn memory_keeps_all_rules_but_those_of_opening_again() {
    let report = check(&mut InMemory, &by_effort(extent(), Extent::default())).unwrap();
    assert_eq!(report.skipped, ["reopening", "indexes at reopening"]);
    assert_eq!(report.kept.len() + report.skipped.len(), RULES.len());
}
