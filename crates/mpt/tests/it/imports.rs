//! Bulk imports, from entries, ranges and streams.
//!
//! Goal: an imported state is the state that it was taken from, whether the import ran at once or
//! was interrupted at any call on the disk; input that is out of order, false or damaged is
//! refused, and the state does not open before it is whole. Method: random states, imports in
//! pieces, a crash or a fault at call n for every n, and seeded damage.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{B256, U256, keccak256};
use terrane_io::{Disk, FaultKind, FaultPlan, MemoryDisk, SimDisk, Survival};
use terrane_lsm::{CompactionThread, TableConfig};
use terrane_mpt::{
    Account, Error, Import, Options, Result, State, StateAt, StorageRange, TransferError,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

use crate::chain::{self, DIR, Model, apply, commit, draw_block, memory_state, options};

/// Accounts with their slots, by hashes and sorted.
type Entries = Vec<(B256, Account, Vec<(B256, U256)>)>;

fn entries(model: &Model) -> Entries {
    let mut entries: Entries = Vec::new();
    for (address, account) in model {
        let slots = account.slots.iter().map(|(slot, value)| (keccak256(slot), *value));
        let mut slots: Vec<_> = slots.collect();
        slots.sort();
        entries.push((keccak256(address), account.account(), slots));
    }
    entries.sort_by_key(|entry| entry.0);
    entries
}

fn open(disk: &Arc<dyn Disk>) -> Result<Import> {
    Import::open(Arc::clone(disk), Path::new(DIR), &options())
}

/// Pushes what an import does not have yet; syncs after every third entry.
fn push(import: &mut Import, entries: &Entries) -> Result<()> {
    let position = import.position();
    let mut pushed = 0;
    for (hash, account, slots) in entries {
        if position.last_account.is_some_and(|last| *hash <= last) {
            continue;
        }
        import.push_account(*hash, account)?;
        let last = position.pending.filter(|pending| pending.0 == *hash).map(|pending| pending.1);
        for (slot, value) in slots.iter().filter(|(slot, _)| last.is_none_or(|last| last < *slot)) {
            import.push_slot(*slot, *value)?;
            pushed += 1;
            if pushed % 3 == 0 {
                import.sync()?;
            }
        }
    }
    import.push_code(b"code").map(drop)
}

fn draw_model(rng: &mut impl Draw, blocks: usize) -> Model {
    let mut model = Model::new();
    for _ in 0..blocks {
        let steps = draw_block(rng, &model);
        apply(&mut model, &steps);
    }
    model
}

fn check(state: &State, model: &Model) {
    chain::check(state, model);
    let report = state.verify().unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// A state with a model as its last block.
fn state_of(model: &Model) -> State {
    let mut state = memory_state();
    let steps = chain::difference(&Model::new(), model);
    drop(commit(&mut state, &steps, 0).unwrap());
    let mut block = state.block(1, chain::hash(0, 0)).unwrap();
    block.set_code(b"code");
    drop(block.commit(chain::hash(1, 0)).unwrap());
    state
}

#[test]
fn an_imported_state_is_the_state_and_goes_on() {
    for_each_seed("an_imported_state_is_the_state_and_goes_on", by_effort(6, 80), |rng, _| {
        let blocks = rng.index(6);
        let model = draw_model(rng, blocks);
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let mut import = open(&disk).unwrap();
        push(&mut import, &entries(&model)).unwrap();
        let root = chain::root(&model);
        let (mut state, committed) = import.finish(9, chain::hash(9, 0), Some(root)).unwrap();
        committed.ticket.wait().unwrap();
        assert_eq!((committed.block.height, committed.block.root), (9, root));
        check(&state, &model);

        let mut after = model.clone();
        let steps = draw_block(rng, &after);
        apply(&mut after, &steps);
        drop(commit(&mut state, &steps, 0).unwrap());
        check(&state, &after);
        drop(state.reorg_to(9).unwrap());
        state.close().unwrap();
        check(&chain::open(&disk).unwrap(), &model);
        assert!(matches!(open(&disk), Err(Error::NotEmpty)));
    });
}

/// The storage ranges of a state, with a limit.
fn storage(state: &StateAt, limit: usize) -> impl FnMut(B256, B256) -> Result<StorageRange> + '_ {
    move |account, start| state.storage_range(account, start, limit)
}

#[test]
fn a_state_is_imported_from_proved_ranges() {
    for_each_seed("a_state_is_imported_from_proved_ranges", by_effort(4, 60), |rng, _| {
        let model = draw_model(rng, 5);
        let source = state_of(&model).latest().unwrap();
        let root = chain::root(&model);
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let mut import = open(&disk).unwrap();
        let mut start = B256::ZERO;
        loop {
            let range = source.account_range(start, 1 + rng.index(6)).unwrap();
            let limit = 1 + rng.index(3);
            if rng.chance(1, 4) {
                // A range of storage that is refused, and then the right one.
                let mut bad = |account, start| {
                    let range = source.storage_range(account, start, limit)?;
                    let slots =
                        range.slots.iter().map(|(slot, value)| (*slot, value + U256::from(1)));
                    Ok(StorageRange::new(account, start, slots.collect(), range.nodes))
                };
                let pushed = import.push_account_range(root, &range, &mut bad);
                assert!(matches!(pushed, Ok(_) | Err(Error::Range(_))), "{pushed:?}");
            }
            if rng.chance(1, 4) {
                import.sync().unwrap();
                drop(import);
                import = open(&disk).unwrap();
                start = import.position().next_account().unwrap();
                continue;
            }
            let mut storage = storage(&source, limit);
            if !import.push_account_range(root, &range, &mut storage).unwrap() {
                break;
            }
            let last = U256::from_be_bytes(range.accounts.last().unwrap().0.0);
            start = B256::from(last + U256::from(1));
        }
        let (state, _) = import.finish(0, chain::hash(0, 0), Some(root)).unwrap();
        check(&state, &model);

        let other = source.account_range(B256::ZERO, 3).unwrap();
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let mut import = open(&disk).unwrap();
        let refused = import.push_account_range(B256::ZERO, &other, &mut storage(&source, 3));
        assert!(matches!(refused, Err(Error::Range(_))));
        assert_eq!(import.position().last_account, None);
    });
}

#[test]
fn input_that_is_out_of_order_or_false_is_refused() {
    let hash = B256::repeat_byte;
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let mut import = open(&disk).unwrap();
    let account = Account::new(1, U256::from(1));
    let no_account = import.push_slot(hash(1), U256::from(1));
    assert!(matches!(no_account, Err(Error::SlotWithoutAccount { .. })));
    import.push_account(hash(2), &account).unwrap();
    assert!(matches!(import.push_account(hash(2), &account), Err(Error::KeyOrder { .. })));
    assert!(matches!(import.push_account(hash(1), &account), Err(Error::KeyOrder { .. })));
    assert!(matches!(import.push_slot(hash(1), U256::ZERO), Err(Error::EmptyValue { .. })));
    import.sync().unwrap();
    assert!(matches!(chain::open(&disk), Err(Error::Store(_))));
    drop(import);
    assert!(matches!(chain::open(&disk), Err(Error::ImportUnfinished)));

    let mut import = open(&disk).unwrap();
    import.push_account(hash(2), &account).unwrap();
    import.push_account(hash(3), &account).unwrap();
    let refused = import.finish(0, hash(0), Some(hash(7)));
    assert!(matches!(refused, Err(Error::RootMismatch { .. })));
    assert!(matches!(chain::open(&disk), Err(Error::ImportUnfinished)));

    let mut import = open(&disk).unwrap();
    import.push_account(hash(4), &account).unwrap();
    import.push_slot(hash(1), U256::from(1)).unwrap();
    assert!(matches!(import.push_slot(hash(1), U256::from(1)), Err(Error::KeyOrder { .. })));
    // Roots are compared many together, at the latest when everything is to be durable.
    import.push_account(hash(5), &account).unwrap();
    let refused = import.sync();
    assert!(matches!(refused, Err(Error::StorageRootMismatch { .. })), "{refused:?}");
    // The wrong slot may be stored, so nothing goes on behind it, and nobody finishes.
    let refused = import.push_account(hash(6), &account);
    assert!(matches!(refused, Err(Error::StorageRootMismatch { .. })), "{refused:?}");
    let refused = import.finish(0, hash(0), None);
    assert!(matches!(refused, Err(Error::StorageRootMismatch { .. })));
    assert!(matches!(chain::open(&disk), Err(Error::ImportUnfinished)));
}

#[test]
fn an_account_under_way_is_gone_on_with() {
    let model = draw_model_with_slots();
    let entries = entries(&model);
    let (hash, account, slots) = entries.iter().find(|entry| 2 < entry.2.len()).unwrap();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let mut import = open(&disk).unwrap();
    import.push_account(*hash, account).unwrap();
    import.push_slot(slots[0].0, slots[0].1).unwrap();
    import.sync().unwrap();
    drop(import);

    let mut import = open(&disk).unwrap();
    assert_eq!(import.position().pending, Some((*hash, slots[0].0)));
    assert!(matches!(import.push_slot(slots[1].0, slots[1].1), Err(Error::ImportPosition { .. })));
    let other = import.push_account(B256::repeat_byte(0xff), account);
    assert!(matches!(other, Err(Error::ImportPosition { account }) if account == *hash));
    let refused = import.finish(0, B256::ZERO, None);
    assert!(matches!(refused, Err(Error::ImportPosition { .. })));

    let mut import = open(&disk).unwrap();
    import.push_account(*hash, account).unwrap();
    for (slot, value) in &slots[1..] {
        import.push_slot(*slot, *value).unwrap();
    }
    let (state, _) = import.finish(0, B256::ZERO, None).unwrap();
    let report = state.verify().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.accounts, report.slots), (1, slots.len() as u64));
}

/// A model with several slots in some account.
fn draw_model_with_slots() -> Model {
    let mut model = Model::new();
    for_each_seed("draw_model_with_slots", 1, |rng, _| model = draw_model(rng, 8));
    model
}

#[test]
fn streams_are_the_same_bytes_from_every_store_and_damage_is_found() {
    let name = "streams_are_the_same_bytes_from_every_store_and_damage_is_found";
    for_each_seed(name, by_effort(3, 60), |rng, _| {
        let model = draw_model(rng, 4);
        let source = state_of(&model);
        let mut stream = Vec::new();
        let done = source.latest().unwrap().export(&mut stream).unwrap();
        assert_eq!((done.accounts, done.bytes), (model.len() as u64, stream.len() as u64));

        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let mut import = open(&disk).unwrap();
        // An import that is interrupted is given the whole stream again.
        let cut = rng.index(stream.len());
        let interrupted = import.push_stream(&stream[..cut]);
        assert!(matches!(interrupted, Err(TransferError::Malformed { .. })));
        import.sync().unwrap();
        drop(import);
        let mut import = open(&disk).unwrap();
        let (block, read) = import.push_stream(&stream[..]).unwrap();
        assert_eq!((block, read), (source.tip().unwrap(), done));
        let finished = import.finish(block.height, block.hash, Some(block.root)).unwrap();
        let state = finished.0;
        check(&state, &model);
        let mut again = Vec::new();
        state.latest().unwrap().export(&mut again).unwrap();
        assert_eq!(again, stream);

        for _ in 0..by_effort(20, 200) {
            let mut damaged = stream.clone();
            let bit = rng.index(damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            let disk: Arc<dyn Disk> = MemoryDisk::new();
            let mut import = open(&disk).unwrap();
            assert!(import.push_stream(&damaged[..]).is_err(), "bit {bit}");
        }
    });
}

#[test]
fn a_stream_of_an_older_height_is_that_of_its_block() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let with_history: Options = options().history(true);
    let mut state = State::open(disk, Path::new(DIR), &with_history).unwrap();
    let mut streams = Vec::new();
    for_each_seed("a_stream_of_an_older_height_is_that_of_its_block", 1, |rng, _| {
        let mut model = Model::new();
        for branch in 0..5 {
            let steps = draw_block(rng, &model);
            apply(&mut model, &steps);
            drop(commit(&mut state, &steps, branch).unwrap());
            let mut stream = Vec::new();
            state.latest().unwrap().export(&mut stream).unwrap();
            streams.push(stream);
        }
    });
    for (height, expected) in streams.iter().enumerate() {
        let mut stream = Vec::new();
        state.at(height as u64).unwrap().export(&mut stream).unwrap();
        assert!(stream == *expected, "height {height}");
    }
}

/// Imports on a disk until it fails; returns whether the import was durable.
fn run(disk: &Arc<SimDisk>, entries: &Entries) -> bool {
    let shared: Arc<dyn Disk> = disk.clone();
    let import = || -> Result<()> {
        let mut import = open(&shared)?;
        push(&mut import, entries)?;
        let (state, committed) = import.finish(0, B256::ZERO, None)?;
        committed.ticket.wait().map_err(Error::from)?;
        state.close()
    };
    import().is_ok()
}

fn check_image(disk: &Arc<SimDisk>, model: &Model, was_durable: bool) {
    let shared: Arc<dyn Disk> = disk.clone();
    let state = match open(&shared) {
        Err(Error::NotEmpty) => chain::open(&shared).expect("a finished state opens"),
        import => {
            assert!(!was_durable);
            let mut import = import.expect("an import goes on after a crash");
            push(&mut import, &entries(model)).unwrap();
            import.finish(0, B256::ZERO, None).unwrap().0
        }
    };
    check(&state, model);
}

#[test]
fn an_import_goes_on_after_a_crash_or_a_fault_at_any_call() {
    let model = draw_model_with_slots();
    let entries = entries(&model);
    let images = Sweep::sampled(31, 40).one_in(5).crash(
        |disk| run(disk, &entries),
        |crash| {
            let was_durable = *crash.run;
            crash.images(Loss::each(crash.call), |image| {
                check_image(&image.disk, &model, was_durable);
            })
        },
    );
    assert!(6 <= images, "{images}");

    for kind in [FaultKind::Eio, FaultKind::Enospc] {
        let struck = Sweep::sampled(32, 40).one_in(5).fault(kind, None, |disk, _| {
            let was_durable = run(disk, &entries);
            disk.set_plan(FaultPlan::default());
            check_image(&disk.after_crash(Survival::Everything), &model, was_durable);
        });
        assert!(0 < struck);
    }
}

#[test]
fn tables_keep_the_configuration_that_they_were_made_with() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let config = TableConfig::default().compaction_thread(CompactionThread::Background);
    let options = options().tables(config.clone());
    let mut import = Import::open(Arc::clone(&disk), Path::new(DIR), &options).unwrap();
    import.push_account(B256::repeat_byte(1), &Account::new(1, U256::from(1))).unwrap();
    let (state, _) = import.finish(0, B256::ZERO, None).unwrap();
    state.close().unwrap();

    let mut state = chain::open(&disk).unwrap();
    state.rebuild().unwrap();
    for table in state.store().tables().unwrap() {
        let table = state.store().table(&table.name).unwrap();
        assert_eq!(*table.view().unwrap().config(), config);
    }
}
