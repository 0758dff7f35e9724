//! One suite for every disk.
//!
//! Goal: an engine cannot tell by anything but speed which disk it runs on. Method: each test
//! states a property and checks it on the real disk with either queue, on a counting disk, on one
//! in memory and on a simulated one.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::files::{read_file, replace_file};
use terrane_io::{
    ALIGN, Access, AlignedBuf, CountedDisk, Direction, Disk, DiskFile, Entry, EntryKind, Error,
    IoQueue, MemoryDisk, NoSyncDisk, OpenMode, QueueChoice, QueueKind, RealDisk, RealOptions,
    Request, SimDisk,
};

use OpenMode::{CreateNew, CreatePrivate, Read, ReadWrite, Truncate};

/// A disk and an empty directory on it.
struct Subject {
    name: &'static str,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

impl Subject {
    fn real(name: &'static str, disk: Arc<dyn Disk>) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self { name, disk, dir: temporary.path().to_owned(), _temporary: Some(temporary) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn open(&self, name: &str, mode: OpenMode, access: Access) -> Arc<dyn DiskFile> {
        self.disk.open(&self.path(name), mode, access).unwrap()
    }

    /// A file with these bytes.
    fn file(&self, name: &str, bytes: &[u8], access: Access) -> Arc<dyn DiskFile> {
        let file = self.open(name, CreateNew, access);
        file.write_at(bytes, 0).unwrap();
        file.sync().unwrap();
        file
    }

    fn content(&self, name: &str) -> Vec<u8> {
        read_file(&*self.disk, &self.path(name), 1 << 30).unwrap()
    }
}

fn queue_of(choice: QueueChoice) -> terrane_io::Result<Arc<RealDisk>> {
    RealDisk::new(RealOptions::default().queue(choice).threads(4))
}

/// Runs `check` on every disk.
fn each(check: impl Fn(&Subject)) {
    let mut subjects = Vec::new();
    match queue_of(QueueChoice::IoUring) {
        Ok(disk) => subjects.push(Subject::real("real disk, io_uring", disk)),
        Err(error) => println!("io_uring is not tested: {error}"),
    }

    let threads = queue_of(QueueChoice::Threads).unwrap();
    subjects.push(Subject::real("real disk, threads", threads));
    subjects.push(Subject::real("counted disk", CountedDisk::new(RealDisk::auto())));
    subjects.push(Subject::real("unsynced disk", NoSyncDisk::new(RealDisk::auto())));
    let in_memory: [(_, Arc<dyn Disk>); 2] =
        [("disk in memory", MemoryDisk::new()), ("simulated disk", SimDisk::new(1))];
    for (name, disk) in in_memory {
        subjects.push(Subject { name, disk, dir: PathBuf::from("/"), _temporary: None });
    }

    for subject in &subjects {
        println!("on the {}", subject.name);
        check(subject);
    }
}

fn kind_of<T>(result: terrane_io::Result<T>) -> Option<ErrorKind> {
    result.err().and_then(|error| error.system_kind())
}

/// Bytes that tell every place of a file from every other.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (index.wrapping_mul(0x9E37_79B9) >> 13).to_le_bytes()[0]).collect()
}

fn request(file: &Arc<dyn DiskFile>, tag: u64, offset: u64, len: usize) -> Request {
    let file = Arc::clone(file);
    let buffer = AlignedBuf::zeroed(len);
    Request { tag, file, offset, buffer, direction: Direction::Read }
}

/// Takes all completions of reads of whole blocks, tagged by block, and compares them with `bytes`.
fn check_blocks(queue: &mut dyn IoQueue, bytes: &[u8], count: usize) {
    let mut seen = vec![false; count];
    while let Some(completion) = queue.pop() {
        completion.result.unwrap();
        let block = usize::try_from(completion.tag).unwrap();
        assert!(!std::mem::replace(&mut seen[block], true), "block {block} came twice");
        assert_eq!(completion.buffer[..], bytes[block * ALIGN..(block + 1) * ALIGN]);
    }
    assert!(seen.into_iter().all(|seen| seen), "a request got lost");
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn open_modes_create_keep_empty_or_refuse() {
    each(|subject| {
        for access in [Access::Buffered, Access::Direct] {
            let path = subject.path(&format!("{access:?}"));
            let open = |mode| subject.disk.open(&path, mode, access);
            assert_eq!(kind_of(open(Read)), Some(ErrorKind::NotFound));
            assert!(open(ReadWrite).unwrap_err().is_not_found());
            open(CreateNew).unwrap().write_at(b"bytes", 0).unwrap();
            assert_eq!(kind_of(open(CreateNew)), Some(ErrorKind::AlreadyExists));
            let file = open(ReadWrite).unwrap();
            assert_eq!((file.path(), file.len().unwrap()), (&*path, 5));
            assert!(open(Read).unwrap().write_at(b"x", 0).is_err());
            assert!(open(Truncate).unwrap().is_empty().unwrap());
            subject.disk.remove(&path).unwrap();
            open(Truncate).unwrap().write_at(b"again", 0).unwrap();
            assert_eq!(read_file(&*subject.disk, &path, 5).unwrap(), b"again");
        }
    });
}

#[test]
fn reads_past_the_end_tell_how_much_there_was() {
    each(|subject| {
        for access in [Access::Buffered, Access::Direct] {
            let file = subject.file(&format!("{access:?}"), &pattern(5000), access);
            for (offset, len, there) in
                [(0, 8192, 5000), (4990, 20, 10), (6000, 1, 0), (1, 5000, 4999)]
            {
                let mut buffer = AlignedBuf::zeroed(8192);
                let error = file.read_at(&mut buffer[..len], offset).unwrap_err();
                let Error::ShortRead { offset: at, expected, found, .. } = error else {
                    panic!("{error}")
                };
                assert_eq!((at, expected, found), (offset, len, there), "{access:?}");
            }
            file.read_at(&mut [], 9000).unwrap();
        }
    });
}

#[test]
fn files_grow_with_zeros_and_are_cut() {
    each(|subject| {
        let file = subject.file("file", &pattern(100), Access::Buffered);
        file.write_at(b"far", 10_000).unwrap();
        let mut expected = pattern(100);
        expected.resize(10_000, 0);
        expected.extend(b"far");
        assert_eq!(subject.content("file"), expected);
        file.set_len(50).unwrap();
        file.set_len(5000).unwrap();
        expected.truncate(50);
        expected.resize(5000, 0);
        assert_eq!(subject.content("file"), expected);
        assert_eq!(file.append(b"tail").unwrap(), 5000);
        assert_eq!(file.len().unwrap(), 5004);
    });
}

#[test]
fn reserved_space_leaves_the_length_alone() {
    each(|subject| {
        let file = subject.file("file", b"12345", Access::Buffered);
        file.allocate(1 << 20).unwrap();
        file.allocate(0).unwrap();
        assert_eq!(file.len().unwrap(), 5);
        file.forget(0, 5);
        file.forget(0, 0);
        assert_eq!(subject.content("file"), b"12345");
        assert!(subject.disk.free_bytes(&subject.dir).unwrap() > 1 << 20);
    });
}

#[test]
fn direct_files_take_any_offset_length_and_address() {
    each(|subject| {
        let mut expected = pattern(3 * ALIGN + 17);
        let file = subject.file("file", &expected, Access::Direct);
        let mut written = |bytes: &[u8], offset: usize| {
            file.write_at(bytes, offset as u64).unwrap();
            let end = offset + bytes.len();
            expected.resize(expected.len().max(end), 0);
            expected[offset..end].copy_from_slice(bytes);
            for (start, len) in [(0, end), (1, end - 1), (offset, bytes.len()), (ALIGN, 1)] {
                let mut buffer = vec![0; len + 1];
                file.read_at(&mut buffer[1..], start as u64).unwrap();
                assert_eq!(buffer[1..], expected[start..start + len], "{start} {len}");
            }
            assert_eq!(subject.content("file"), expected);
            assert_eq!(file.len().unwrap(), expected.len() as u64);
        };
        let mut block = AlignedBuf::zeroed(2 * ALIGN);
        block.fill(0xAB);
        written(b"short", 4000);
        written(&block, ALIGN);
        written(&block[..ALIGN], 8 * ALIGN);
        written(&block[1..=ALIGN], ALIGN);
        written(b"tail", 9 * ALIGN + 1);
        // Bytes written around the cache reach a reader of blocks as well.
        let mut buffer = AlignedBuf::zeroed(9 * ALIGN);
        file.read_at(&mut buffer, 0).unwrap();
        assert_eq!(buffer[..], expected[..9 * ALIGN]);
    });
}

/// The second descriptor of a direct file must be one of the same file, even if its name is gone or
/// stands for another file by then.
#[test]
fn unaligned_writes_of_a_renamed_direct_file_reach_that_file() {
    each(|subject| {
        let file = subject.file("old", &pattern(ALIGN), Access::Direct);
        subject.disk.rename(&subject.path("old"), &subject.path("new")).unwrap();
        subject.file("old", b"another", Access::Buffered);
        file.write_at(b"odd", 1).unwrap();
        assert_eq!(subject.content("new")[1..4], *b"odd");
        assert_eq!(subject.content("old"), b"another");
    });
}

#[test]
fn names_are_listed_sorted_with_their_kinds() {
    each(|subject| {
        for name in ["b", "a-file", "c"] {
            subject.file(name, name.as_bytes(), Access::Buffered);
        }
        subject.disk.create_dir(&subject.path("b-dir")).unwrap();
        subject.disk.create_dir(&subject.path("b-dir/inner")).unwrap();
        let entry = |name: &str, kind| Entry { name: name.to_owned(), kind };
        let expected = [
            entry("a-file", EntryKind::File),
            entry("b", EntryKind::File),
            entry("b-dir", EntryKind::Directory),
            entry("c", EntryKind::File),
        ];
        assert_eq!(subject.disk.list(&subject.dir).unwrap(), expected);
        assert!(subject.disk.list(&subject.path("none")).unwrap_err().is_not_found());
        let kind = |name| subject.disk.kind(&subject.path(name)).unwrap();
        assert_eq!(kind("b"), Some(EntryKind::File));
        assert_eq!(kind("b-dir"), Some(EntryKind::Directory));
        assert_eq!(kind("none"), None);
        assert_eq!(kind("b/none"), None);
        subject.disk.sync_dir(&subject.dir).unwrap();
        assert!(subject.disk.sync_dir(&subject.path("none")).unwrap_err().is_not_found());
    });
}

#[test]
fn directories_are_removed_only_when_empty() {
    each(|subject| {
        let (dir, file) = (subject.path("dir"), subject.path("dir/file"));
        subject.disk.create_dir(&dir).unwrap();
        assert_eq!(kind_of(subject.disk.create_dir(&dir)), Some(ErrorKind::AlreadyExists));
        assert!(subject.disk.create_dir(&subject.path("no/dir")).unwrap_err().is_not_found());
        subject.file("dir/file", b"", Access::Buffered);
        assert_eq!(kind_of(subject.disk.remove_dir(&dir)), Some(ErrorKind::DirectoryNotEmpty));
        assert_eq!(kind_of(subject.disk.remove_dir(&file)), Some(ErrorKind::NotADirectory));
        subject.disk.remove(&file).unwrap();
        assert!(subject.disk.remove(&file).unwrap_err().is_not_found());
        subject.disk.remove_dir(&dir).unwrap();
        assert_eq!(subject.disk.kind(&dir).unwrap(), None);
    });
}

#[test]
fn renames_replace_files_and_move_directories() {
    each(|subject| {
        let rename = |from, to| subject.disk.rename(&subject.path(from), &subject.path(to));
        subject.file("new", b"new", Access::Buffered);
        let old = subject.file("old", b"old", Access::Buffered);
        rename("new", "old").unwrap();
        assert_eq!(subject.content("old"), b"new");
        assert_eq!(subject.disk.kind(&subject.path("new")).unwrap(), None);
        // A handle keeps the replaced file alive.
        let mut bytes = [0; 3];
        old.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"old");

        subject.disk.create_dir(&subject.path("dir")).unwrap();
        rename("old", "dir/moved").unwrap();
        rename("dir", "other").unwrap();
        assert_eq!(subject.content("other/moved"), b"new");
        assert_eq!(kind_of(rename("none", "other/none")), Some(ErrorKind::NotFound));
        assert!(rename("other/moved", "other").is_err());
        assert!(rename("other", "other/moved/below").is_err());
    });
}

#[test]
fn hard_links_share_bytes_and_outlive_each_other() {
    each(|subject| {
        let link = |from, to| subject.disk.hard_link(&subject.path(from), &subject.path(to));
        let file = subject.file("one", b"bytes", Access::Buffered);
        link("one", "two").unwrap();
        assert_eq!(kind_of(link("one", "two")), Some(ErrorKind::AlreadyExists));
        assert_eq!(kind_of(link("none", "three")), Some(ErrorKind::NotFound));
        file.write_at(b"BY", 0).unwrap();
        subject.disk.remove(&subject.path("one")).unwrap();
        assert_eq!(subject.content("two"), b"BYtes");
        subject.disk.remove(&subject.path("two")).unwrap();
        file.write_at(b"by", 0).unwrap();
        let mut bytes = [0; 5];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"bytes");
    });
}

#[test]
fn replaced_files_hold_the_new_bytes() {
    each(|subject| {
        for bytes in [pattern(10), pattern(5000), Vec::new()] {
            replace_file(&*subject.disk, &subject.path("meta"), &bytes).unwrap();
            assert_eq!(subject.content("meta"), bytes);
        }
        assert_eq!(subject.disk.list(&subject.dir).unwrap().len(), 1);
        subject.file("big", &pattern(100), Access::Buffered);
        let read = read_file(&*subject.disk, &subject.path("big"), 99);
        assert_eq!(kind_of(read), Some(ErrorKind::FileTooLarge));
    });
}

#[test]
fn a_lock_excludes_every_other_handle_until_it_is_dropped() {
    each(|subject| {
        let path = subject.path("lock");
        let guard = subject.disk.lock(&path).unwrap();
        for _ in 0..2 {
            match subject.disk.lock(&path).unwrap_err() {
                Error::Locked { path: locked, pid } => {
                    assert_eq!((locked, pid), (path.clone(), Some(std::process::id())));
                }
                error => panic!("{error}"),
            }
        }
        drop(guard);
        let _guard = subject.disk.lock(&path).unwrap();
        subject.disk.lock(&subject.path("another")).unwrap();
    });
}

#[test]
fn shared_locks_exclude_the_exclusive_one_and_not_each_other() {
    each(|subject| {
        let path = subject.path("lock");
        let is_locked_out = |taken: terrane_io::Result<_>| match taken {
            Ok(_) => false,
            Err(Error::Locked { .. }) => true,
            Err(error) => panic!("{error}"),
        };
        assert!(subject.disk.lock_shared(&path).unwrap_err().is_not_found());
        drop(subject.disk.lock(&path).unwrap());

        let first = subject.disk.lock_shared(&path).unwrap();
        let second = subject.disk.lock_shared(&path).unwrap();
        assert!(!subject.disk.is_locked(&path).unwrap(), "readers hold no exclusive lock");
        drop(first);
        assert!(is_locked_out(subject.disk.lock(&path)));
        drop(second);

        let exclusive = subject.disk.lock(&path).unwrap();
        assert!(is_locked_out(subject.disk.lock_shared(&path)));
        assert!(subject.disk.is_locked(&path).unwrap());
        drop(exclusive);
        subject.disk.lock_shared(&path).unwrap();
    });
}

#[test]
fn a_disk_works_below_an_anchor_as_it_does_elsewhere() {
    each(|subject| {
        let store = subject.path("store");
        assert!(subject.disk.anchor(&store).unwrap_err().is_not_found());
        subject.disk.create_dir(&store).unwrap();
        let store = subject.disk.absolute(&store).unwrap();
        let _anchor = subject.disk.anchor(&store).unwrap();

        let (dir, file) = (store.join("dir"), store.join("dir/file"));
        subject.disk.create_dir(&dir).unwrap();
        assert_eq!(kind_of(subject.disk.create_dir(&store)), Some(ErrorKind::AlreadyExists));
        for access in [Access::Buffered, Access::Direct] {
            let open = |mode| subject.disk.open(&file, mode, access);
            assert!(open(Read).unwrap_err().is_not_found());
            open(CreateNew).unwrap().write_at(b"bytes", 0).unwrap();
            assert!(open(CreatePrivate).unwrap_err().is_already_exists());
            subject.disk.remove(&file).unwrap();
            open(CreatePrivate).unwrap().write_at(b"bytes", 0).unwrap();
            assert_eq!(open(ReadWrite).unwrap().len().unwrap(), 5);
            assert_eq!(open(Truncate).unwrap().len().unwrap(), 0);
            subject.disk.remove(&file).unwrap();
        }
        replace_file(&*subject.disk, &file, b"replaced").unwrap();
        subject.disk.hard_link(&file, &store.join("linked")).unwrap();
        subject.disk.rename(&file, &store.join("moved")).unwrap();
        assert_eq!(subject.content("store/linked"), b"replaced");

        let names = subject.disk.list(&store).unwrap();
        let names: Vec<&str> = names.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["dir", "linked", "moved"]);
        assert_eq!(subject.disk.kind(&store).unwrap(), Some(EntryKind::Directory));
        assert_eq!(subject.disk.kind(&dir.join("none/none")).unwrap(), None);
        assert_eq!(subject.disk.kind(&store.join("moved/none")).unwrap(), None);
        subject.disk.sync_dir(&store).unwrap();
        subject.disk.sync_dir(&dir).unwrap();
        assert!(subject.disk.free_bytes(&store).unwrap() > 0);
        assert!(!subject.disk.is_locked(&dir.join("lock")).unwrap());
        drop(subject.disk.lock(&dir.join("lock")).unwrap());
        subject.disk.lock_shared(&dir.join("lock")).unwrap();
        assert!(subject.disk.open(&dir.join("../moved"), Read, Access::Buffered).is_err());

        // The anchored directory is itself a name in the one above.
        for entry in ["dir/lock", "linked", "moved"] {
            subject.disk.remove(&store.join(entry)).unwrap();
        }
        subject.disk.remove_dir(&dir).unwrap();
        subject.disk.remove_dir(&store).unwrap();
    });
}

#[test]
fn queues_carry_out_more_requests_than_their_depth() {
    each(|subject| {
        let bytes = pattern(100 * ALIGN);
        for access in [Access::Buffered, Access::Direct] {
            let file = subject.file(&format!("{access:?}"), &bytes, access);
            for depth in [1, 3, 64, 1000] {
                let mut queue = subject.disk.queue(depth).unwrap();
                assert_eq!(queue.depth(), depth);
                assert!(queue.pop().is_none() && queue.poll().is_none());
                for block in 0..100 {
                    queue.push(request(&file, block, block * ALIGN as u64, ALIGN));
                    assert_eq!(queue.outstanding(), usize::try_from(block).unwrap() + 1);
                }
                check_blocks(&mut *queue, &bytes, 100);
                assert!(queue.pop().is_none() && queue.poll().is_none());
            }
        }
    });
}

#[test]
fn polling_alone_brings_every_completion() {
    each(|subject| {
        let file = subject.file("file", &pattern(20 * ALIGN), Access::Direct);
        let mut queue = subject.disk.queue(4).unwrap();
        for block in 0..20 {
            queue.push(request(&file, block, block * ALIGN as u64, ALIGN));
        }
        let mut tags = Vec::new();
        while queue.outstanding() > 0 {
            match queue.poll() {
                Some(completion) => tags.push(completion.tag),
                None => std::thread::yield_now(),
            }
        }
        tags.sort_unstable();
        assert_eq!(tags, (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn queued_writes_are_seen_by_reads() {
    each(|subject| {
        let bytes = pattern(50 * ALIGN);
        for access in [Access::Buffered, Access::Direct] {
            let name = format!("{access:?}");
            let file = subject.open(&name, CreateNew, access);
            let mut queue = subject.disk.queue(8).unwrap();
            for block in 0..50 {
                let mut write = request(&file, block, block * ALIGN as u64, ALIGN);
                let start = usize::try_from(block).unwrap() * ALIGN;
                write.buffer.copy_from_slice(&bytes[start..start + ALIGN]);
                write.direction = Direction::Write;
                queue.push(write);
            }
            while let Some(completion) = queue.pop() {
                completion.result.unwrap();
            }
            assert_eq!(subject.content(&name), bytes);
        }
    });
}

#[test]
fn queued_requests_meet_the_same_errors_as_positioned_ones() {
    each(|subject| {
        for access in [Access::Buffered, Access::Direct] {
            let name = format!("{access:?}");
            let bytes = pattern(3 * ALIGN + 5);
            let file = subject.file(&name, &bytes, access);
            let read_only = subject.open(&name, Read, access);
            let mut queue = subject.disk.queue(8).unwrap();
            queue.push(request(&file, 0, 2 * ALIGN as u64, 2 * ALIGN));
            queue.push(request(&file, 1, 100 * ALIGN as u64, ALIGN));
            queue.push(request(&file, 2, 77, ALIGN));
            let mut write = request(&read_only, 3, 0, ALIGN);
            write.direction = Direction::Write;
            queue.push(write);
            queue.submit();
            let mut seen = 0;
            while let Some(completion) = queue.pop() {
                seen += 1;
                match (completion.tag, completion.result) {
                    (0, Err(Error::ShortRead { found, .. })) => assert_eq!(found, ALIGN + 5),
                    (1, Err(Error::ShortRead { found, .. })) => assert_eq!(found, 0),
                    (2, Ok(())) => assert_eq!(completion.buffer[..], bytes[77..77 + ALIGN]),
                    (3, Err(Error::Io { call: "pwrite", .. })) => {}
                    (tag, result) => panic!("request {tag}: {result:?}"),
                }
            }
            assert_eq!(seen, 4);
        }
    });
}

#[test]
fn a_queue_dropped_with_requests_in_flight_leaves_the_disk_usable() {
    each(|subject| {
        let bytes = pattern(64 * ALIGN);
        let file = subject.file("file", &bytes, Access::Direct);
        let start = |depth| {
            let mut queue = subject.disk.queue(depth).unwrap();
            for block in 0..64 {
                queue.push(request(&file, block, block * ALIGN as u64, ALIGN));
            }
            queue.submit();
            queue
        };
        for depth in [5, 64] {
            drop(start(depth));
            let mut queue = start(depth);
            assert!(queue.pop().is_some());
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _queue = queue;
                panic!("on purpose, while requests are in flight");
            }));
            assert!(unwound.is_err());
        }
        check_blocks(&mut *start(64), &bytes, 64);
    });
}

/// Completions are tied to the thread that submitted. Buffered reads whose thread ended at once
/// have crashed a node that ran on another implementation of such tables.
#[test]
fn requests_survive_the_thread_that_submitted_them() {
    each(|subject| {
        let bytes = pattern(256 * ALIGN);
        for access in [Access::Buffered, Access::Direct] {
            let file = subject.file(&format!("{access:?}"), &bytes, access);
            for _ in 0..4 {
                file.forget(0, bytes.len() as u64);
                let mut queue = std::thread::scope(|scope| {
                    let submit = || {
                        let mut queue = subject.disk.queue(256).unwrap();
                        for block in 0..256 {
                            queue.push(request(&file, block, block * ALIGN as u64, ALIGN));
                        }
                        queue.submit();
                        queue
                    };
                    scope.spawn(submit).join().unwrap()
                });
                check_blocks(&mut *queue, &bytes, 256);
            }
        }
    });
}

#[test]
fn queues_of_one_disk_work_side_by_side() {
    each(|subject| {
        let bytes = pattern(64 * ALIGN);
        let file = subject.file("file", &bytes, Access::Direct);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let mut queue = subject.disk.queue(16).unwrap();
                        for block in 0..64 {
                            queue.push(request(&file, block, block * ALIGN as u64, ALIGN));
                        }
                        check_blocks(&mut *queue, &bytes, 64);
                    }
                });
            }
        });
    });
}

#[test]
fn requests_of_many_blocks_are_read_in_full() {
    each(|subject| {
        let bytes = pattern(2048 * ALIGN);
        for access in [Access::Buffered, Access::Direct] {
            let file = subject.file(&format!("{access:?}"), &bytes, access);
            let mut queue = subject.disk.queue(2).unwrap();
            queue.push(request(&file, 0, 0, bytes.len()));
            let completion = queue.pop().unwrap();
            completion.result.unwrap();
            assert!(completion.buffer[..] == bytes, "{access:?}");
        }
    });
}

#[test]
fn the_kind_of_queue_is_told() {
    let threads = queue_of(QueueChoice::Threads).unwrap();
    assert_eq!(threads.queue_kind(), QueueKind::Threads);
    if let Ok(disk) = queue_of(QueueChoice::IoUring) {
        assert_eq!(disk.queue_kind(), QueueKind::IoUring);
        assert_eq!(RealDisk::auto().queue_kind(), QueueKind::IoUring);
    } else {
        assert_eq!(RealDisk::auto().queue_kind(), QueueKind::Threads);
    }
    assert_eq!(MemoryDisk::new().queue_kind(), QueueKind::Memory);
    assert_eq!(SimDisk::new(0).queue_kind(), QueueKind::Simulated);
}

#[test]
fn counted_disks_count_calls_bytes_and_pages() {
    let disk = CountedDisk::new(SimDisk::new(0));
    let before = disk.counts();
    let file = disk.open(Path::new("/file"), CreateNew, Access::Direct).unwrap();
    file.write_at(&pattern(ALIGN + 1), 0).unwrap();
    file.append(b"tail").unwrap();
    file.sync().unwrap();
    file.read_at(&mut [0; 10], 0).unwrap();
    let mut queue = disk.queue(4).unwrap();
    queue.push(request(&file, 0, 0, ALIGN));
    while queue.pop().is_some() {}
    disk.sync_dir(Path::new("/")).unwrap();
    let counts = disk.counts() - before;
    assert_eq!((counts.opens, counts.creates), (1, 1));
    assert_eq!((counts.writes, counts.write_bytes, counts.write_pages), (2, 4097 + 4, 2 + 1));
    assert_eq!((counts.reads, counts.read_bytes, counts.read_pages), (2, 10 + 4096, 1 + 1));
    assert_eq!((counts.queued, counts.syncs, counts.dir_syncs), (1, 1, 1));
}
