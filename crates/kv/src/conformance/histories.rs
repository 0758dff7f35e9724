//! Random histories beside a model.

use std::sync::Arc;

use crate::database::{Database, Reader, Writer};

use super::trial::{
    INDEXES, Model, Outcome, Random, TABLES, Trial, is_duplicate, is_not_found, ok, refused, show,
    walk,
};

/// Random transactions, commits and rollbacks, with snapshots that are held over them, and the
/// database opened anew.
pub(super) fn histories(trial: &mut Trial<'_>) -> Outcome {
    for number in 0..trial.extent.histories {
        let seed = trial.extent.seed.wrapping_add(number as u64);
        let mut history = History {
            database: trial.fresh()?,
            model: Model::default(),
            snapshots: Vec::new(),
            random: Random(seed),
        };

        for step in 0..trial.extent.steps {
            let step = format!("seed {seed}, step {step}");
            // Reopening is rare, since it costs more than a transaction.
            if trial.subject.is_persistent() && history.random.below(16) == 0 {
                history = history.reopened(&step, trial)?;
            } else {
                history.step(&step)?;
            }
        }

        let History { database, model, snapshots, .. } = history;
        drop(snapshots);
        model.check_present(format_args!("seed {seed}: at the end"), &*database)?;
        ok("close", database.close())?;
    }

    Ok(())
}

struct History {
    database: Arc<dyn Database>,
    model: Model,
    snapshots: Vec<(Box<dyn Reader + Send>, Model)>,
    random: Random,
}

impl History {
    fn step(&mut self, step: &str) -> Outcome {
        match self.random.below(16) {
            0..8 => self.transact(step)?,
            8..10 => {
                let reader = ok(format_args!("{step}: make a reader"), self.database.reader())?;
                self.snapshots.push((reader, self.model.clone()));
            }
            10..12 if !self.snapshots.is_empty() => {
                let gone = self.random.below(self.snapshots.len());
                drop(self.snapshots.swap_remove(gone));
            }
            12 => {
                self.model.check_present(format_args!("{step}: the present"), &*self.database)?;
            }
            _ if self.snapshots.is_empty() => {}
            _ => {
                let which = self.random.below(self.snapshots.len());
                if let Some((reader, model)) = self.snapshots.get(which) {
                    let step = format!("{step}: snapshot {which}");
                    look(&step, &**reader, model, &mut self.random)?;
                }
            }
        }

        Ok(())
    }

    fn reopened(self, step: &str, trial: &mut Trial<'_>) -> Outcome<Self> {
        drop(self.snapshots);
        let database = trial.reopen(self.database, &INDEXES)?;
        self.model.check_present(format_args!("{step}: reopened"), &*database)?;
        Ok(Self { database, snapshots: Vec::new(), ..self })
    }

    fn transact(&mut self, step: &str) -> Outcome {
        // The model follows the writer, and counts only after the commit.
        let mut model = self.model.clone();
        let mut writer = ok(format_args!("{step}: make a writer"), self.database.writer())?;
        for number in 0..self.random.below(20) {
            let step = format!("{step}, change {number}");
            change(&step, &mut *writer, &mut model, &mut self.random)?;
        }

        if self.random.below(2) == 0 {
            look(&format!("{step}: the writer"), &*writer, &model, &mut self.random)?;
        }

        // A writer that is dropped rolls back.
        if self.random.below(4) == 0 {
            return Ok(());
        }

        ok(format_args!("{step}: commit"), writer.commit())?;
        self.model = model;
        Ok(())
    }
}

/// Keys are few and have each other as prefixes, so that they are met again.
fn key_of(random: &mut Random) -> Vec<u8> {
    // Keys are few and short, so that changes meet the same keys again.
    let length = 1 + random.below(3);
    (0..length).map(|_| [0, 1, b'a', 255].get(random.below(4)).copied().unwrap_or(7)).collect()
}

fn change(step: &str, writer: &mut dyn Writer, model: &mut Model, random: &mut Random) -> Outcome {
    let table = TABLES.get(random.below(3)).copied().unwrap_or(TABLES[0]);
    let key = key_of(random);
    let length = random.below(40);
    let value = random.bytes(length);
    let is_there = model.table(table).contains_key(&key);
    let step = format!("{step}: {table}, key {}", show(&key));

    match random.below(4) {
        0 if is_there => {
            let found = writer.put(table, &key, &value);
            return refused(step + ": put", found, "DuplicateEntry", is_duplicate(table, &key));
        }
        0 => ok(step + ": put", writer.put(table, &key, &value))?,
        1 => ok(step + ": overwrite", writer.overwrite(table, &key, &value))?,
        2 if !is_there => {
            let found = writer.delete(table, &key);
            return refused(step + ": delete", found, "NotFound", is_not_found(table, &key));
        }
        2 => {
            model.set(table, &key, None);
            return ok(step + ": delete", writer.delete(table, &key));
        }
        _ => {
            model.set(table, &key, None);
            return ok(step + ": remove", writer.remove(table, &key));
        }
    }

    model.set(table, &key, Some(&value));
    Ok(())
}

fn look(step: &str, reader: &dyn Reader, model: &Model, random: &mut Random) -> Outcome {
    // A whole check is slow, so most looks are random walks.
    if random.below(3) == 0 {
        return model.check(step, reader);
    }
    for table in TABLES {
        let mut cursor = ok(format_args!("{step}: make a cursor"), reader.cursor(table))?;
        walk(format_args!("{step}: {table}"), &mut *cursor, model.table(table), random, 30)?;
    }
    Ok(())
}
