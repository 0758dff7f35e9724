//! The suite itself: it passes a back-end that keeps the rules, and each rule catches those that
//! break it.

use terrane_kv::conformance::{Extent, RULES, check, check_rule};

use crate::broken::{Broken, Flaw};

/// Each flaw, and the rule that must notice it.
const CAUGHT: &[(Flaw, &str)] = &[
    (Flaw::PutReplaces, "changes"),
    (Flaw::RefusedPutReplaces, "changes"),
    (Flaw::DeleteSucceeds, "changes"),
    (Flaw::RemoveFails, "changes"),
    (Flaw::GetManySorts, "reads"),
    (Flaw::OneIndex, "tables"),
    (Flaw::AnyIndex, "unknown index"),
    (Flaw::AnyName, "names of indexes"),
    (Flaw::KeysCut, "sizes of keys"),
    (Flaw::AnySize, "sizes of keys"),
    (Flaw::AnySize, "sizes of values"),
    (Flaw::ValuesCut, "sizes of values"),
    (Flaw::EmptyIsAbsent, "sizes of values"),
    (Flaw::SeenAtOnce, "atomic commits"),
    (Flaw::SeenAtOnce, "rollback"),
    (Flaw::SeenAtOnce, "snapshots beside a writer"),
    (Flaw::DropCommits, "rollback"),
    (Flaw::OwnGetStale, "own reads"),
    (Flaw::OwnCursorStale, "own reads"),
    (Flaw::OwnCountStale, "own reads"),
    (Flaw::RefusalRollsBack, "refused calls"),
    (Flaw::OrderByLength, "cursor order"),
    (Flaw::SeekBehind, "cursor seeks"),
    (Flaw::TurnSkips, "cursor seeks"),
    (Flaw::LastSkipped, "cursor seeks"),
    (Flaw::OwnCursorStale, "cursor of a writer"),
    (Flaw::RemovedLastStays, "cursor of a writer"),
    (Flaw::MovingValues, "snapshots"),
    (Flaw::MovingCounts, "snapshots"),
    (Flaw::MovingCursors, "snapshots"),
    (Flaw::MovingCursors, "snapshot cursors"),
    (Flaw::LateSnapshot, "snapshots"),
    (Flaw::LateSnapshot, "snapshots elsewhere"),
    (Flaw::ReaderEndsWithHandle, "snapshots elsewhere"),
    (Flaw::ReceiptsRepeat, "receipts"),
    (Flaw::SettleFails, "receipts"),
    (Flaw::CountsRollbacks, "counts"),
    (Flaw::Boasts, "guarantee"),
    (Flaw::SettingTwice, "guarantee"),
    (Flaw::CompactionLoses, "compaction"),
    (Flaw::OpenAfterClose, "closing"),
    (Flaw::SeventhLost, "histories"),
    (Flaw::MovingValues, "histories"),
    (Flaw::Forgets, "histories"),
    (Flaw::BatchCut, "large transactions"),
    (Flaw::WritersBeside, "one writer"),
    (Flaw::WritersBeside, "one writer of a thread"),
    (Flaw::HalfCommits, "whole commits for readers"),
    (Flaw::Forgets, "reopening"),
    (Flaw::DropCommits, "reopening"),
    (Flaw::IndexByPlace, "indexes at reopening"),
];

#[test]
fn a_back_end_that_is_opened_again_keeps_all_rules() {
    for seed in 0..4 {
        let report = check(&mut Broken::new(Flaw::Sound), &Extent::small(seed)).unwrap();
        let names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(report.kept, names);
        assert!(report.skipped.is_empty());
    }
}

#[test]
fn each_flaw_is_caught_by_its_rule() {
    let extent = Extent::small(1);
    for &(flaw, name) in CAUGHT {
        let rule = RULES.iter().find(|rule| rule.name == name).unwrap();
        let Err(failure) = check_rule(rule, &mut Broken::new(flaw), &extent) else {
            panic!("{flaw:?} keeps the rule {name}");
        };
        assert_eq!(failure.rule, name);
        let text = failure.to_string();
        assert!(text.starts_with(&format!("rule {name}: ")), "{text}");
        assert!(!failure.step.is_empty() && failure.expected != failure.found, "{text}");
    }
}

#[test]
fn each_rule_catches_a_flaw() {
    for rule in RULES {
        assert!(CAUGHT.iter().any(|(_, name)| *name == rule.name), "{}", rule.name);
    }
}
