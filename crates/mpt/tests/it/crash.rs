//! Power loss, sudden death and faults at every call on the disk.
//!
//! Goal: after a crash the state is that after some block, not before the last one whose ticket was
//! waited for, and nodes and entries agree. After a fault the state is that before or after the
//! call that failed. Method: a fixed script of blocks, a reorg and a rebuild, with a crash or a
//! fault at call n for every n.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, FaultKind, SimDisk};
use terrane_mpt::{B256, Result, State};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

use crate::chain::{self, DIR, Model, Step, apply, commit, draw_block, options};

/// Opens a state that keeps a history, so that all its tables are written.
fn open(disk: &Arc<dyn Disk>) -> Result<State> {
    State::open(Arc::clone(disk), Path::new(DIR), &options().history(true))
}

/// A step of the script, with the model after it.
enum Turn {
    Block(Vec<Step>),
    Reorg(u64),
    Rebuild,
}

struct Script {
    turns: Vec<Turn>,
    /// The model before the first turn and after each of them, and its root.
    models: Vec<Model>,
    roots: Vec<B256>,
}

fn draw_script(seed: u64) -> Script {
    let mut script = Script { turns: Vec::new(), models: vec![Model::new()], roots: Vec::new() };
    for_each_seed("draw_script", 1, |rng, _| {
        let mut chain: Vec<Model> = Vec::new();
        for turn in 0..7 + seed % 2 {
            let mut model = script.models.last().unwrap().clone();
            match turn {
                4 => {
                    model = chain[1].clone();
                    chain.truncate(2);
                    script.turns.push(Turn::Reorg(1));
                }
                6 => script.turns.push(Turn::Rebuild),
                _ => {
                    let steps = draw_block(rng, &model);
                    apply(&mut model, &steps);
                    chain.push(model.clone());
                    script.turns.push(Turn::Block(steps));
                }
            }
            script.models.push(model);
        }
    });
    script.roots = script.models.iter().map(chain::root).collect();
    script
}

fn take(state: &mut State, turn: &Turn) -> Result<()> {
    let committed = match turn {
        Turn::Block(steps) => commit(state, steps, 7)?,
        Turn::Reorg(height) => state.reorg_to(*height)?,
        Turn::Rebuild => return state.rebuild().map(drop),
    };
    Ok(committed.ticket.wait()?)
}

/// Runs the script until the disk fails; returns how many turns were durable, and begun.
fn run(disk: &Arc<SimDisk>, script: &Script) -> (usize, usize) {
    let shared: Arc<dyn Disk> = disk.clone();
    let Ok(mut state) = open(&shared) else { return (0, 0) };
    for (done, turn) in script.turns.iter().enumerate() {
        if take(&mut state, turn).is_err() {
            return (done, done + 1);
        }
    }
    drop(state.close());
    (script.turns.len(), script.turns.len())
}

fn check_image(disk: &Arc<SimDisk>, script: &Script, durable: usize, begun: usize) {
    let shared: Arc<dyn Disk> = disk.clone();
    let mut state = open(&shared).expect("a state opens after a crash");
    let root = state.root();
    let is_here = |at: &usize| script.roots[*at] == root;
    let at = (durable..=begun).rev().find(is_here).expect("a state after a turn");
    chain::check(&state, &script.models[at]);
    let report = state.verify().unwrap();
    assert!(report.is_clean(), "{report:?}");
    if let Some(turn) = script.turns.get(at) {
        take(&mut state, turn).unwrap();
        assert_eq!(state.root(), script.roots[at + 1]);
    }
}

#[test]
fn a_crash_leaves_the_state_after_a_block() {
    let script = draw_script(1);
    let images = Sweep::sampled(28, 60).one_in(5).crash(
        |disk| run(disk, &script),
        |crash| {
            let (durable, begun) = *crash.run;
            crash.images(Loss::each(crash.call), |image| {
                check_image(&image.disk, &script, durable, begun);
            })
        },
    );
    assert!(6 <= images, "{images}");
}

#[test]
fn a_fault_leaves_the_state_before_or_after_the_call() {
    let script = draw_script(0);
    for kind in [FaultKind::Eio, FaultKind::Enospc] {
        let struck = Sweep::sampled(29, 60).one_in(5).fault(kind, None, |disk, _| {
            let (durable, begun) = run(disk, &script);
            disk.set_plan(terrane_io::FaultPlan::default());
            let shared = disk.after_crash(terrane_io::Survival::Everything);
            check_image(&shared, &script, durable, begun);
        });
        assert!(0 < struck);
    }
}
