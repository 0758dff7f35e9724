//! Trace events that a subscriber receives, and the statistics of a session on leaks.
//!
//! Goal: the sequence of events of a script is the one in `trace.txt`, to the last field. Method: a
//! subscriber of our own writes one line for each event; everything is on a simulated disk and on
//! this thread, so the lines are the same in every run. `TERRANE_GOLDEN=write` writes the file
//! anew.

use std::fmt::{Debug, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, Once};

use terrane_io::SimDisk;
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    CompactionSchedule, Session, SessionOptions, SnapshotName, Table, TableConfig, Update,
    WriteBuffer,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default, with_default};
use tracing::{Event, Metadata, Subscriber};

use crate::{SALT, name};

/// One line for each event: level, name, and fields.
#[derive(Debug, Default)]
struct Lines(Mutex<Vec<String>>);

#[derive(Default)]
struct Fields {
    session: String,
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "session" => self.session = format!("{value:?}"),
            "message" => self.message = format!("{value:?}"),
            name => write!(self.others, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "terrane_lsm"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        assert_eq!(fields.message, format!("{:?}", metadata.name()), "the name is the message");
        let level = metadata.level();
        let name = metadata.name();
        let others = fields.others;
        let line = format!("{level} {} {name}{others}", fields.session);
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The listener of all other threads, who wants nothing but to be asked. Without it, an event that
/// another test meets first, while nobody listens there, may be turned off for all.
struct Nobody;

impl Subscriber for Nobody {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs `script` and returns the lines of its events.
fn listen(script: impl FnOnce()) -> Vec<String> {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| set_global_default(Nobody).unwrap());
    let lines = Arc::new(Lines::default());
    with_default(Arc::clone(&lines), script);
    let lines = lines.0.lock().unwrap();
    lines.clone()
}

fn options() -> SessionOptions {
    SessionOptions::with_salt(SALT).create_dir()
}

fn config() -> TableConfig {
    TableConfig::default().size_ratio(2).write_buffer(WriteBuffer::Entries(4))
}

fn insert(table: &mut Table, numbers: std::ops::Range<u8>) {
    for number in numbers {
        table.insert(&[number], b"value").unwrap();
    }
}

fn updates_and_reads(session: &Session) {
    let mut table = session.new_table(&config()).unwrap();
    insert(&mut table, 0..21);
    let batch = [([1], Update::Delete), ([2], Update::Upsert(b"newer"))];
    table.write_batch(&batch).unwrap();

    // Refused: it begins and does not end.
    table.insert(&[0; 5_000], b"").unwrap_err();
    table.get(&[3]).unwrap();
    table.contains(&[[3], [99]]).unwrap();
    let copy = table.fork().unwrap();
    drop(table);
    let mut cursor = copy.range([5].as_slice()..[9].as_slice()).unwrap();
    cursor.next().transpose().unwrap();
    cursor.next_many(10).unwrap();
    drop(copy);
    cursor.prev().transpose().unwrap();
}

fn unions_and_options(session: &Session) {
    let mut left = session.new_table(&config()).unwrap();
    let mut right = session.new_table(&config()).unwrap();
    insert(&mut left, 0..3);
    insert(&mut right, 2..6);
    left.insert_with_blob(&[1], b"", b"blob").unwrap();
    let mut union = session.incremental_union(&[&left, &right]).unwrap();
    drop((left, right));
    assert!(union.remaining_union_debt() > 0);
    union.supply_union_credits(1_000).unwrap();

    union.set_config(&config().compaction_schedule(CompactionSchedule::OneShot)).unwrap();
    insert(&mut union, 10..20);
    let found = union.get(&[1]).unwrap();
    session.retrieve_blobs(&[found.blob().unwrap().clone()]).unwrap();
    assert_eq!(union.count_exact().unwrap(), 16);
}

fn snapshots(session: &Session) {
    let mut table = session.new_table(&config()).unwrap();
    insert(&mut table, 0..10);
    table.save_snapshot(&name("one"), "label").unwrap();
    drop(table);
    assert!(session.snapshot_exists(&name("one")).unwrap());
    session.rename_snapshot(&name("one"), &name("two")).unwrap();
    session.snapshot_info(&name("two")).unwrap();
    assert_eq!(session.list_snapshots().unwrap().len(), 1);
    session.open_snapshot(&name("two"), "another label").unwrap_err();
    let table = session.open_snapshot(&name("two"), "label").unwrap();
    let mut stream = Vec::new();
    table.export_canonical(&mut stream).unwrap();
    drop(table);
    session.import_canonical(stream.as_slice(), &config()).unwrap();
    session.export_snapshot(&name("two"), "/copy").unwrap();
    let copied = SnapshotName::new("copied").unwrap();
    session.import_snapshot("/copy", &name("two"), &copied).unwrap();
    session.delete_snapshot(&name("two")).unwrap();
}

#[test]
fn the_events_of_a_script_are_those_of_the_golden_file() {
    let heard = listen(|| {
        let disk = SimDisk::new(1);
        let open = || Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options());
        let session = open().unwrap();
        updates_and_reads(&session);
        unions_and_options(&session);
        snapshots(&session);
        session.close().unwrap();
        // The second time is none.
        session.close().unwrap();
        open().unwrap().close().unwrap();
    });

    let of_debug_builds = ["TRACE /session merge.", "TRACE /session table.flush"];
    let of_debug_builds = of_debug_builds.into_iter().chain([
        "TRACE /session table.level_added",
        "TRACE /session table.run_added",
        "TRACE /session table.union_folded",
    ]);

    let in_this_build = |line: &&str| {
        cfg!(debug_assertions) || !of_debug_builds.clone().any(|start| line.starts_with(start))
    };

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/trace.txt");
    let is_write = std::env::var("TERRANE_GOLDEN").is_ok_and(|mode| mode == "write");
    // Builds without debug assertions have some of the events only.
    if is_write && cfg!(debug_assertions) {
        std::fs::write(&path, heard.join("\n") + "\n").unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();

    let expected: Vec<&str> = golden.lines().filter(in_this_build).collect();
    for (at, line) in heard.iter().enumerate() {
        assert_eq!(Some(&line.as_str()), expected.get(at), "line {at}");
    }
    assert_eq!(heard.len(), expected.len());
}

/// A file that cannot be removed when its last user is dropped: nobody is there to be told but a
/// listener, and the closing of the session.
#[test]
fn a_failed_removal_in_a_drop_is_told() {
    let heard = listen(|| {
        let disk = SimDisk::new(1);
        let session = Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options());
        let session = session.unwrap();
        let mut table = session.new_table(&config()).unwrap();
        insert(&mut table, 0..10);
        let fault = FaultPlan::fail(disk.calls(), FaultKind::Eio, Repeat::Once);
        disk.set_plan(fault);
        drop(table);
        assert_eq!(disk.faults(), 1);
        session.close().unwrap_err();
    });

    let warnings: Vec<_> = heard.iter().filter(|line| line.starts_with("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let warning = warnings[0];
    assert!(warning.starts_with("WARN /session cleanup.failed error="), "{warning}");
    assert!(warning.contains(".run"), "{warning}");
}
