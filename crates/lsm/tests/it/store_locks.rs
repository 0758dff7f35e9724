//! Slow work of a store and those who must not wait for it.
//!
//! Goal: while one thread waits for the disk in a flush, a compaction, a checkpoint, a deletion of
//! a range, a switch of segments or a change of the list of tables, commits to other tables end,
//! and views of all tables are to be had. What such a call promises is kept: nothing is durable
//! before its segment is sealed, and a commit whose slow work fails has changed nothing.
//!
//! Method: one call on the disk waits at a gate until the others are done. Nothing here measures
//! time; a call that waits for the gate fails its test after a minute.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use terrane_io::{Disk, SimDisk, Survival};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    CheckpointThread, Durability, Error, NamedTable, Store, StoreOptions, Update, WriteBuffer,
};

use crate::gate::GateDisk;
use crate::store_script::{config, content, name, open, options};

/// Time limit of a call that must not wait; reaching it means that it does.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn path(name: &str) -> PathBuf {
    Path::new("/store").join(name)
}

/// Key that stands in the order of its number.
fn ordered(number: u64) -> [u8; 8] {
    let mut key = number.to_le_bytes();
    key.reverse();
    key
}

/// A store with tables `busy` and `other`, on a disk with a gate.
struct Scene {
    disk: Arc<SimDisk>,
    gate: Arc<GateDisk>,
    store: Store,
    busy: NamedTable,
    other: NamedTable,
}

impl Scene {
    fn new(options: &StoreOptions) -> Self {
        let disk = SimDisk::new(1);
        let gate = GateDisk::new(Arc::clone(&disk) as Arc<dyn Disk>);
        let store =
            Store::open(Arc::clone(&gate) as Arc<dyn Disk>, Path::new("/store"), options).unwrap();
        let large = WriteBuffer::Entries(100_000);
        let busy = store.create_table(&name("busy"), &config()).unwrap();
        let other = config().write_buffer(large);
        let other = store.create_table(&name("other"), &other).unwrap();
        drop(busy.insert(b"first", b"begins the log").unwrap());
        Self { disk, gate, store, busy, other }
    }

    /// Checks that nobody waits while `slow` is held at a call on the disk; then lets it end.
    fn check<T: Send>(
        &self,
        (call, at): (&'static str, PathBuf),
        slow: impl FnOnce(&Self) -> T + Send,
    ) -> T {
        self.gate.close(call, at);
        thread::scope(|scope| {
            let slow = scope.spawn(|| slow(self));
            let held = self.gate.wait();
            self.check_others();
            drop(held);
            slow.join().unwrap()
        })
    }

    /// Commits to the other table, views both, and asks for counts: on another thread, so that a
    /// call that waits fails the test instead of stopping it.
    fn check_others(&self) {
        let (store, busy, other) = (self.store.clone(), self.busy.clone(), self.other.clone());
        let (sender, done) = channel();
        thread::spawn(move || {
            let before = store.last_commit();
            let commit = other.insert(b"key", &before.to_le_bytes()).unwrap().commit();
            assert!(commit > before);
            let found = other.get(b"key").unwrap();
            assert_eq!(found.value(), Some(&before.to_le_bytes()[..]));
            let range = other.delete_range(&b"x"[..]..&b"y"[..]).unwrap();
            assert!(range.commit() > commit);

            let first = busy.view().unwrap().get(b"first").unwrap();
            assert_eq!(first.value(), Some(&b"begins the log"[..]));
            assert_eq!(store.views(&[&other, &busy, &other]).unwrap().len(), 3);
            assert!(busy.stats().unwrap().entries() + 1 > 0);
            assert!(store.last_commit() >= range.commit());
            sender.send(()).unwrap();
        });
        done.recv_timeout(WAIT_MAX).expect("somebody waits for slow work");
    }

    /// Commits to the busy table until `count` entries have been added.
    fn fill(&self, count: u64) {
        for number in 0..count {
            drop(self.busy.insert(&ordered(number), &[1; 100]).unwrap());
        }
    }
}

fn buffered() -> StoreOptions {
    // No segment is full, and no checkpoint is due.
    options(Durability::Buffered).log_bytes_max(16 << 20)
}

#[test]
fn nobody_waits_for_the_flush_of_another_table() {
    let scene = Scene::new(&buffered());
    scene.check(("open", path("active")), |scene| scene.fill(40));
    assert!(scene.busy.stats().unwrap().runs() > 0, "a run was written");
    assert_eq!(content(&scene.busy).unwrap().len(), 41);
}

#[test]
fn nobody_waits_for_a_compaction_of_another_table() {
    let scene = Scene::new(&buffered());
    scene.fill(8 * 4);
    let runs = scene.busy.stats().unwrap().runs();
    assert!(runs > 1, "{runs} runs to merge");

    // Full compactions, asked for, wait for the disk in the same way.
    for call in ["open", "write"] {
        scene.check((call, path("active")), |scene| {
            scene.fill(16);
            scene.store.compact(&mut |_, _| {}).unwrap();
        });
    }
    assert_eq!(content(&scene.busy).unwrap().len(), 33);
}

#[test]
fn nobody_waits_for_a_checkpoint() {
    for at in [
        ("open", path("active")),
        ("sync", path("active")),
        ("sync", path("log/00000002.log")),
        ("write", path("log/00000001.log")),
        ("rename", path("manifest.a")),
        ("rename", path("manifest.b")),
    ] {
        let scene = Scene::new(&buffered());
        scene.fill(20);
        scene.check(at, |scene| scene.store.checkpoint().unwrap());
        drop(scene.store);
    }
}

#[test]
fn nobody_waits_for_a_deletion_that_reads() {
    let scene = Scene::new(&buffered());
    scene.fill(2_600);
    scene.store.compact(&mut |_, _| {}).unwrap();
    let delete = |number: u64| {
        let range = ordered(number)..ordered(number + 1);
        drop(scene.busy.delete_range(range).unwrap());
    };

    // Masks that do not touch, until the run has no room for another.
    (0..1_001).for_each(|number| delete(2 * number));
    scene.check(("read", path("active")), |_| (1_001..1_010).for_each(|number| delete(2 * number)));
    assert_eq!(content(&scene.busy).unwrap().len(), 2_601 - 1_010);
}

#[test]
fn nobody_waits_for_a_segment_that_is_made() {
    let scene = Scene::new(&options(Durability::Buffered));
    // Made ahead, when half of the present one is written.
    scene.check(("sync", path("log/00000002.log")), |scene| scene.fill(60));
    scene.check(("open", path("log/00000003.log")), |scene| scene.fill(120));
}

/// Commits go on in the next segment. They are durable once the one before is sealed.
#[test]
fn nobody_waits_for_a_seal_but_who_waits_for_durability() {
    for call in ["sync", "write"] {
        let scene = Scene::new(&options(Durability::Buffered));
        // Small commits first: until the next segment is made.
        while !scene.disk.files().contains(&path("log/00000002.log")) {
            drop(scene.busy.insert(b"filler", &[1; 200]).unwrap());
        }
        scene.store.sync().unwrap();
        let durable = scene.store.durable_commit();

        // This one does not fit any more.
        scene.check_held(call, durable);
        assert_eq!(scene.store.durable_commit(), scene.store.last_commit());

        let Scene { disk, store, busy, other, .. } = scene;
        drop((store, busy, other));
        let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
        let found = store.table(&name("busy")).unwrap().get(b"large").unwrap();
        assert_eq!(found.value(), Some(&[2; 9_000][..]));
        store.close().unwrap();
    }
}

impl Scene {
    /// A commit switches to the second segment and is held at a call on the first one.
    fn check_held(&self, call: &'static str, durable: u64) {
        let first = path("log/00000001.log");
        thread::scope(|scope| {
            let large = scope.spawn(|| {
                // The record fits into the segment before, of which nobody waits for a sync.
                self.gate.close(call, first);
                drop(self.busy.insert(b"large", &[2; 9_000]).unwrap());
                self.store.sync().unwrap();
            });
            let held = self.gate.wait();
            self.check_others();
            assert_eq!(self.store.durable_commit(), durable, "nothing is durable before the seal");
            drop(held);
            large.join().unwrap();
        });
        self.store.sync().unwrap();
    }
}

#[test]
fn nobody_waits_for_a_table_that_is_made_renamed_or_dropped() {
    let scene = Scene::new(&buffered());
    let manifest = || ("rename", path("manifest.a"));
    scene.check(manifest(), |scene| {
        scene.store.create_table(&name("third"), &config()).unwrap();
    });
    scene.check(manifest(), |scene| {
        scene.store.rename_table(&name("third"), &name("fourth")).unwrap();
    });
    scene.check(manifest(), |scene| scene.store.drop_table(&name("fourth")).unwrap());

    // Views of the table itself, too, until it is gone.
    scene.check(manifest(), |scene| scene.store.drop_table(&name("busy")).unwrap());
    assert!(matches!(scene.busy.view(), Err(Error::TableDoesNotExist { .. })));
    let refused = scene.busy.insert(b"key", b"too late");
    assert!(matches!(refused, Err(Error::TableDoesNotExist { .. })), "{refused:?}");
}

#[test]
fn nobody_who_reads_waits_for_a_roll_back() {
    let scene = Scene::new(&buffered());
    scene.fill(3);
    let version = scene.store.retain(None).unwrap();
    scene.fill(6);

    scene.gate.close("rename", path("manifest.a"));
    thread::scope(|scope| {
        let back = scope.spawn(|| scene.store.roll_back(version).unwrap());
        let held = scene.gate.wait();
        let (sender, done) = channel();
        let (store, busy) = (scene.store.clone(), scene.busy.clone());
        thread::spawn(move || {
            let entries = content(&busy).unwrap().len();
            sender.send((entries, store.last_commit())).unwrap();
        });
        let (entries, _) = done.recv_timeout(WAIT_MAX).expect("a reader waits for the roll-back");
        assert_eq!(entries, 7);
        drop(held);
        back.join().unwrap();
    });
    assert_eq!(content(&scene.busy).unwrap().len(), 4);
}

/// A commit whose share of a compaction fails is refused, and nothing has changed; the next one
/// does the share.
#[test]
fn a_commit_whose_slow_work_fails_changes_nothing() {
    for kind in [FaultKind::Enospc, FaultKind::ShortWrite] {
        let disk = SimDisk::new(1);
        let store = open(&disk, Durability::None).unwrap();
        let main = store.create_table(&name("main"), &config()).unwrap();
        let other = store.create_table(&name("other"), &config()).unwrap();
        let batch = |number: u64| (ordered(number), ordered(number.wrapping_mul(0x9E37_79B9)));

        let mut failures = 0;
        for (expected, number) in (0..200).enumerate() {
            let (key, value) = batch(number);
            let update = [(key, Update::Insert(&value))];
            let parts = [(&main, &update[..]), (&other, &update[..])];
            let last = store.last_commit();

            // Without a log only slow work writes.
            disk.set_plan(FaultPlan::fail(0, kind, Repeat::Forever));
            let refused = store.commit(&parts);
            disk.set_plan(FaultPlan::default());
            if refused.is_err() {
                failures += 1;
                assert_eq!(store.last_commit(), last);
                for table in [&main, &other] {
                    assert_eq!(content(table).unwrap().len(), expected, "commit {number}");
                }
                drop(store.commit(&parts).unwrap());
            }
        }

        assert!(failures > 10, "{failures} failures");
        for table in [&main, &other] {
            assert_eq!(content(table).unwrap().len(), 200);
        }
        store.close().unwrap();
    }
}

/// The default does not make anybody wait.
#[test]
fn checkpoints_are_made_on_a_thread_unless_the_options_say_otherwise() {
    assert_eq!(StoreOptions::default().checkpoint_thread, CheckpointThread::Background);
}
