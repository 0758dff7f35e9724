//! Latencies in the statistics of a store: each event counts once, finds by sample.

use std::sync::Arc;

use terrane_context::{Durability, Meta};
use terrane_io::{Disk, MemoryDisk};

use crate::script::{create, options};

#[test]
fn each_event_counts_once_and_one_find_in_64() {
    for durability in [Durability::Each, Durability::Buffered] {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let store = create(&disk, &options().durability(durability)).unwrap();
        assert_eq!(store.stats().latencies.commit.count, 0);
        let frames = store.stats().frames;

        let mut context = store.empty();
        for number in 0..20_i64 {
            context.add(&["a"], number.to_le_bytes()).unwrap();
            let commit = store.commit(&context, &Meta::tezos(number, "")).unwrap();
            context = store.checkout(&commit).unwrap().unwrap();
        }
        for _ in 0..640 {
            assert!(context.find(&["a"]).unwrap().is_some());
        }
        context.add(&["b"], "1").unwrap();
        store.flush(context.tree()).unwrap();

        let latencies = store.stats().latencies;
        let synced = if durability == Durability::Each { 20 } else { 0 };
        let counts = [
            latencies.commit.count,
            latencies.checkout.count,
            latencies.find.count,
            latencies.sync.count,
        ];
        assert_eq!(counts, [20, 20, 10, synced]);

        // A flush is hashed, encoded and written too, and is not a commit.
        assert_eq!((latencies.hash.count, latencies.encode.count), (21, 21));
        assert_eq!(latencies.write.count, store.stats().frames - frames);
        for latency in [&latencies.commit, &latencies.hash, &latencies.find] {
            let counted: u64 = latency.buckets.iter().map(|(_, count)| count).sum();
            assert_eq!(counted, latency.count);
            assert!(latency.quantile(0.5) <= latency.quantile(1.0));
            assert_eq!(latency.quantile(1.0).as_nanos(), u128::from(latency.max_ns));
            assert!(latency.mean().as_nanos() <= u128::from(latency.max_ns));
        }
        assert!(latencies.sync.total_ns <= latencies.commit.total_ns, "a commit has its sync");
    }
}
