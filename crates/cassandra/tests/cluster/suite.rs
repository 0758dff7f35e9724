//! The conformance suite of `terrane_kv`.

use std::sync::Arc;
use std::time::Instant;

use terrane_cassandra::Cassandra;
use terrane_kv::conformance::{Extent, RULES, Subject, check_rule};
use terrane_kv::{Database, Result};

use crate::setup::{Cluster, cluster, store_name};

struct OnCluster {
    cluster: Cluster,
    store: String,
}

impl OnCluster {
    fn open(&self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        let options = self.cluster.options(&self.store).indexes(indexes.iter().copied());
        Ok(Arc::new(Cassandra::open(options)?))
    }
}

impl Subject for OnCluster {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.store = store_name("suite");
        self.open(indexes)
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.open(indexes)
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

#[test]
fn a_store_keeps_all_rules_of_databases() {
    let Some(cluster) = cluster() else { return };
    // Less than local back-ends do: each read is a round trip to two nodes.
    let extent = Extent {
        seed: 7,
        histories: 2,
        steps: 40,
        batch_entries: 500,
        value_bytes_max: 1 << 20,
        rounds: 10,
    };
    let mut subject = OnCluster { cluster, store: String::new() };
    for rule in RULES {
        let start = Instant::now();
        assert!(check_rule(rule, &mut subject, &extent).unwrap(), "a store is persistent");
        println!("{}: {:.1} s", rule.name, start.elapsed().as_secs_f64());
    }
    println!("{} rules kept", RULES.len());
}
