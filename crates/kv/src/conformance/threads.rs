//! Rules of several threads. What they find does not depend on how they are scheduled: a back-end
//! that keeps the rules passes under every schedule, and one that breaks them fails under most.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, ScopedJoinHandle};

use crate::database::{Reader, Table};

use super::trial::{Outcome, TABLES, Trial, failure, holds, ok, same};

const READERS: usize = 3;
const KEYS: usize = 10;

fn join<T>(step: &str, thread: ScopedJoinHandle<'_, Outcome<T>>) -> Outcome<T> {
    thread.join().unwrap_or_else(|_| Err(failure(step, "an end", "a panic", None)))
}

fn number_of(step: &str, reader: &dyn Reader) -> Outcome<usize> {
    let bytes = ok(step, reader.get(Table::Main, b"number"))?;
    let bytes = bytes.unwrap_or_else(|| b"0".to_vec());
    let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| failure(step, "a number", String::from_utf8_lossy(&bytes), None))
}

/// A second writer waits until the first is done, and starts from what that left; no commit is
/// lost.
pub(super) fn one_writer(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let database = &*database;
    let rounds = trial.extent.rounds;

    for round in 0..rounds {
        let is_committed = round % 3 > 0;
        let step = format!(
            "round {round}: the first writer is to be {}",
            if is_committed { "committed" } else { "dropped" }
        );

        thread::scope(|scope| {
            let mut first = ok(&step, database.writer())?;
            let start = number_of(&step, &*first)?;
            let (entering, is_entering) = mpsc::channel();
            let (entered, has_entered) = mpsc::channel();
            let second = scope.spawn(move || {
                let step = "the second writer";
                // The other side waits for this, and cannot be gone.
                let _ = entering.send(());
                let mut writer = ok(step, database.writer())?;
                let _ = entered.send(());
                let seen = number_of(step, &*writer)?;
                ok(
                    step,
                    writer.overwrite(Table::Main, b"number", (seen + 1).to_string().as_bytes()),
                )?;
                ok(step, writer.commit())?;
                Ok(seen)
            });

            // A few turns of the scheduler let the second writer get to where it waits.
            let _ = is_entering.recv();
            for _ in 0..20 {
                thread::yield_now();
            }

            ok(&step, first.overwrite(Table::Main, b"number", (start + 1).to_string().as_bytes()))?;
            // The second writer must not be in while the first one is.
            let is_early = has_entered.try_recv().is_ok();
            if is_committed {
                ok(&step, first.commit())?;
            } else {
                drop(first);
            }

            let seen = join(&step, second)?;
            holds(&step, !is_early, "the second writer to wait", "that it was let in")?;
            same(
                format_args!("{step}: what the second saw"),
                seen,
                start + usize::from(is_committed),
            )
        })?;
    }

    // Many at once, none of which loses what another wrote.
    let step = "writers that count";
    let before = number_of(step, &*ok(step, database.reader())?)?;
    let count = || {
        for _ in 0..rounds {
            let mut writer = ok(step, database.writer())?;
            let next = number_of(step, &*writer)? + 1;
            ok(step, writer.overwrite(Table::Main, b"number", next.to_string().as_bytes()))?;
            ok(step, writer.commit())?;
        }
        Ok(())
    };

    thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(count)).collect();
        threads.into_iter().try_for_each(|thread| join(step, thread))
    })?;

    let after = number_of(step, &*ok(step, database.reader())?)?;
    same(step, after, before + 3 * rounds)
}

/// Ends the readers when the writer ends, however it does.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Readers beside a writer see each commit as a whole or not at all, and never go back.
pub(super) fn whole_commits(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let database = &*database;
    let rounds = trial.extent.rounds;
    let is_done = AtomicBool::new(false);

    let write = |round: usize| {
        let step = format!("commit {round}");
        let mut writer = ok(&step, database.writer())?;
        let value = round.to_string();
        for table in TABLES {
            for key in 0..KEYS {
                let key = format!("key {key}");
                ok(&step, writer.overwrite(table, key.as_bytes(), value.as_bytes()))?;
            }
            ok(&step, writer.put(table, format!("round {round}").as_bytes(), b""))?;
        }
        ok(&step, writer.commit())
    };

    write(0)?;
    let read = || {
        let mut last = 0;
        loop {
            let is_last = is_done.load(Ordering::Acquire);
            let reader = ok("make a reader beside a writer", database.reader())?;
            let seen = read_round(&*reader)?;
            let step = "a reader after an earlier one";
            holds(step, last <= seen, format_args!("commit {last} or later"), seen)?;
            last = seen;
            if is_last {
                return same("a reader after the last commit", seen, rounds);
            }
        }
    };

    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        let done = Done(&is_done);
        let written = (1..=rounds).try_for_each(|round| write(round).map(|_| ()));
        drop(done);
        let read = readers
            .into_iter()
            .map(|reader| join("a reader beside a writer", reader))
            .collect::<Vec<_>>();
        written?;
        read.into_iter().collect()
    })
}

/// The commit that a reader sees, if it sees all of one and nothing of another.
fn read_round(reader: &dyn Reader) -> Outcome<usize> {
    let step = "a reader beside a writer";

    let mut values = Vec::new();
    let mut counts = Vec::new();
    for table in TABLES {
        counts.push(ok(step, reader.count(table))?);
        for key in 0..KEYS {
            values.push(ok(step, reader.get(table, format!("key {key}").as_bytes()))?);
        }
        let mut cursor = ok(step, reader.cursor(table))?;
        ok(step, cursor.seek(b"key"))?;
        for _ in 0..KEYS {
            values.push(ok(step, cursor.next())?.map(|(_, value)| value));
        }
    }

    let first = values.first().cloned().flatten().unwrap_or_default();
    let show = |value: Option<&Vec<u8>>| {
        value.map_or("nothing".into(), |value| String::from_utf8_lossy(value).into_owned())
    };

    for value in &values {
        let found = show(value.as_ref());
        let expected = format!("all of commit {}", show(Some(&first)));
        holds(
            step,
            value.as_ref() == Some(&first),
            expected,
            format_args!("commit {found} in it"),
        )?;
    }

    let round: usize = std::str::from_utf8(&first)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| failure(step, "the number of a commit", show(Some(&first)), None))?;

    let expected = (KEYS + 1 + round) as u64;
    for count in counts {
        same(format_args!("{step}: a count at commit {round}"), count, expected)?;
    }

    Ok(round)
}
