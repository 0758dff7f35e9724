//! Followers: copies that take over the commits of a store.
//!
//! Goal: whatever a store does (commits, flushes, merges, checkpoints, roll-backs, bulk loads,
//! tables that come and go), its follower is equal to it at a commit of it, also when it begins
//! late, stays away, or dies at any call.
//!
//! Method: random steps on a store beside a follower that catches up now and then, compared by
//! digests; and a crash of the follower at each call on its disk, after which another one goes on.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, SimDisk};
use terrane_lsm::{
    Durability, Error, FOLLOW_TABLE, FollowOptions, Follower, MergeOperator, Store, TableConfig,
    Update, WriteBatch,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

use crate::store_script::{batch, config, name, open, options, state};

const SOURCE: &str = "/store";
const COPY: &str = "/copy";

fn table_config() -> TableConfig {
    config().merge_operator(MergeOperator::concatenate())
}

fn follow(source: &Arc<SimDisk>, copy: &Arc<SimDisk>) -> terrane_lsm::Result<Follower> {
    let source = Arc::clone(source) as Arc<dyn Disk>;
    let copy = Arc::clone(copy) as Arc<dyn Disk>;
    let options = FollowOptions::default().store(options(Durability::Buffered));
    let sites = [(&source, Path::new(SOURCE)), (&copy, Path::new(COPY))];
    Follower::open(sites[0], sites[1], &options, &mut |_, _| {})
}

/// Compares the tables of both.
fn check(source: &Store, follower: &Follower) {
    assert_eq!(follower.report().source_commit, source.last_commit());
    let mut copy = state(follower.store()).unwrap();
    assert!(copy.remove(FOLLOW_TABLE).is_some());
    assert_eq!(copy, state(source).unwrap());
}

#[test]
fn a_follower_is_equal_to_its_source() {
    let (mut roll_backs, mut loads, mut takeovers) = (0, 0, 0);
    for_each_seed("follower", 6, |rng, seed| {
        let disk = SimDisk::new(seed);
        let store = open(&disk, Durability::Group).unwrap();
        let names = ["a", "b", "c"];
        store.create_table(&name("a"), &table_config()).unwrap();
        let mut follower: Option<Follower> = None;
        for step in 0..120 {
            let there = store.tables().unwrap();
            let free =
                names.iter().find(|name| there.iter().all(|info| info.name.as_str() != **name));
            match (rng.index(26), free) {
                (0, Some(free)) => {
                    store.create_table(&name(free), &table_config()).unwrap();
                }
                (1, _) if there.len() > 1 => {
                    store.drop_table(&rng.pick(&there).name).unwrap();
                }
                (2, Some(free)) => store.rename_table(&rng.pick(&there).name, &name(free)).unwrap(),
                (3, Some(free)) => {
                    let mut loader = store.bulk_load(&name(free), &table_config()).unwrap();
                    loader.insert(b"loaded", rng.bytes(9)).unwrap();
                    if rng.chance(1, 3) {
                        let mut batch = WriteBatch::new();
                        let table = store.table(&rng.pick(&there).name).unwrap();
                        batch.insert(&table, b"beside", rng.bytes(9));
                        loader.finish_with(&batch).unwrap();
                    } else {
                        loader.finish().unwrap();
                    }
                }
                (24, _) => {
                    let mut loader = store.session().bulk_load(&table_config()).unwrap();
                    loader.write_batch(&[(b"replaced", Update::Insert(&rng.bytes(9)))]).unwrap();
                    let loaded = loader.finish().unwrap();
                    store.replace(&rng.pick(&there).name, &loaded).unwrap();
                }
                (4, _) => store.checkpoint().unwrap(),
                (5..=7, _) => drop(store.retain(None).unwrap()),
                (8 | 9, _) => {
                    let versions = store.versions().unwrap();
                    if !versions.is_empty() {
                        store.roll_back(rng.pick(&versions).number).unwrap();
                    }
                    if versions.len() > 3 {
                        store.release(versions[0].number).unwrap();
                    }
                }
                _ => {
                    let table = store.table(&rng.pick(&there).name).unwrap();
                    let changes = batch(rng, 6);
                    let updates: Vec<_> =
                        changes.iter().map(|(key, change)| (key, change.update())).collect();
                    drop(table.write_batch(&updates).unwrap());
                }
            }
            if step > 20 && rng.chance(1, 6) {
                store.sync().unwrap();
                let mut following = match follower.take() {
                    Some(follower) => follower,
                    None => follow(&disk, &disk).unwrap(),
                };
                following.catch_up().unwrap();
                check(&store, &following);
                let compared = following.verify().unwrap();
                assert!(
                    !compared.is_empty()
                        && compared.iter().all(terrane_lsm::FollowedTable::is_equal)
                );
                if rng.chance(1, 3) {
                    let report = following.report();
                    roll_backs += report.roll_backs;
                    loads += report.loads;
                    takeovers += report.takeovers;
                    following.close().unwrap();
                } else {
                    follower = Some(following);
                }
            }
        }
        if let Some(follower) = follower {
            roll_backs += follower.report().roll_backs;
            loads += follower.report().loads;
            takeovers += follower.report().takeovers;
            follower.close().unwrap();
        }
        store.close().unwrap();
    });
    assert!(
        roll_backs > 0 && loads > 0 && takeovers > 0,
        "{roll_backs} roll-backs, {loads} loads, {takeovers} takeovers"
    );
}

/// A source with a follower's work: commits, a version, a roll-back, tables that come and go.
fn source() -> (Arc<SimDisk>, Store) {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Each).unwrap();
    let main = store.create_table("main", &table_config()).unwrap();
    main.insert(b"first", b"1").unwrap().wait().unwrap();
    (disk, store)
}

fn go_on(store: &Store) {
    let main = store.table("main").unwrap();
    main.upsert(b"first", b"2").unwrap().wait().unwrap();
    let version = store.retain(None).unwrap();
    let other = store.create_table("other", &table_config()).unwrap();
    other.upsert(b"sum", b"3").unwrap().wait().unwrap();
    main.upsert(b"first", b"4").unwrap().wait().unwrap();
    store.roll_back(version).unwrap();
    main.upsert(b"first", b"5").unwrap().wait().unwrap();
    store.create_table("third", &table_config()).unwrap();
    store.rename_table("third", "fourth").unwrap();
    store.table("fourth").unwrap().upsert(b"sum", b"6").unwrap().wait().unwrap();
    let mut loader = store.bulk_load("loaded", &table_config()).unwrap();
    loader.insert(b"sum", b"7").unwrap();
    let loaded = loader.finish().unwrap();
    loaded.upsert(b"sum", b"8").unwrap().wait().unwrap();
    store.replace("fourth", &loaded.view().unwrap()).unwrap();
    store.table("fourth").unwrap().upsert(b"sum", b"9").unwrap().wait().unwrap();
}

#[test]
fn a_follower_dies_at_every_call_and_nothing_is_missing_or_repeated() {
    let (disk, store) = source();
    let copy = SimDisk::new(2);
    follow(&disk, &copy).unwrap().close().unwrap();
    go_on(&store);
    let mut loads = 0;
    let images = Sweep::sampled(3, 5).on(&copy).crash(
        |copy| {
            let source = disk.process_kill();
            let _crashed = follow(&source, copy).and_then(|mut follower| follower.catch_up());
            source
        },
        |crash| {
            crash.images(Loss::each(crash.call), |image| {
                // With the cursor as the dead follower left it.
                let source = crash.run.process_kill();
                let mut follower = follow(&source, &image.disk).unwrap();
                follower.catch_up().unwrap();
                check(&store, &follower);
                loads += follower.report().loads;
                follower.close().unwrap();
            })
        },
    );
    assert!(images > 60 && loads > images / 2, "{images} images, {loads} loads");
}

#[test]
fn a_follower_refuses_what_is_not_its_copy() {
    let (disk, store) = source();
    let follower = follow(&disk, &disk).unwrap();
    let copied = follower.store().table("main").unwrap();
    copied.insert(b"own", b"change").unwrap().wait().unwrap();
    drop((copied, follower));
    let refused = follow(&disk, &disk).unwrap_err();
    assert!(matches!(refused, Error::NotAFollower { .. }), "{refused:?}");

    let other = SimDisk::new(7);
    let foreign = Store::open(
        Arc::clone(&other) as Arc<dyn Disk>,
        Path::new(COPY),
        &options(Durability::Each),
    );
    let foreign = foreign.unwrap();
    foreign.create_table("main", &table_config()).unwrap();
    foreign.close().unwrap();
    let refused = follow(&disk, &other).unwrap_err();
    assert!(matches!(refused, Error::NotABackup { .. }), "{refused:?}");
    store.close().unwrap();
}
