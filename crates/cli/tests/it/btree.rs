//! B+trees from outside: `terrane bench index`, `inspect` and `verify`.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use terrane::btree::{Config, Index};
use terrane::io::{Disk, RealDisk};
use terrane::lsm::PAGE_SIZE;

use crate::program::{Answer, Place, command, interrupted, text};
use crate::schema::{faults, schema};
use crate::store::inspect;

fn index(what: &[&str], options: &[&str]) -> Answer {
    let mut bench = command();
    bench.args(["bench", "index"]).args(what).arg("--quiet").args(options);
    bench.output().unwrap().into()
}

fn verify(dir: &Path, options: &[&str]) -> Answer {
    command().arg("verify").arg(dir).args(options).output().unwrap().into()
}

fn check_schema(report: &Value) {
    let found = faults(&schema("bench-index.json"), report, "$");
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn engines_are_compared_with_equal_results() {
    let place = Place::new();
    let store = place.store();
    let common = ["--store", text(&store), "--memory-budget", "4MiB", "--sample", "200", "--json"];
    let engines = ["--engine", "btree,lsm,memory"];
    let options = [&common[..], &engines, &["--entries", "3k", "--batch", "100"]].concat();
    let report = index(&["high-insert"], &options).done();
    check_schema(&report);
    assert_eq!(report["command"], "bench index high-insert");
    assert_eq!(
        (&report["status"], &report["memory"]["memory_enforced"]),
        (&"complete".into(), &false.into())
    );
    let hashes = |report: &Value| -> Vec<Value> {
        report["engines"].as_array().unwrap().iter().map(|e| e["result_hash"].clone()).collect()
    };
    let found = hashes(&report);
    assert!(found.len() == 3 && found.iter().all(|hash| *hash == found[0]), "{found:?}");
    let options = [&common[..], &engines, &["--entries", "2k", "--ops", "1k"]].concat();
    let report = index(&["bootstrap"], &options).done();
    check_schema(&report);
    let found = hashes(&report);
    assert!(found.len() == 3 && found.iter().all(|hash| *hash == found[0]), "{found:?}");
    let people = index(&["high-insert"], &["--store", text(&store), "--entries", "500"]);
    assert!(people.code == Some(0) && people.stdout.contains("a durable flush"), "{people:?}");
}

#[test]
fn lmdb_is_measured_beside_the_btree() {
    let place = Place::new();
    let store = place.store();
    let options = ["--store", text(&store), "--engine", "lmdb,btree", "--entries", "2k", "--json"];
    let report = index(&["high-insert"], &options).done();
    check_schema(&report);
    assert_eq!(report["engines"][0]["result_hash"], report["engines"][1]["result_hash"]);
    assert!(report["warnings"][0].as_str().unwrap().contains("--memory-limit"), "{report}");
}

/// The report covers the measurement until then, with the exit code of an interruption.
#[test]
fn ctrl_c_ends_a_run_with_a_report_of_what_was_measured() {
    let place = Place::new();
    let store = place.store();
    let mut child = command();
    child.args(["bench", "index", "high-insert", "--store", text(&store), "--engine", "btree,lsm"]);
    child.args(["--entries", "1G", "--memory-budget", "4MiB", "--json"]);
    // Opening takes a small part of that time of the processor, and all inserts thousands of times
    // as much.
    let answer = interrupted(child, 50);
    assert_eq!(answer.failed(130), "interrupted");
    let report = answer.json();
    check_schema(&report);
    assert_eq!(report["status"], "interrupted");
    let engines = report["engines"].as_array().unwrap();
    let ops = engines[0]["ops"].as_u64().unwrap();
    assert!(engines.len() == 1 && ops > 0 && ops < 1_000_000_000, "{ops}");
    assert!(engines[0].get("check").is_none(), "{report}");
    assert!(!store.join("btree").exists(), "nothing is left");
}

#[test]
fn bad_requests_are_refused() {
    let place = Place::new();
    let store = place.store();
    let store = ["--store", text(&store), "--json"];
    let missing = [&store[..], &["/nonexistent/trace"]].concat();
    assert!(index(&["replay"], &missing).failed(2).contains("/nonexistent/trace"));
    let noise = place.write("noise", &[0xFF; 64]);
    index(&["replay", text(&noise)], &store).failed(2);
    index(&["high-insert"], &[&store[..], &["--entries", "0"]].concat()).failed(2);
    index(&["high-insert"], &[&store[..], &["--engine", "sqlite"]].concat()).failed(2);
    let small = ["--memory-budget", "1KiB", "--entries", "10"];
    index(&["high-insert"], &[&store[..], &small].concat()).failed(2);
}

/// An index of 3,000 entries that nobody has open, with its directory.
fn sample(place: &Place) -> std::path::PathBuf {
    let dir = place.path("index");
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let config = Config::fixed(8, 4).memory_bytes(1 << 20);
    let index = Index::create(disk, &dir, &config).unwrap();

    for number in 0..3_000_u32 {
        index.replace(format!("{:08}", number * 7).as_bytes(), &number.to_le_bytes()).unwrap();
    }

    index.checkpoint().unwrap();
    index.filter(|_, _| true).unwrap();
    index.replace(b"99999999", &[7; 4]).unwrap();
    index.close().unwrap();

    dir
}

#[test]
fn an_index_is_shown_with_its_levels_its_log_and_its_pages() {
    let place = Place::new();
    let dir = sample(&place);
    let json = inspect(&dir, &["--json"]).done();
    assert_eq!((&json["kind"], &json["format_version"]), (&"btree".into(), &2.into()));
    assert_eq!((&json["entries"], &json["key_bytes"]), (&3_001.into(), &8.into()));
    let levels = json["level_pages"].as_array().unwrap();
    assert_eq!(levels.len() as u64, json["height"].as_u64().unwrap() + 1);
    let file = inspect(&dir.join("tree"), &["--json"]).done();
    assert_eq!((&file["kind"], &file["entries"]), (&json["kind"], &json["entries"]));
    let people = inspect(&dir, &[]);
    assert!(people.code == Some(0) && people.stdout.contains("pages by level"), "{people:?}");

    let pages = json["file_bytes"].as_u64().unwrap() / PAGE_SIZE as u64;
    let mut kinds = Vec::new();
    let mut keys = 0;

    for number in 0..pages {
        let answer = inspect(&dir.join("tree"), &["--json", "--page", &number.to_string()]);
        if answer.code == Some(0) {
            let page = answer.json();
            assert_eq!((&page["kind"], &page["page"]), (&"btree_page".into(), &number.into()));
            kinds.push(page["page_kind"].as_str().unwrap().to_owned());
            keys += page["entries"].as_array().map_or(0, Vec::len);
        }
    }

    for kind in ["superblock", "leaf", "inner", "map", "map_list"] {
        assert!(kinds.iter().any(|found| found == kind), "no {kind} in {kinds:?}");
    }

    assert!(keys >= 3_000, "{keys}");
    assert!(inspect(&dir, &["--json", "--page", "2"]).failed(2).contains("tree"));
    inspect(&dir.join("tree"), &["--json", "--page", "4294967295"]).failed(1);
}

#[test]
fn the_constants_of_its_formats_are_printed() {
    let json = inspect(Path::new("constants"), &["--json"]).done();
    assert_eq!(json["constants"]["BTREE_SUPERBLOCK_MAGIC"], "TerraBTr");
    assert_eq!(json["constants"]["BTREE_PAGE_SIZE"], PAGE_SIZE.to_string());
}

/// The inner page that leads to the leaves of an index, and the second of them.
fn inner_and_leaf(tree: &Path) -> (usize, usize) {
    let pages = std::fs::metadata(tree).unwrap().len() as usize / PAGE_SIZE;
    let mut inner = (2..pages).filter_map(|number| {
        let page = inspect(tree, &["--json", "--page", &number.to_string()]).json();
        Some((number, page["children"][1]["page"].as_u64()? as usize))
    });
    inner.next().unwrap()
}

fn flip_bit_of(tree: &Path, page: usize) {
    let mut bytes = std::fs::read(tree).unwrap();
    bytes[page * PAGE_SIZE + 100] ^= 1;
    std::fs::write(tree, bytes).unwrap();
}

#[test]
fn a_whole_index_passes_and_a_damaged_one_is_told_page_by_page() {
    let place = Place::new();
    let dir = sample(&place);
    let json = verify(&dir, &["--json"]).done();
    assert_eq!((&json["left"], &json["entries"]), (&0.into(), &3_001.into()));
    assert!(verify(&dir, &[]).stdout.contains("no problem"));
    let tree = dir.join("tree");
    let (_, leaf) = inner_and_leaf(&tree);
    flip_bit_of(&tree, leaf);
    let answer = verify(&dir, &["--json"]);
    answer.failed(1);
    let json = answer.json();
    let problem = &json["problems"][0];
    assert_eq!(problem["offset_bytes"], leaf * PAGE_SIZE);
    assert!(problem["from_hex"].as_str().is_some_and(|key| !key.is_empty()), "{problem}");
    assert_eq!((&problem["repaired"], &json["repair"]), (&false.into(), &Value::Null));
    let people = verify(&dir, &[]);
    assert_eq!(people.code, Some(1));
    assert!(people.stdout.contains("crc") && people.stdout.contains("keys from"), "{people:?}");
    inspect(&tree, &["--json", "--page", &leaf.to_string()]).failed(1);
}

#[test]
fn inner_pages_are_repaired_from_leaves_without_loss() {
    let place = Place::new();
    let dir = sample(&place);
    let tree = dir.join("tree");
    let (inner, _) = inner_and_leaf(&tree);
    flip_bit_of(&tree, inner);
    let answer = verify(&dir, &["--json"]);
    answer.failed(1);
    assert_eq!(answer.json()["problems"][0]["offset_bytes"], inner * PAGE_SIZE);

    let json = verify(&dir, &["--repair", "--json"]).done();
    let problem = &json["problems"][0];
    assert_eq!(
        (&problem["offset_bytes"], &problem["repaired"]),
        (&(inner * PAGE_SIZE).into(), &true.into())
    );
    assert_eq!(json["repaired"], json["problems"].as_array().unwrap().len());
    assert_eq!((&json["left"], &json["entries"]), (&0.into(), &3_001.into()));
    let repair = &json["repair"];
    assert_eq!((&repair["entries"], &repair["leaves_kept"]), (&3_001.into(), &json["leaves"]));
    assert_eq!((&repair["stale"], &repair["lost"]), (&json!([]), &json!([])));
    assert!(repair["pages_scanned"].as_u64() > repair["leaves_kept"].as_u64(), "{repair}");
    assert_eq!(repair["pages_damaged"], 1);

    let json = verify(&dir, &["--json"]).done();
    assert_eq!((&json["problems"], &json["entries"]), (&json!([]), &3_001.into()));
    let again = verify(&dir, &["--repair", "--json"]).done();
    assert_eq!((&again["repaired"], &again["repair"]), (&0.into(), &Value::Null));
    let index = Index::open(RealDisk::auto(), &dir, &Config::fixed(8, 4)).unwrap();

    for number in 0..3_000_u32 {
        let found = index.find(format!("{:08}", number * 7).as_bytes()).unwrap();
        assert_eq!(found, Some(number.to_le_bytes().to_vec()), "{number}");
    }

    assert_eq!(index.find(b"99999999").unwrap(), Some(vec![7; 4]));
}

#[test]
fn keys_of_a_damaged_leaf_are_left_as_a_problem_of_its_repair() {
    let place = Place::new();
    let dir = sample(&place);
    let tree = dir.join("tree");
    flip_bit_of(&tree, inner_and_leaf(&tree).1);
    let before = std::fs::read(&tree).unwrap();
    let refused = verify(&dir, &["--repair", "--json"]);
    assert!(refused.failed(1).contains("left"), "{refused:?}");
    assert_eq!(refused.json()["repair"]["was_refused"], true);
    assert!(std::fs::read(&tree).unwrap() == before, "nothing was done");
    let answer = verify(&dir, &["--repair", "--accept-loss", "--json"]);
    assert!(answer.failed(1).contains("left"), "{answer:?}");
    let json = answer.json();
    let ranges = ["stale", "lost"].map(|kind| json["repair"][kind].as_array().unwrap().len());
    assert_eq!((ranges[0] + ranges[1], &json["left"]), (1, &1.into()));
    assert_eq!((&json["repaired"], &json["problems"][0]["repaired"]), (&0.into(), &false.into()));
    assert_eq!(json["problems"].as_array().unwrap().len(), 1);
    verify(&dir, &["--json"]).done();
}

#[test]
fn both_superblocks_are_repaired() {
    let place = Place::new();
    let dir = sample(&place);
    let tree = dir.join("tree");
    let mut bytes = std::fs::read(&tree).unwrap();
    bytes[..2 * PAGE_SIZE].fill(0);
    std::fs::write(&tree, bytes).unwrap();
    verify(&dir, &["--json"]).failed(1);
    let json = verify(&dir, &["--repair", "--json"]).done();
    assert_eq!((&json["repaired"], &json["left"]), (&1.into(), &0.into()));
    let people = verify(&dir, &["--repair"]);
    assert!(people.code == Some(0) && people.stdout.contains("3,001 entries"), "{people:?}");
}

#[test]
fn an_index_that_is_being_written_is_not_repaired() {
    let place = Place::new();
    let dir = sample(&place);
    let tree = dir.join("tree");
    flip_bit_of(&tree, inner_and_leaf(&tree).0);
    let _open = Index::open(RealDisk::auto(), &dir, &Config::fixed(8, 4)).unwrap();
    assert!(verify(&dir, &["--repair", "--json"]).failed(3).contains("being written"));
}

fn entries(dir: &Path, arguments: &[&str]) -> Answer {
    command().args(arguments).arg("--store").arg(dir).output().unwrap().into()
}

/// Returns the standard output of a successful call.
fn written(dir: &Path, arguments: &[&str]) -> String {
    let answer = entries(dir, arguments);
    assert_eq!((answer.code, &*answer.stderr), (Some(0), ""), "{answer:?}");
    answer.stdout
}

#[test]
fn entries_of_an_index_are_read_beside_a_writer() {
    let place = Place::new();
    let dir = sample(&place);
    let index = Index::open(RealDisk::auto(), &dir, &Config::fixed(8, 4)).unwrap();
    index.replace(b"text-key", b"text").unwrap();
    index.remove(b"00000007").unwrap();
    index.flush(false).unwrap();
    index.replace(b"unsaid..", b"text").unwrap();

    assert_eq!(written(&dir, &["get", "text-key"]), "text\n");
    assert_eq!(written(&dir, &["get", "99999999", "--raw"]).as_bytes(), [7; 4]);
    let answer = entries(&dir, &["get", "text-key", "00000007", "--json"]);
    assert_eq!(answer.code, Some(1));
    let json = answer.json();
    assert_eq!((&json["table"], &json["error"]["kind"]), (&Value::Null, &"not_found".into()));
    assert_eq!(json["entries"][0]["value"], "text");
    assert_eq!(
        (&json["entries"][1]["found"], &json["entries"].as_array().unwrap().len()),
        (&false.into(), &2)
    );

    assert_eq!(written(&dir, &["count"]), "3001\n");
    assert_eq!(written(&dir, &["count", "--prefix", "0000"]), "1428\n");
    assert_eq!(written(&dir, &["count", "--from", "00000014", "--to", "00000028"]), "2\n");
    let ends = "text-key\ttext\n99999999\thex:07070707\n";
    assert_eq!(written(&dir, &["scan", "--reverse", "--limit", "2"]), ends);
    let low = "00000000\thex:00000000\n00000014\thex:02000000\n";
    assert_eq!(written(&dir, &["scan", "--to", "00000021"]), low);
    let json = entries(&dir, &["scan", "--prefix", "0000999", "--reverse", "--json"]).done();
    let keys: Vec<&str> =
        json["entries"].as_array().unwrap().iter().map(|e| e["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["00009996"]);
    assert_eq!((&json["count"], &json["entries"][0]["blob"]), (&1.into(), &Value::Null));

    for arguments in [&["count", "--table", "other"][..], &["scan", "--version", "1"]] {
        let refused = entries(&dir, &[arguments, &["--json"]].concat()).failed(2);
        assert!(refused.contains("B+tree"), "{refused}");
    }

    for arguments in [&["put", "text-key", "news"][..], &["delete", "text-key"]] {
        let refused = entries(&dir, &[arguments, &["--json"]].concat()).failed(3);
        assert!(refused.contains("is being written to by another"), "{refused}");
    }
}
