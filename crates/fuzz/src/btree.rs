//! Targets of the B+tree: files and histories.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use terrane_btree::{Config, Index, Update, check, repair};
use terrane_io::{Disk, Loss, SimDisk, Survival};

use crate::input::Input;

const DIR: &str = "/index";

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn config() -> Config {
    let mut config = Config::variable().memory_bytes(1 << 20).buffer_bytes(4_000);
    config.log_bytes_max = 1 << 16;
    config
}

fn open(disk: &Arc<SimDisk>) -> terrane_btree::Result<Index> {
    Index::open_or_create(disk.clone() as Arc<dyn Disk>, Path::new(DIR), &config())
}

/// Keys that share prefixes; a few are long.
fn key_of(number: u16) -> Vec<u8> {
    let mut key = format!("account/{}/{}", number % 7, number % 500).into_bytes();
    if number.is_multiple_of(50) {
        key.resize(300, b'x');
    }
    key
}

fn content_of(index: &Index) -> terrane_btree::Result<Content> {
    index.iter()?.collect()
}

static FILES: LazyLock<(Arc<SimDisk>, Content)> = LazyLock::new(|| {
    let disk = SimDisk::new(1);
    let index = open(&disk).expect("a new index");
    let mut content = Content::new();
    for number in 0..400_u16 {
        let (key, value) = (key_of(number), vec![number as u8; usize::from(number % 60)]);
        index.replace(&key, &value).expect("sound");
        content.insert(key, value);
        if number == 300 {
            index.checkpoint().expect("sound");
        }
    }
    index.flush(true).expect("sound");
    let disk = disk.process_kill();
    drop(index);
    (disk, content)
});

/// An index with changed files is refused, or what is read of it was written; it is checked and
/// repaired without a panic.
pub(crate) fn btree_files(data: &[u8]) {
    let (disk, content) = &*FILES;
    let sim = disk.clone_disk();
    Input(data).damage_files(&sim, Path::new(DIR));
    let disk: Arc<dyn Disk> = sim.clone();

    drop(check(&disk, Path::new(DIR), &mut |_, _| {}));
    if let Ok(index) = open(&sim.clone_disk()) {
        for (key, value) in content.iter().take(20) {
            if let Ok(Some(found)) = index.find(key) {
                assert!(cfg!(fuzzing) || found == *value, "wrong data was read");
            }
        }
        drop(content_of(&index));
    }
    drop(repair(&disk, Path::new(DIR), Loss::Accepted, |_, _| {}));
}

/// Operations, checkpoints and crashes; what was committed durably is there.
pub(crate) fn btree_history(data: &[u8]) {
    let mut input = Input(data);
    let mut disk = SimDisk::new(1);
    let mut index = open(&disk).expect("a new index");
    let mut content = Content::new();

    for _ in 0..96 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..10 => {
                let mut entries = Content::new();
                let mut removed = Vec::new();
                for _ in 0..=input.index(10) {
                    let key = key_of(input.u16());
                    if input.byte().is_multiple_of(3) {
                        removed.push(key);
                    } else {
                        entries.insert(key, vec![input.byte(); input.index(256) * 3]);
                    }
                }
                removed.sort_unstable();
                removed.dedup();
                removed.retain(|key| !entries.contains_key(key));
                let updates: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| Update::Replace(key, value))
                    .chain(removed.iter().map(|key| Update::Remove(key)))
                    .collect();
                let position = index.commit(&updates).expect("sound");
                index.sync_to(position).expect("sound");
                content.extend(entries);
                for key in &removed {
                    content.remove(key);
                }
            }
            10 => index.checkpoint().expect("sound"),
            11 => index.flush(input.byte().is_multiple_of(2)).expect("sound"),
            12 => {
                let key = key_of(input.u16());
                assert_eq!(index.find(&key).expect("sound").as_ref(), content.get(&key));
            }
            13 => {
                index.close().expect("sound");
                index = open(&disk).expect("sound");
            }
            _ => {
                let crashed = disk.after_crash(Survival::Random(input.byte().into()));
                drop(index);
                disk = crashed;
                index = open(&disk).expect("a crash leaves a sound index");
                assert!(content_of(&index).expect("sound") == content, "a durable commit is lost");
            }
        }
    }
    assert!(content_of(&index).expect("sound") == content, "the index is the map");
}
