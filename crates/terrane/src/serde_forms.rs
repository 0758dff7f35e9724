//! JSON forms of the types with `serde`, which are a promise.
//!
//! Method: each type against its JSON, both ways.

use std::fmt::Debug;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{from_str, json, to_value};

use crate::{btree, context, kv, lsm, radix};
use terrane_io::{Durability, ErrorKind};

/// A value is written as this JSON, and the JSON is read as a value that is written the same.
fn check<T: Serialize + DeserializeOwned + Debug>(value: &T, json: &serde_json::Value) {
    assert_eq!(to_value(value).unwrap(), *json, "{value:?}");
    let read: T = from_str(&json.to_string()).unwrap();
    assert_eq!(format!("{read:?}"), format!("{value:?}"), "{json}");
}

/// The text is refused, with a message that says this.
fn refuse<T: DeserializeOwned + Debug>(json: &str, says: &str) {
    let error = from_str::<T>(json).unwrap_err().to_string();
    assert!(error.contains(says), "{json}: {error}");
}

#[test]
fn words_are_those_of_commands() {
    for durability in [Durability::None, Durability::Buffered, Durability::Group, Durability::Each]
    {
        check(&durability, &json!(durability.name()));
    }
    for kind in [
        ErrorKind::InvalidInput,
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::Corrupt,
        ErrorKind::Locked,
        ErrorKind::Conflict,
        ErrorKind::NoSpace,
        ErrorKind::Permission,
        ErrorKind::ReadOnly,
        ErrorKind::Unsupported,
        ErrorKind::Closed,
        ErrorKind::Poisoned,
        ErrorKind::Interrupted,
        ErrorKind::Io,
    ] {
        check(&kind, &json!(kind.name()));
    }
    check(&terrane_io::Access::Direct, &json!("direct"));
    check(&terrane_io::QueueKind::Threads, &json!("threads"));
    check(&context::Indexing::Always, &json!("always"));
    check(&context::Kind::Directory, &json!("directory"));
    check(&radix::Order::Descending, &json!("descending"));
    check(&btree::Duplicates::LastWins, &json!("last_wins"));
}

#[test]
fn configurations_of_tables_have_a_stable_form() {
    let config = lsm::TableConfig::default();
    let form = json!({
        "merge_operator": "terrane.newest",
        "compaction_policy": "lazy_levelling",
        "size_ratio": 4,
        "compaction_schedule": "incremental",
        "compaction_thread": "caller",
        "write_buffer": {"bytes": 4_194_304},
        "filter": {"total_fpr": 0.01},
        "prefix_bytes": null,
        "memory_budget": null,
        "memory_goal": "balanced",
        "index": "auto",
        "disk_cache": "all",
        "compression": "none",
        "compressed_levels": {"from": 2},
        "compaction_batch_pages": 16,
        "queue_depth": 128,
    });
    check(&config, &form);
    assert_eq!(from_str::<lsm::TableConfig>("{}").unwrap(), config, "absent fields are defaults");

    let levels = vec![lsm::LevelFilter::Ribbon(8), lsm::LevelFilter::BitsPerEntry(12.5)];
    let config = config
        .merge_operator(lsm::MergeOperator::max())
        .filter(lsm::FilterPolicy::PerLevel(levels))
        .disk_cache(lsm::DiskCache::LevelsUpTo(2))
        .compression(lsm::Compression::Lz4)
        .compressed_levels(lsm::CompressedLevels::Last);
    let written = to_value(&config).unwrap();
    assert_eq!(written["filter"], json!({"per_level": [{"ribbon": 8}, {"bits_per_entry": 12.5}]}));
    assert_eq!(written["disk_cache"], json!({"levels_up_to": 2}));
    assert_eq!(
        (&written["compression"], &written["compressed_levels"]),
        (&json!("lz4"), &json!("last"))
    );
    check(&config, &written);

    refuse::<lsm::TableConfig>(r#"{"merge_operator": "mine"}"#, "not a ready-made merge operator");
    refuse::<lsm::TableConfig>(r#"{"disk_cache": "some"}"#, "unknown variant");

    let options = lsm::StoreOptions::default().durability(Durability::Each).log_bytes_max(1 << 20);
    let form = json!({
        "session": {
            "salt": null, "create_dir": false, "open_files_max": 128, "reserve_bytes": null,
            "memory_budget": null,
        },
        "durability": "each",
        "log_bytes_max": 1_048_576,
        "checkpoint_thread": "background",
        "merge_operators": [],
        "write_set_bytes_max": null,
    });
    check(&options, &form);
}

#[test]
fn configurations_of_the_other_engines_have_a_stable_form() {
    let form = json!({
        "key_bytes": 32, "value_bytes": 8, "memory_bytes": 1_048_576, "buffer_bytes": null,
        "log_bytes_max": 134_217_728, "batch_bytes_max": null,
    });
    check(&btree::Config::fixed(32, 8).memory_bytes(1 << 20), &form);
    let form = json!({
        "dir": "/tmp/sort", "input_identity": 7, "memory_bytes": 268_435_456, "fan_in": 15,
        "duplicates": "last_wins", "input_bytes": null,
    });
    check(&btree::SortOptions::new(Path::new("/tmp/sort"), 7), &form);
    let form = json!({"cache_bytes": 1024, "threads": 2});
    check(&radix::Options::default().cache_bytes(1024).threads(2), &form);
    let form = json!({"keep_fork_points": true, "list": false});
    check(&radix::PruneOptions::default().keep_fork_points(true), &form);
    let form = json!({"scheme": "tezos", "branching": 32, "flat_limit": 256});
    check(&context::Rules::TEZOS, &form);
}

#[test]
fn names_addresses_and_hashes_are_their_texts() {
    check(&lsm::TableName::new("accounts").unwrap(), &json!("accounts"));
    check(&lsm::SnapshotName::new("at-7").unwrap(), &json!("at-7"));
    refuse::<lsm::TableName>(r#""No Name""#, "is not a table name");
    refuse::<lsm::SnapshotName>(r#""a/b""#, "is not a snapshot name");

    check(&radix::Address::new(&[0xAB, 0x01]).unwrap(), &json!("ab01"));
    check(&radix::Prefix::EMPTY, &json!(""));
    check(&radix::NodeHash::default(), &json!(radix::NodeHash::EMPTY.to_string()));
    refuse::<radix::Address>(r#""""#, "it is empty");
    refuse::<radix::NodeHash>(r#""12""#, "2 characters");

    let hash = context::Hash([7; 32]);
    check(&hash, &json!(hash.to_base58()));
    refuse::<context::Hash>(r#""CoXX""#, "characters");
    check(&context::Address { chunk: 3, unit: 5 }, &json!({"chunk": 3, "unit": 5}));

    let commit = context::Commit {
        hash,
        root: hash,
        parents: vec![hash],
        date: -1,
        author: b"a".to_vec(),
        message: Vec::new(),
    };
    let text = hash.to_base58();
    let form = json!({
        "hash": text, "root": text, "parents": [text], "date": -1, "author": [97], "message": [],
    });
    check(&commit, &form);
}

#[test]
fn statistics_and_infos_are_written_field_by_field() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir().unwrap();
    let options = lsm::StoreOptions::default().create_dir();
    let store = lsm::Store::open_dir(folder.path().join("store"), &options)?;
    let name = lsm::TableName::new("t")?;
    let table = store.create_table(&name, &lsm::TableConfig::default())?;
    table.insert(b"key", b"value")?.wait()?;
    table.get(b"key")?;
    table.save_snapshot(&lsm::SnapshotName::new("saved")?, "label")?;
    store.retain(None)?;

    let stats = table.stats()?;
    let form = to_value(&stats).unwrap();
    assert_eq!((&form["buffer_entries"], &form["updates"]), (&json!(1), &json!(1)));
    check(&stats, &form);
    let stats = store.session().stats();
    let form = to_value(&stats).unwrap();
    assert_eq!(form["snapshots"], json!(1));
    check(&stats, &form);

    let info = store.session().snapshot_info(&lsm::SnapshotName::new("saved")?)?;
    let form = to_value(&info).unwrap();
    assert_eq!((&form["name"], &form["label"]), (&json!("saved"), &json!("label")));
    check(&info, &form);
    let tables = store.tables()?;
    check(
        &tables[0],
        &json!({"name": "t", "config": to_value(lsm::TableConfig::default()).unwrap()}),
    );
    let versions = store.versions()?;
    check(&versions[0], &json!({"number": 1, "name": null, "tables": ["t"]}));
    store.close()?;

    let database = kv::open("memory:", &[])?;
    let guarantee = database.guarantee();
    let form = to_value(&guarantee).unwrap();
    assert_eq!((&form["durability"], &form["power_loss"]), (&json!("none"), &json!("no_promise")));
    check(&guarantee, &form);
    check(&kv::Receipt(3), &json!(3));

    refuse::<lsm::Latencies>(
        &json!({"counts": vec![1; 1_000], "sum_ns": 1}).to_string(),
        "not a latency histogram",
    );
    check(&btree::Stats::default(), &to_value(btree::Stats::default()).unwrap());
    check(&btree::SortStats::default(), &to_value(btree::SortStats::default()).unwrap());
    check(&context::Stats::default(), &to_value(context::Stats::default()).unwrap());
    check(&context::GcReport::default(), &to_value(context::GcReport::default()).unwrap());
    check(&terrane_io::Counts::default(), &to_value(terrane_io::Counts::default()).unwrap());
    Ok(())
}

/// Returns the JSON of a value.
fn written<T: Serialize>(value: &T) -> serde_json::Value {
    to_value(value).unwrap()
}

/// A store with a table and a snapshot, of which a run is damaged.
fn damaged_store(dir: &Path) -> Result<std::path::PathBuf, Box<dyn std::error::Error>> {
    let options = lsm::StoreOptions::default().create_dir();
    let store = lsm::Store::open_dir(dir, &options)?;
    let table = store.create_table(&lsm::TableName::new("t")?, &lsm::TableConfig::default())?;
    let keys: Vec<[u8; 4]> = (0..2_000_u32).map(u32::to_be_bytes).collect();
    let updates: Vec<(&[u8], lsm::Update<'_>)> =
        keys.iter().map(|key| (&key[..], lsm::Update::Insert(b"value"))).collect();
    table.write_batch(&updates)?.wait()?;
    table.save_snapshot(&lsm::SnapshotName::new("saved")?, "label")?;
    store.close()?;

    let files = std::fs::read_dir(dir.join("active"))?.map(|entry| entry.map(|e| e.path()));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let is_run = |path: &&std::path::PathBuf| path.extension().is_some_and(|end| end == "run");
    let run = files.iter().find(is_run).ok_or("no run")?.clone();
    let mut bytes = std::fs::read(&run)?;
    bytes[100] ^= 1;
    std::fs::write(&run, bytes)?;
    Ok(run)
}

#[test]
fn reports_of_checks_and_repairs_are_written_field_by_field()
-> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("store");
    let run = damaged_store(&dir)?;
    let disk: std::sync::Arc<dyn terrane_io::Disk> = terrane_io::RealDisk::auto();

    let report = lsm::verify::verify(&disk, &dir, &mut |_, _| {})?;
    let form = written(&report);
    assert_eq!(form["problems"][0]["path"], json!(run));
    assert_eq!(form["problems"][0]["tables"], json!(["t"]));
    check(&report, &form);
    let salvaged = lsm::salvage::salvage(&disk, &dir, &folder.path().join("new"), &mut |_, _| {})?;
    let form = written(&salvaged);
    assert_eq!(form["tables"][0]["name"], json!("t"));
    assert!(form["lost"][0]["what"]["entries"]["pages"].is_u64(), "{form}");
    check(&salvaged, &form);

    let inspected = lsm::inspect::inspect(&disk, &dir)?;
    let form = written(&inspected);
    let snapshot = &form["session"]["snapshots"][0];
    assert_eq!((&snapshot["name"], &snapshot["info"]["label"]), (&json!("saved"), &json!("label")));
    let lsm::inspect::Inspection::Session(session) = inspected else { panic!("{inspected:?}") };
    let store = session.store.ok_or("no tables")?;
    let form = written(&store);
    assert_eq!(form["manifest"]["tables"][0]["name"], json!("t"));
    check(&store, &form);
    Ok(())
}

#[test]
fn reports_of_the_other_engines_are_written_field_by_field() {
    let hash = context::Hash([7; 32]);
    let report = context::CheckReport {
        problems: vec![context::Problem {
            path: "chunk-00000000".into(),
            address: Some(context::Address { chunk: 0, unit: 8 }),
            tree_path: None,
            what: "rule".to_owned(),
        }],
        problem_count: 1,
        ..context::CheckReport::default()
    };
    let form = written(&report);
    let problem = json!({
        "path": "chunk-00000000", "address": {"chunk": 0, "unit": 8}, "tree_path": null,
        "what": "rule",
    });
    assert_eq!((&form["problems"][0], &form["kinds"]["values"]["count"]), (&problem, &json!(0)));
    check(&report, &form);
    let lost = context::Lost {
        commit_count: 1,
        commits: vec![hash],
        branches: vec![(b"a".to_vec(), None)],
        ..context::Lost::default()
    };
    let report = context::RepairReport { lost: Some(lost), ..context::RepairReport::default() };
    let form = written(&report);
    assert_eq!(form["lost"]["commits"], json!([hash.to_base58()]));
    assert_eq!(form["lost"]["branches"], json!([[[97], null]]));
    check(&report, &form);

    let problem = radix::Problem { place: "tree".to_owned(), rule: "rule".to_owned() };
    let report = radix::Report { versions: 1, nodes: 2, problems: vec![problem] };
    let form = json!({
        "versions": 1, "nodes": 2, "problems": [{"place": "tree", "rule": "rule"}],
    });
    check(&report, &form);
    check(&radix::Repaired::default(), &written(&radix::Repaired::default()));

    let form = written(&btree::CheckReport::default());
    assert_eq!((&form["problems"], &form["leaf_fill"]), (&json!([]), &json!(0.0)));
    check(&btree::RepairReport::default(), &written(&btree::RepairReport::default()));
}
