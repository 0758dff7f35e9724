//! Loads of random keys: commits of one key, with and without pruning, batches, lookups, listings,
//! room on disk.

use std::time::Instant;

use terrane::radix::{Address, Change, Prefix, PruneOptions, Pruned, Root};

use super::super::{Error, Result};
use super::databases::{Bed, Databases};
use super::keys::{Key, Keys, address};
use super::{Figure, Load, Sizes, ensure};
use crate::report::text::grouped;

/// Listings of each kind.
const LISTINGS: u64 = 256;

/// Runs a load, but the ten tests.
pub(super) fn run(
    load: Load,
    databases: &mut Databases,
    sizes: &Sizes,
    seed: u64,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    match load {
        Load::Single | Load::Prune => {
            for &commits in &sizes.commits {
                let bed = databases.bed()?;
                figures.push(single(&bed, load, commits, seed)?);
                databases.close(&bed)?;
            }
        }
        Load::Equal => {
            for &holders in &sizes.commits {
                let bed = databases.bed()?;
                figures.extend(equal(&bed, holders, seed)?);
                databases.close(&bed)?;
            }
        }
        _ => {
            let bed = databases.bed()?;
            let made = fill(&bed, sizes, seed)?;
            match load {
                Load::Batch => figures.extend(made.figures),
                Load::Get => figures.extend(get(&bed, &made, sizes, seed)?),
                Load::Leaves => figures.extend(leaves(&bed, &made)?),
                _ => figures.extend(space(&bed, &made)?),
            }
            databases.close(&bed)?;
        }
    }

    Ok(figures)
}

fn figure(name: String, count: u64, wall_s: f64, root: Root) -> Figure {
    let us_each = wall_s * 1e6 / count.max(1) as f64;
    Figure { name, count, wall_s, us_each, disk_bytes: None, root: root.to_string() }
}

pub(super) fn commits_name(load: Load, commits: u64) -> String {
    let pruning = if load == Load::Prune { ", each pruning the root before" } else { "" };
    format!("{} commits of 1 key{pruning}", grouped(commits))
}

fn single(bed: &Bed, load: Load, commits: u64, seed: u64) -> Result<Figure> {
    let changes: Result<Vec<Change>> =
        Keys::new(seed).take(commits as usize).map(|key| key.change()).collect();
    let changes = changes?;
    let name = bed.tree.name().to_owned();
    let start = Instant::now();

    let mut root = Root::EMPTY;
    for change in changes {
        if load == Load::Single {
            root = bed.tree.commit(&root, &[change])?.root;
            continue;
        }
        let before = root;
        let mut transaction = bed.store.transaction()?;
        root = transaction.commit(&name, &before, &[change])?.root;
        let pruned = transaction.prune(&name, &before, &PruneOptions::default())?;
        transaction.finish()?;
        ensure(
            before == Root::EMPTY || matches!(pruned, Pruned::Removed { count, .. } if count > 0),
            || format!("pruning {before} gave {pruned:?}"),
        )?;
    }

    let wall_s = start.elapsed().as_secs_f64();
    let versions = bed.tree.versions()?.len() as u64;
    let expected = if load == Load::Prune { 1 } else { commits };
    ensure(versions == expected, || format!("{versions} versions are retained, not {expected}"))?;

    Ok(figure(commits_name(load, commits), commits, wall_s, root))
}

/// Addresses with one value: they are set in one commit, all overwritten in the next, and both
/// versions pruned.
fn equal(bed: &Bed, holders: u64, seed: u64) -> Result<Vec<Figure>> {
    let addresses: Result<Vec<Address>> =
        Keys::new(seed).take(holders as usize).map(|key| address(&key.address)).collect();

    let addresses = addresses?;
    let mut figures = Vec::new();
    let mut note = |what: &str, start: Instant, root: Root| {
        let name = format!("{what} {} addresses of one value", grouped(holders));
        figures.push(figure(name, holders, start.elapsed().as_secs_f64(), root));
    };

    let mut root = Root::EMPTY;
    let mut roots = Vec::new();
    for (what, value) in [("set", b"one"), ("overwrite", b"two")] {
        let set = |address: &Address| Change::Set(*address, value.to_vec());
        let changes: Vec<Change> = addresses.iter().map(set).collect();
        let start = Instant::now();
        root = bed.tree.commit(&root, &changes)?.root;
        note(what, start, root);
        roots.push(root);
    }

    for (what, root) in ["prune overwritten", "prune the last"].into_iter().zip(roots) {
        let start = Instant::now();
        let pruned = bed.tree.prune(&root)?;
        note(what, start, root);
        let is_removed = matches!(pruned, Pruned::Removed { count, .. } if count >= holders);
        ensure(is_removed, || format!("pruning {root} gave {pruned:?}"))?;
    }

    let left = bed.store.node_count()?;
    ensure(left == 1, || format!("{left} nodes are left, of an empty state"))?;
    Ok(figures)
}

/// A state of all batches.
struct CreatedBatches {
    keys: Vec<Key>,
    root: Root,
    figures: Vec<Figure>,
}

/// The batch from which on the last ones are told apart.
pub(super) fn last_batches(sizes: &Sizes) -> u64 {
    sizes.batches - sizes.batches.div_ceil(10)
}

pub(super) fn batches_name(sizes: &Sizes) -> String {
    let Sizes { batches, batch_keys, .. } = sizes;
    format!("keys in {} batches of {}", grouped(*batches), grouped(*batch_keys))
}

pub(super) fn last_name(sizes: &Sizes) -> String {
    let last = sizes.batches - last_batches(sizes);
    format!("keys of the last {}", grouped(last))
}

fn fill(bed: &Bed, sizes: &Sizes, seed: u64) -> Result<CreatedBatches> {
    let mut source = Keys::new(seed);
    let mut keys = Vec::new();
    let mut root = Root::EMPTY;

    let mut all_s = 0.0;
    let mut last_s = 0.0;
    for number in 0..sizes.batches {
        let batch: Vec<Key> = source.by_ref().take(sizes.batch_keys as usize).collect();
        let changes: Result<Vec<Change>> = batch.iter().map(Key::change).collect();
        let changes = changes?;
        let start = Instant::now();
        root = bed.tree.commit(&root, &changes)?.root;
        let took = start.elapsed().as_secs_f64();
        all_s += took;
        if number >= last_batches(sizes) {
            last_s += took;
        }
        keys.extend(batch);
    }

    let last = (sizes.batches - last_batches(sizes)) * sizes.batch_keys;
    let figures = vec![
        figure(batches_name(sizes), keys.len() as u64, all_s, root),
        figure(last_name(sizes), last, last_s, root),
    ];

    Ok(CreatedBatches { keys, root, figures })
}

/// Looks keys up once to bring them into memory, and once more.
fn get(bed: &Bed, made: &CreatedBatches, sizes: &Sizes, seed: u64) -> Result<Vec<Figure>> {
    let mut random = Keys::new(seed ^ 1);
    let mut chosen = Vec::new();
    let mut absent = Vec::new();

    for _ in 0..sizes.gets {
        let key = &made.keys[random.below(made.keys.len() as u64) as usize];
        chosen.push((address(&key.address)?, key.value));
    }

    for key in random.take(sizes.gets as usize) {
        absent.push(address(&key.address)?);
    }

    let lookup = || -> Result<f64> {
        let start = Instant::now();
        for (address, value) in &chosen {
            let found = bed.tree.get_one(&made.root, address)?;
            if found.as_deref() != Some(value) {
                return Err(Error::Wrong(format!("{address} reads {found:?}")));
            }
        }
        Ok(start.elapsed().as_secs_f64())
    };

    lookup()?;
    let present_s = lookup()?;
    let start = Instant::now();

    for address in &absent {
        let found = bed.tree.get_one(&made.root, address)?;
        if found.is_some() {
            return Err(Error::Wrong(format!("{address} reads {found:?}")));
        }
    }

    let absent_s = start.elapsed().as_secs_f64();
    let addresses: Vec<Address> = chosen.iter().map(|(address, _)| *address).collect();
    let start = Instant::now();

    let mut found = 0;
    for part in addresses.chunks(1_000) {
        found += bed.tree.get(&made.root, part)?.iter().flatten().count() as u64;
    }
    let many_s = start.elapsed().as_secs_f64();

    ensure(found == sizes.gets, || format!("of {} keys {found} were found", sizes.gets))?;
    Ok(vec![
        figure("lookups of a key".to_owned(), sizes.gets, present_s, made.root),
        figure("lookups of an absent key".to_owned(), sizes.gets, absent_s, made.root),
        figure("keys looked up 1,000 at once".to_owned(), sizes.gets, many_s, made.root),
    ])
}

/// Lists the leaves below a prefix, and returns their count.
fn list(bed: &Bed, root: &Root, prefix: &Prefix) -> Result<u64> {
    let mut count = 0;
    for leaf in bed.tree.leaves(root, prefix)? {
        leaf?;
        count += 1;
    }
    Ok(count)
}

/// Returns each prefix of one byte that keys have, with the number of its keys.
fn prefixes_of_one_byte(keys: &[Key]) -> Result<Vec<(Prefix, u64)>> {
    let mut prefixes = Vec::with_capacity(256);
    for byte in 0..=u8::MAX {
        let expected = keys.iter().filter(|key| key.address[0] == byte).count() as u64;
        if expected > 0 {
            let prefix = Prefix::new(&[byte]).map_err(|error| Error::Options(error.to_string()))?;
            prefixes.push((prefix, expected));
        }
    }
    Ok(prefixes)
}

/// Measures listings of all leaves, of those below one byte, and of single leaves.
fn leaves(bed: &Bed, made: &CreatedBatches) -> Result<Vec<Figure>> {
    let list = |prefix: &Prefix| list(bed, &made.root, prefix);
    let total = made.keys.len() as u64;

    // The first listing brings the state into memory and does not count.
    list(&Prefix::EMPTY)?;
    let start = Instant::now();
    let count = list(&Prefix::EMPTY)?;
    let all_s = start.elapsed().as_secs_f64();
    ensure(count == total, || format!("{count} leaves were listed, not {total}"))?;

    let of_byte = prefixes_of_one_byte(&made.keys)?;
    let start = Instant::now();
    for (prefix, expected) in &of_byte {
        let count = list(prefix)?;
        ensure(count == *expected, || {
            format!("{count} leaves begin with {prefix}, not {expected}")
        })?;
    }

    let bytes_s = start.elapsed().as_secs_f64();

    let mut whole = Vec::new();
    for key in made.keys.iter().take(LISTINGS as usize) {
        whole.push(Prefix::from(address(&key.address)?));
    }
    let start = Instant::now();

    for prefix in &whole {
        let count = list(prefix)?;
        ensure(count == 1, || format!("{count} leaves begin with {prefix}, not 1"))?;
    }

    let whole_s = start.elapsed().as_secs_f64();

    Ok(vec![
        figure("leaves of all".to_owned(), total, all_s, made.root),
        figure("leaves by prefixes of 1 byte".to_owned(), total, bytes_s, made.root),
        figure(
            "listings of 1 leaf by its address".to_owned(),
            whole.len() as u64,
            whole_s,
            made.root,
        ),
    ])
}

fn space(bed: &Bed, made: &CreatedBatches) -> Result<Vec<Figure>> {
    let database = bed.store.database();

    let disk_bytes = || database.disk_bytes().map_err(Error::database);
    let mut figures = Vec::new();
    let mut note = |name: &str, count: u64, start: Instant, bytes: u64| {
        let wall_s = start.elapsed().as_secs_f64();
        let measured = figure(name.to_owned(), count, wall_s, made.root);
        figures.push(Figure { disk_bytes: Some(bytes), ..measured });
    };

    let versions = bed.tree.versions()?.len() as u64;
    let start = Instant::now();
    note("all versions", versions, start, disk_bytes()?);
    database.compact().map_err(Error::database)?;
    note("all versions, compacted", versions, start, disk_bytes()?);
    let start = Instant::now();
    let pruned = bed.tree.retain(&[made.root].into())?;
    ensure(pruned == versions - 1, || format!("{pruned} versions were pruned of {versions}"))?;

    note("versions pruned", pruned, start, disk_bytes()?);
    let start = Instant::now();
    database.compact().map_err(Error::database)?;
    note("only the tip, compacted", 1, start, disk_bytes()?);
    let left = bed.store.node_count()?;
    let reached = bed.tree.nodes(&made.root)?.len() as u64 + 1;
    ensure(left == reached, || format!("{left} nodes are stored, of which {reached} are needed"))?;

    Ok(figures)
}
