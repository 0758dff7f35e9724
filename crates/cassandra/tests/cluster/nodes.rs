//! A replay of real blocks beside nodes that are killed and started.
//!
//! The state is the set of unspent outputs of Bitcoin's first blocks, a commit for each block. The
//! same commits on a database in memory give the roots to expect.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use bitcoin::consensus::deserialize;
use bitcoin::{Block, OutPoint};
use terrane_kv::Memory;
use terrane_radix::{Address, Change, INDEXES, Options, Root, Store};

use crate::setup::{cluster, folder, store_name};

/// Blocks of the replay: variable of the environment, and the default.
const BLOCKS: (&str, usize) = ("TERRANE_TEST_BLOCKS", 1000);
/// Bytes before a block in its file: magic and length.
const FRAME: usize = 8;

/// The changes of each block.
fn history() -> Vec<Vec<Change>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/bitcoin-mainnet-0-4999.dat");
    let bytes = fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut blocks = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[4..FRAME].try_into().unwrap()) as usize;
        let block: Block = deserialize(&rest[FRAME..FRAME + length]).unwrap();
        blocks.push(changes(&block));
        rest = &rest[FRAME + length..];
    }
    blocks
}

/// The net changes of a block: an output that is made and spent in it is none.
fn changes(block: &Block) -> Vec<Change> {
    let mut changes = BTreeMap::new();
    for transaction in &block.txdata {
        for input in transaction.input.iter().map(|input| input.previous_output) {
            if !input.is_null() && changes.remove(&input).is_none() {
                changes.insert(input, Change::Delete(address(input)));
            }
        }
        let id = transaction.compute_txid();
        for (number, output) in (0..).zip(&transaction.output) {
            let amount = output.value.to_sat().to_le_bytes();
            let value = [&amount[..], output.script_pubkey.as_bytes()].concat();
            let output = OutPoint::new(id, number);
            changes.insert(output, Change::Set(address(output), value));
        }
    }
    changes.into_values().collect()
}

/// The transaction, and the number of its output in two bytes.
fn address(output: OutPoint) -> Address {
    let id: &[u8] = output.txid.as_ref();
    let number = u16::try_from(output.vout).unwrap().to_le_bytes();
    Address::new(&[id, &number[..]].concat()).unwrap()
}

/// Nodes that this test may kill and start.
struct Nodes {
    folder: PathBuf,
    addresses: Vec<SocketAddr>,
    /// Those that this test has started go on after it.
    started: Vec<Child>,
}

impl Nodes {
    fn node(&self, number: usize) -> PathBuf {
        self.folder.join(format!("node-{}", number + 1))
    }

    fn kill(&self, number: usize) {
        let pid = fs::read_to_string(self.node(number).join("pid")).unwrap();
        let killed = Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
        assert!(killed.success());
        println!("node {} killed", number + 1);
    }

    fn start(&mut self, number: usize) {
        let folder = self.node(number);
        let log = fs::OpenOptions::new().append(true).open(folder.join("log")).unwrap();
        let mut java = Command::new("java");
        java.arg(format!("@{}", folder.join("java.args").display())).current_dir(&folder);
        java.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let java = java.spawn().unwrap();
        fs::write(folder.join("pid"), java.id().to_string()).unwrap();
        self.started.push(java);
        println!("node {} started", number + 1);
    }

    fn answers(&self, number: usize) -> bool {
        TcpStream::connect(self.addresses[number]).is_ok()
    }
}

#[test]
fn a_replay_beside_nodes_that_are_killed_and_started_loses_nothing() {
    let Some(cluster) = cluster() else { return };
    let Some(folder) = folder() else {
        println!("skipped: the nodes of this cluster are not ours to kill");
        return;
    };
    let mut nodes = Nodes { folder, addresses: cluster.nodes.clone(), started: Vec::new() };
    let history = history();
    let blocks = std::env::var(BLOCKS.0).ok().and_then(|text| text.parse().ok());
    let history = &history[..blocks.unwrap_or(BLOCKS.1)];

    let memory =
        Store::open(Arc::new(Memory::new(&INDEXES).unwrap()), &Options::default()).unwrap();
    let expected = memory.create_tree("coins").unwrap();
    let store = store_name("replay");
    let options = cluster.options(&store).indexes(INDEXES);
    let database = Arc::new(terrane_cassandra::Cassandra::open(options.clone()).unwrap());
    let state = Store::open(database, &Options::default()).unwrap();
    let tree = state.create_tree("coins").unwrap();

    // Each node but the first in turn is killed and started again while blocks are committed.
    let quarter = history.len() / 4;
    let mut roots = vec![Root::EMPTY];
    let mut away = None;
    let start = Instant::now();
    for (height, changes) in history.iter().enumerate() {
        if height % quarter == quarter / 3 && away.is_none() {
            let victim = 1 + (height / quarter) % (nodes.addresses.len() - 1);
            nodes.kill(victim);
            away = Some((victim, false));
        }
        if height % quarter == 2 * quarter / 3
            && let Some((victim, false)) = away
        {
            nodes.start(victim);
            away = Some((victim, true));
        }
        if let Some((victim, true)) = away
            && nodes.answers(victim)
        {
            println!("node {} answers at block {height}", victim + 1);
            away = None;
        }

        let parent = *roots.last().unwrap();
        let root = tree.commit(&parent, changes).unwrap().root;
        assert_eq!(root, expected.commit(&parent, changes).unwrap().root, "block {height}");
        roots.push(root);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} blocks in {seconds:.1} s, {:.1} a second",
        history.len(),
        history.len() as f64 / seconds
    );

    // A node that is still on its way comes back before the next test.
    if let Some((victim, is_started)) = away {
        if !is_started {
            nodes.start(victim);
        }
        while !nodes.answers(victim) {
            std::thread::yield_now();
        }
    }

    let report = state.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    state.close().unwrap();
    drop(state);

    // Another process finds every root, and the newest state.
    let database = Arc::new(terrane_cassandra::Cassandra::open(options.read_only()).unwrap());
    let state = Store::open(database, &Options::default()).unwrap();
    let tree = state.tree("coins").unwrap();
    for root in &roots[1..] {
        assert!(tree.has_root(root).unwrap());
    }
    let tip = roots.last().unwrap();
    let leaves = |tree: &terrane_radix::Tree| {
        let leaves = tree.leaves(tip, &terrane_radix::Prefix::new(&[]).unwrap()).unwrap();
        leaves.collect::<Result<Vec<_>, _>>().unwrap()
    };
    assert_eq!(leaves(&tree), leaves(&expected));
}
