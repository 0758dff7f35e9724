//! `terrane mpt`: the state of an Ethereum chain in a store.
//!
//! # JSON
//!
//! Hashes, roots and addresses begin with `0x`, as `eth_getProof` writes them. Balances and values
//! of slots are hexadecimal numbers in texts.
//!
//! | command        | fields                                                                    |
//! |----------------|---------------------------------------------------------------------------|
//! | `root`         | `height`, `block_hash`, `root`                                            |
//! | `get`          | `height`, `root`, `address`, `found`, the account, `slots`                |
//! | `prove`        | `height`, `root`, `file`, `bytes`, and the rest as of `get`               |
//! | `verify-proof` | as `prove`, without `height`                                              |
//! | `witness`      | `height`, `root`, `file`, `bytes`, `nodes`, `codes`                       |
//! | `diff`         | `from`, `to`, `accounts`, `slots`                                         |
//! | `prune`        | `below`, `changes` (that went)                                            |
//! | `export`       | `height`, `root`, `file`, `accounts`, `slots`, `codes`, `bytes`, `wall_s` |
//! | `import`       | the same, and `resumed` (whether an earlier import was gone on with)      |
//!
//! The account is `nonce`, `balance`, `storage_root` and `code_hash`, all null if there is none.
//! `slots` is a list of `slot` and `value`.
//!
//! The `accounts` of `diff` are a list of `account` (the hash of the address), `before` and
//! `after`: null, or the four fields of an account. Its `slots` are a list of `account`, `slot`
//! (the hash), `before` and `after`.

mod proofs;
mod transfer;

use std::path::Path;
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::ReaderOptions;
use terrane::mpt::{self, Account, Address, B256, State, StateAt, StateReader, U256};

use self::proofs::{ProveArgs, VerifyProofArgs, WitnessArgs};
use self::transfer::{ExportArgs, ImportArgs};
use crate::ui::args::{self, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::text::grouped;

/// Sub-commands of `terrane mpt`.
#[derive(Debug, Subcommand)]
pub(crate) enum MptCommand {
    /// Prints the last block, or a block below it, and the root after it
    #[command(after_help = ROOT_EXAMPLES)]
    Root(RootArgs),
    /// Prints an account, and slots of its storage
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArgs),
    /// Writes a proof of an account and of slots, or of their absence, as `eth_getProof` does
    #[command(after_help = proofs::PROVE_EXAMPLES)]
    Prove(ProveArgs),
    /// Checks a proof without a store, and prints the facts that it proves
    #[command(after_help = proofs::VERIFY_EXAMPLES)]
    VerifyProof(VerifyProofArgs),
    /// Writes the nodes and codes that reads of accounts and slots need without a store
    #[command(after_help = proofs::WITNESS_EXAMPLES)]
    Witness(WitnessArgs),
    /// Prints the accounts and slots that differ between two heights
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Forgets older heights: what reads, proofs, differences and reorgs need
    #[command(after_help = PRUNE_EXAMPLES)]
    Prune(PruneArgs),
    /// Writes the whole state of a height to a file
    #[command(after_help = transfer::EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Makes a state of a file of `export`, and checks its root; resumable
    #[command(after_help = transfer::IMPORT_EXAMPLES)]
    Import(ImportArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane replay ethereum data/ethereum-mainnet-0-8191.era1 --store /tmp/state
  terrane mpt root --store /tmp/state
  terrane mpt get 0x5df9b87991262f6ba471f09758cde1c0fc1de734 \\
    --store /tmp/state
  terrane mpt prove a.json 0x5df9b87991262f6ba471f09758cde1c0fc1de734 \\
    --store /tmp/state
  terrane mpt diff 4_096 8_191 --store /tmp/state
  terrane mpt export tip.mpt --store /tmp/state

Commands that only read work beside the process that writes the state. Heights below the last \
block can be read if the state keeps a history (`replay ethereum --history`). `terrane verify` and \
`terrane inspect` accept such a store.";

const ROOT_EXAMPLES: &str = "\
Examples:
  terrane mpt root --store /data/state
  terrane mpt root --height 4_096 --store /data/state --json";

const GET_EXAMPLES: &str = "\
Examples:
  terrane mpt get 0x5df9b87991262f6ba471f09758cde1c0fc1de734 \\
    --store /data/state
  terrane mpt get 0x00000000219ab540356cbb839cbe05303d7705fa 0x41 65 \\
    --height 4_096 --store /data/state --json

Slots are numbers, decimal or with 0x in hexadecimal. A slot without an entry is zero.";

const DIFF_EXAMPLES: &str = "\
Examples:
  terrane mpt diff 4_096 8_191 --store /data/state
  terrane mpt diff 100 99 --store /data/state --json

The hashes of addresses and slots are printed: the state does not know what they are hashes of.";

const PRUNE_EXAMPLES: &str = "\
Example:
  terrane mpt prune --below 1_000_000 --store /data/state

Afterwards height 1,000,000 and those above it can be read and gone back to.";

#[derive(Debug, Args)]
pub(crate) struct RootArgs {
    #[command(flatten)]
    height: HeightArgs,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Address of the account, in hexadecimal
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Numbers of slots of its storage
    #[arg(value_name = "SLOT")]
    slots: Vec<String>,
    #[command(flatten)]
    height: HeightArgs,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// First height
    #[arg(value_name = "FROM", value_parser = args::count)]
    from: u64,
    /// Second height, above the first one or below it
    #[arg(value_name = "TO", value_parser = args::count)]
    to: u64,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Lowest height that is kept
    #[arg(long, value_name = "HEIGHT", value_parser = args::count)]
    below: u64,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
struct HeightArgs {
    /// Height of a block; the last block if it is left out
    #[arg(long, alias = "at", value_name = "HEIGHT", value_parser = args::count)]
    height: Option<u64>,
}

#[derive(Serialize)]
struct BlockReport {
    height: u64,
    block_hash: String,
    root: String,
}

#[derive(Serialize)]
struct Found {
    height: u64,
    root: String,
    #[serde(flatten)]
    account: AccountReport,
}

/// An account, with slots.
#[derive(Serialize)]
struct AccountReport {
    address: String,
    found: bool,
    nonce: Option<u64>,
    balance: Option<String>,
    storage_root: Option<String>,
    code_hash: Option<String>,
    slots: Vec<SlotReport>,
}

#[derive(Serialize)]
struct SlotReport {
    slot: String,
    value: String,
}

#[derive(Serialize)]
struct Difference {
    from: u64,
    to: u64,
    accounts: Vec<AccountChange>,
    slots: Vec<SlotChange>,
}

#[derive(Serialize)]
struct AccountChange {
    account: String,
    before: Option<Fields>,
    after: Option<Fields>,
}

#[derive(Serialize)]
struct Fields {
    nonce: u64,
    balance: String,
    storage_root: String,
    code_hash: String,
}

#[derive(Serialize)]
struct SlotChange {
    account: String,
    slot: String,
    before: String,
    after: String,
}

#[derive(Serialize)]
struct PruneReport {
    below: u64,
    changes: u64,
}

impl MptCommand {
    /// Returns the name of the sub-command.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Root(_) => "mpt root",
            Self::Get(_) => "mpt get",
            Self::Prove(_) => "mpt prove",
            Self::VerifyProof(_) => "mpt verify-proof",
            Self::Witness(_) => "mpt witness",
            Self::Diff(_) => "mpt diff",
            Self::Prune(_) => "mpt prune",
            Self::Export(_) => "mpt export",
            Self::Import(_) => "mpt import",
        }
    }

    /// Runs the command and prints its report.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let command = self.command();
        match self {
            Self::Root(args) => args.run(command),
            Self::Get(args) => args.run(command),
            Self::Prove(args) => args.run(command),
            Self::VerifyProof(args) => args.run(command),
            Self::Witness(args) => args.run(command),
            Self::Diff(args) => args.run(command),
            Self::Prune(args) => args.run(command),
            Self::Export(args) => args.run(command),
            Self::Import(args) => args.run(command),
        }
    }
}

/// Opens a state for reading.
///
/// # Errors
/// [`Failure`].
pub(crate) fn open_to_read(dir: &Path) -> Result<StateReader, Failure> {
    check_is_state(dir)?;
    Ok(StateReader::open(RealDisk::auto(), dir, &ReaderOptions::default())?)
}

/// Refuses a directory that is not a state, before it is opened for writing.
fn check_is_state(dir: &Path) -> Result<(), Failure> {
    let shown = dir.display();
    if !dir.is_dir() {
        let what = if dir.exists() { "is not a directory" } else { "does not exist" };
        return Err(Failure::usage(format!("{shown} {what}")));
    }
    let disk: Arc<dyn Disk> = RealDisk::auto();
    // Whatever else the directory is, no state is in it.
    match mpt::is_state(disk.as_ref(), dir) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::usage(format!("{shown} is not an Ethereum state"))),
        Err(error) if error.kind() == terrane::io::ErrorKind::Corrupt => Err(error.into()),
        Err(error) => {
            let failure = Failure::from(error);
            Err(Failure::usage(format!("{shown} is not an Ethereum state: {}", failure.message())))
        }
    }
}

impl HeightArgs {
    /// The state at the height.
    fn of(&self, reader: &StateReader) -> Result<StateAt, Failure> {
        if reader.is_import_unfinished()? {
            return Err(mpt::Error::ImportUnfinished.into());
        }
        match self.height {
            Some(height) => Ok(reader.at(height)?),
            None if reader.tip()?.is_none() => Err(Failure::not_found("the state has no block")),
            None => Ok(reader.latest()?),
        }
    }

    fn open(&self, store: &Path) -> Result<StateAt, Failure> {
        self.of(&open_to_read(store)?)
    }
}

/// Parses an address, with 0x or without.
fn address_of(text: &str) -> Result<Address, Failure> {
    text.parse().map_err(|_| Failure::usage(format!("{text:?}: an address has 40 hex digits")))
}

/// Parses the number of a slot.
fn slot_of(text: &str) -> Result<B256, Failure> {
    let refuse = || Failure::usage(format!("{text:?}: a slot is a number, such as 7 or 0x2a"));
    let is_number = |digits: &str, radix: u32| {
        !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix))
    };
    let number = match text.strip_prefix("0x") {
        Some(digits) if is_number(digits, 16) => U256::from_str_radix(digits, 16).ok(),
        None if is_number(text, 10) => U256::from_str_radix(text, 10).ok(),
        _ => None,
    };
    Ok(B256::from(number.ok_or_else(refuse)?))
}

fn slots_of(texts: &[String]) -> Result<Vec<B256>, Failure> {
    texts.iter().map(|text| slot_of(text)).collect()
}

fn number(number: U256) -> String {
    format!("{number:#x}")
}

impl Fields {
    fn new(account: &Account) -> Self {
        Self {
            nonce: account.nonce,
            balance: number(account.balance),
            storage_root: account.storage_root.to_string(),
            code_hash: account.code_hash.to_string(),
        }
    }
}

impl AccountReport {
    fn new(
        address: &Address,
        account: Option<Account>,
        slots: impl Iterator<Item = (B256, U256)>,
    ) -> Self {
        let fields = account.as_ref().map(Fields::new);
        let slot = |(slot, value): (B256, U256)| SlotReport {
            slot: number(U256::from_be_bytes(slot.0)),
            value: number(value),
        };
        Self {
            address: address.to_string(),
            found: account.is_some(),
            nonce: account.map(|account| account.nonce),
            balance: fields.as_ref().map(|fields| fields.balance.clone()),
            storage_root: fields.as_ref().map(|fields| fields.storage_root.clone()),
            code_hash: fields.map(|fields| fields.code_hash),
            slots: slots.map(slot).collect(),
        }
    }

    fn lines(&self) -> Vec<(&str, String)> {
        let none = || "none".to_owned();
        let text = |field: &Option<String>| field.clone().unwrap_or_else(none);
        let mut lines = vec![("address", self.address.clone())];
        if self.found {
            lines.push(("nonce", self.nonce.map_or_else(none, |nonce| nonce.to_string())));
            lines.push(("balance", text(&self.balance)));
            lines.push(("storage root", text(&self.storage_root)));
            lines.push(("code hash", text(&self.code_hash)));
        } else {
            lines.push(("account", none()));
        }
        lines.extend(self.slots.iter().map(|slot| (slot.slot.as_str(), slot.value.clone())));
        lines
    }
}

impl RootArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let reader = open_to_read(&self.common.store)?;
        // Roots of blocks are known without a history, too.
        let block = match self.height.height {
            Some(height) => match reader.block_at(height)? {
                Some(block) => block,
                None => return Err(Failure::not_found(format!("no block at height {height}"))),
            },
            None => self.height.of(&reader)?.block(),
        };
        let report = BlockReport {
            height: block.height,
            block_hash: block.hash.to_string(),
            root: block.root.to_string(),
        };
        let lines = [
            ("height", report.height.to_string()),
            ("block hash", report.block_hash.clone()),
            ("root", report.root.clone()),
        ];
        output::report(command, self.common.output.json, &report, &lines)
    }
}

impl GetArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let address = address_of(&self.address)?;
        let slots = slots_of(&self.slots)?;
        let state = self.height.open(&self.common.store)?;

        let account = state.account(&address)?;
        let pairs: Vec<_> = slots.iter().map(|slot| (address, *slot)).collect();
        let values = state.slots(&pairs)?;
        let account = AccountReport::new(&address, account, slots.into_iter().zip(values));
        let block = state.block();
        let report = Found { height: block.height, root: block.root.to_string(), account };

        if !report.account.found && !self.common.output.json {
            let height = report.height;
            return Err(Failure::not_found(format!("no account {address} at height {height}")));
        }
        let lines = report.account.lines();
        output::report(command, self.common.output.json, &report, &lines)
    }
}

impl DiffArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let reader = open_to_read(&self.common.store)?;
        let found = reader.diff(self.from, self.to)?;
        let account = |diff: &mpt::AccountDiff| AccountChange {
            account: diff.account.to_string(),
            before: diff.before.as_ref().map(Fields::new),
            after: diff.after.as_ref().map(Fields::new),
        };
        let slot = |diff: &mpt::SlotDiff| SlotChange {
            account: diff.account.to_string(),
            slot: diff.slot.to_string(),
            before: number(diff.before),
            after: number(diff.after),
        };
        let report = Difference {
            from: self.from,
            to: self.to,
            accounts: found.accounts.iter().map(account).collect(),
            slots: found.slots.iter().map(slot).collect(),
        };
        if self.common.output.json {
            return output::report(command, true, &report, &[]);
        }
        output::print(&report.text())
    }
}

impl Difference {
    fn text(&self) -> String {
        let fields = |fields: &Option<Fields>| {
            let shown = |fields: &Fields| format!("nonce {}, {}", fields.nonce, fields.balance);
            fields.as_ref().map_or_else(|| "none".to_owned(), shown)
        };
        let mut lines = Vec::new();
        for AccountChange { account, before, after } in &self.accounts {
            lines.push(format!("account {account}: {} -> {}", fields(before), fields(after)));
        }
        for SlotChange { account, slot, before, after } in &self.slots {
            lines.push(format!("slot {account} {slot}: {before} -> {after}"));
        }
        let accounts = grouped(self.accounts.len() as u64);
        lines.push(format!("accounts {accounts}, slots {}", grouped(self.slots.len() as u64)));
        lines.join("\n")
    }
}

impl PruneArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        // A refused command changes nothing, and opening a store recovers it.
        let reader = open_to_read(&self.common.store)?;
        let tip = reader.tip()?.map(|tip| tip.height);
        drop(reader);
        if tip.is_none_or(|tip| tip < self.below) {
            return Err(mpt::Error::UnknownHeight { height: self.below }.into());
        }

        let mut state = open_to_write(&self.common.store)?;
        let pruned = state.prune_history(self.below);
        let closed = state.close();
        let report = PruneReport { below: self.below, changes: pruned?.changes };
        closed?;
        let lines = [("kept from", grouped(report.below)), ("changes", grouped(report.changes))];
        output::report(command, self.common.output.json, &report, &lines)
    }
}

fn open_to_write(dir: &Path) -> Result<State, Failure> {
    Ok(State::open_dir(dir, &mpt::Options::default())?)
}
