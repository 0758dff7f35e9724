//! The log by itself, on the simulated disk.

use terrane_io::SimDisk;
use terrane_io::Survival;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use super::*;
use crate::page::leaf::Sizes;

const TREE: u64 = 99;

const OWNER: Owner = Owner { tree: TREE, sizes: Sizes { key: None, value: None } };

/// A log in a directory of its own, durable.
fn create(disk: &Arc<dyn Disk>, segment_bytes: u64) -> Wal {
    let dir = Path::new("/i");
    disk.create_dir(dir).unwrap();
    disk.create_dir(&dir.join(LOG_DIR)).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk.sync_dir(dir).unwrap();
    Wal::create(disk, dir, OWNER, 0, segment_bytes).unwrap()
}

fn body(number: u64) -> FrameBody {
    let mut body = FrameBody::default();
    body.push(&number.to_le_bytes(), (!number.is_multiple_of(3)).then_some(b"value"));
    body
}

fn read_all(disk: &Arc<dyn Disk>, must_reach: u64) -> Result<(Wal, Vec<u64>)> {
    let mut found = Vec::new();
    let wal = Wal::recover(disk, Path::new("/i"), TREE, (0, must_reach), 300, |frame| {
        for update in frame.updates() {
            let (key, value) = update.unwrap();
            let number = u64::from_le_bytes(key.try_into().unwrap());
            assert_eq!(value.is_some(), !number.is_multiple_of(3));
            found.push(number);
        }
        Ok(())
    })?;
    Ok((wal, found))
}

#[test]
fn what_was_synced_is_read_again_and_what_follows_is_a_prefix() {
    for_each_seed("what_was_synced_is_read_again", 60, |rng, seed| {
        let disk = SimDisk::new(seed);
        let dir = Path::new("/i");
        let shared: Arc<dyn Disk> = disk.clone();
        let mut wal = create(&shared, 300);
        let mut written = 0;
        let mut durable = 0;
        for number in 0..rng.below(60) {
            wal.append(&mut body(number), number).unwrap();
            written += 1;
            if rng.chance(1, 4) {
                wal.sync().unwrap();
                durable = written;
            }
        }
        let must_reach = wal.synced();
        let survival =
            [Survival::Nothing, Survival::Random(seed), Survival::Everything][rng.index(3)];
        let after: Arc<dyn Disk> = disk.after_crash(survival);
        let (mut wal, found) = read_all(&after, must_reach).unwrap();
        assert!(found.iter().copied().eq(0..found.len() as u64));
        assert!(found.len() >= durable && found.len() as u64 <= written as u64);
        wal.append(&mut body(found.len() as u64), 0).unwrap();
        wal.sync().unwrap();
        let (_, again) = read_all(&after, wal.synced()).unwrap();
        assert_eq!(again.len(), found.len() + 1);
        // A reader sees the same.
        let mut reader = WalReader::new(after.clone(), dir, TREE, 0);
        let mut frames = 0;
        while reader.next().unwrap().is_some() {
            frames += 1;
        }
        assert_eq!((frames, reader.position()), (again.len(), wal.end()));
    });
}

#[test]
fn a_durable_frame_that_is_damaged_is_reported() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let dir = Path::new("/i");
    let mut wal = create(&shared, 1 << 20);

    // The zeros behind a frame do not count.
    let mut durable = Vec::new();
    for number in 0..5 {
        let start = wal.end();
        let mut updates = body(number);
        wal.append(&mut updates, number).unwrap();
        wal.sync().unwrap();
        durable.extend(start..start + (FRAME_HEAD_BYTES + updates.bytes()) as u64);
    }

    let path = Segment::path(dir, 0);
    let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered).unwrap();
    for at in durable.into_iter().map(|at| at + SEGMENT_HEAD_BYTES as u64) {
        let mut byte = [0];
        file.read_at(&mut byte, at).unwrap();
        file.write_at(&[byte[0] ^ 4], at).unwrap();
        assert!(read_all(&shared, 0).is_err(), "byte {at}");
        file.write_at(&byte, at).unwrap();
    }
}

#[test]
fn segments_that_are_not_needed_go() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let dir = Path::new("/i");

    let mut wal = create(&shared, 300);
    for number in 0..50 {
        wal.append(&mut body(number), number).unwrap();
    }

    let count = || list(disk.as_ref(), dir).unwrap().len();
    let before = count();
    wal.trim(wal.end() / 2);
    assert!(count() < before && count() > 1);
    wal.trim(wal.end());
    assert_eq!(count(), 1);
}

/// A cut removes everything behind it; nothing is cut where there is nothing.
#[test]
fn a_log_that_was_cut_takes_no_room_once_it_is_not_needed() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let dir = Path::new("/i");

    let mut wal = create(&shared, 1 << 20);
    for number in 0..50 {
        wal.append(&mut body(number), number).unwrap();
    }

    for _ in 0..2 {
        wal.cut(50).unwrap();
        let starts = list(disk.as_ref(), dir).unwrap();
        assert_eq!(starts, [0, wal.end()]);
    }

    wal.trim(wal.end());
    let bytes = terrane_io::files::allocated_below(disk.as_ref(), &dir.join(LOG_DIR)).unwrap();
    assert_eq!(bytes, SEGMENT_HEAD_BYTES as u64);
    let start = wal.end();
    wal.append(&mut body(50), 51).unwrap();
    wal.sync().unwrap();

    let read = |found: &mut Vec<u64>, end| {
        Wal::recover(&shared, dir, TREE, (start, end), 300, |frame| {
            found.push(frame.entries);
            Ok(())
        })
    };

    let mut found = Vec::new();
    assert_eq!(read(&mut found, wal.end()).unwrap().end(), wal.end());
    assert_eq!(found, [51]);
}

/// A writer was killed when it had ended a segment and not made the next one. A later checkpoint
/// says that the log reaches as far as that end, and a reader took its own place, before it, for
/// the end of a damaged log.
#[test]
fn readers_go_beyond_an_end_whose_successor_comes_later() {
    let disk: Arc<dyn Disk> = SimDisk::new(1);
    let mut wal = create(&disk, 300);
    wal.append(&mut body(1), 1).unwrap();
    wal.write(SEALED, 1, &mut FrameBody::default()).unwrap();
    drop(wal);
    let end =
        disk.open(Path::new("/i/log/00000000000000000000.log"), OpenMode::Read, Access::Buffered);
    let end = end.unwrap().len().unwrap() - SEGMENT_HEAD_BYTES as u64;
    let mut readers =
        [0, end].map(|start| WalReader::new(disk.clone(), Path::new("/i"), TREE, start));
    assert!(readers[0].next_of(0).unwrap().is_some());

    for reader in &mut readers {
        assert!(reader.next_of(0).unwrap().is_none());
        assert_eq!(reader.position(), end);
    }

    let (mut wal, found) = read_all(&disk, end).unwrap();
    assert_eq!((wal.end(), found.len()), (end, 1));
    wal.append(&mut body(2), 2).unwrap();

    for reader in &mut readers {
        let frame = reader.next_of(0).unwrap().unwrap();
        assert_eq!((frame.position, frame.entries), (end, 2));
        assert!(reader.next_of(0).unwrap().is_none());
    }
}
