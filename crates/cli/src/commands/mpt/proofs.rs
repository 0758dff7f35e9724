//! `terrane mpt prove`, `verify-proof` and `witness`: parts of a state for those who have only its
//! root.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use terrane::mpt::{Accesses, AccountProof, B256, ChangeSet, ProofError};

use super::{AccountReport, HeightArgs, address_of, slot_of, slots_of};
use crate::ui::args::{self, OutputArgs, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::stream::{Output, PROOF_BYTES_MAX, read_all};
use crate::ui::text::grouped;

pub(super) const PROVE_EXAMPLES: &str = "\
Examples:
  terrane mpt prove a.json 0x5df9b87991262f6ba471f09758cde1c0fc1de734 \\
    --store /data/state
  terrane mpt prove - 0x00000000219ab540356cbb839cbe05303d7705fa 0x41 \\
    --height 4_096 --store /data/state

The file is the result of `eth_getProof` (EIP-1186). For an account or slot that is not there, the \
proof shows its absence.";

pub(super) const VERIFY_EXAMPLES: &str = "\
Examples:
  terrane mpt verify-proof a.json --root \\
    0xd67e4d450343046425ae4271474353857ab860dbc0a1dde64b41b5cd3a532bf3
  curl -s $NODE -d @request.json |
    terrane mpt verify-proof - --root $STATE_ROOT --json

`verify-proof` needs no store. It reads the result of `eth_getProof`, or the whole answer of a \
node. A proof that does not hold ends with exit code 1.";

pub(super) const WITNESS_EXAMPLES: &str = "\
Examples:
  terrane mpt witness w.json 0x5df9b87991262f6ba471f09758cde1c0fc1de734 \\
    --store /data/state
  terrane mpt witness - 0x00000000219ab540356cbb839cbe05303d7705fa:0x41 \\
    --height 4_096 --store /data/state

The file has the nodes and codes that these reads need, as `debug_executionWitness` writes them. \
Slots stand behind the address and a colon, with commas between them.";

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// File for the proof; `-` is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Address of the account, in hexadecimal
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// Numbers of slots of its storage
    #[arg(value_name = "SLOT")]
    slots: Vec<String>,
    #[command(flatten)]
    height: HeightArgs,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyProofArgs {
    /// File of the proof; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Address that the proof must be about
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    /// Root of the state, as the header of its block has it
    #[arg(long, value_name = "ROOT")]
    root: String,
    /// Largest proof that is accepted
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size,
        default_value = PROOF_BYTES_MAX)]
    bytes_max: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WitnessArgs {
    /// File for the witness; `-` is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Addresses, each with the slots that are read: `ADDRESS:SLOT,SLOT`
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,
    #[command(flatten)]
    height: HeightArgs,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Serialize)]
struct Proven {
    #[serde(skip_serializing_if = "Option::is_none")]
    height: Option<u64>,
    root: String,
    file: String,
    bytes: u64,
    #[serde(flatten)]
    account: AccountReport,
}

#[derive(Serialize)]
struct WitnessReport {
    height: u64,
    root: String,
    file: String,
    bytes: u64,
    nodes: u64,
    codes: u64,
}

impl Proven {
    fn text(&self) -> String {
        let mut lines = vec![
            ("root", self.root.clone()),
            ("proof", format!("{} in {}", bytes(self.bytes), self.file)),
        ];
        lines.extend(self.account.lines());
        output::aligned(&lines)
    }
}

fn report_of(proof: &AccountProof) -> AccountReport {
    let slots = proof.slots.iter().map(|slot| (slot.slot, slot.value));
    AccountReport::new(&proof.address, proof.account, slots)
}

/// A JSON value as the bytes of a file.
fn encoded(json: &serde_json::Value) -> Vec<u8> {
    let mut bytes = format!("{json:#}").into_bytes();
    bytes.push(b'\n');
    bytes
}

impl ProveArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let output = Output::new(&self.file, self.force, self.common.output.json)?;
        let address = address_of(&self.address)?;
        let slots = slots_of(&self.slots)?;
        let state = self.height.open(&self.common.store)?;
        let proof = state.prove(&address, &slots)?;

        let encoded = encoded(&proof.to_json());
        let block = state.block();
        let report = Proven {
            height: Some(block.height),
            root: block.root.to_string(),
            file: self.file.display().to_string(),
            bytes: encoded.len() as u64,
            account: report_of(&proof),
        };
        output.write(&encoded)?;
        output.report(command, &report, &report.text())
    }
}

impl VerifyProofArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let refuse = || Failure::usage(format!("--root {:?}: a root has 64 hex digits", self.root));
        let root: B256 = self.root.parse().map_err(|_| refuse())?;
        let address = self.address.as_deref().map(address_of).transpose()?;
        let file = self.file.display().to_string();
        let encoded = read_all(&self.file, self.bytes_max)?;

        let json: serde_json::Value = serde_json::from_slice(&encoded)
            .map_err(|error| Failure::usage(format!("{file}: {error}")))?;
        let answer = json.get("result").unwrap_or(&json);
        let refused = |error: ProofError| match error {
            ProofError::InvalidJson { .. } => Failure::usage(error.to_string()).about(&file),
            error => Failure::check(error.to_string()).about(&file),
        };
        let proof = AccountProof::from_json(answer).map_err(refused)?;
        if let Some(address) = address.filter(|address| *address != proof.address) {
            let other = proof.address;
            let message = format!("the proof is about {other}, and not about {address}");
            return Err(Failure::check(message).about(&file));
        }
        proof.verify(root).map_err(refused)?;

        let bytes = encoded.len() as u64;
        let account = report_of(&proof);
        let report = Proven { height: None, root: root.to_string(), file, bytes, account };
        if self.output.json {
            return output::report(command, true, &report, &[]);
        }
        output::print(&report.text())
    }
}

impl WitnessArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let output = Output::new(&self.file, self.force, self.common.output.json)?;
        let mut accesses = Accesses::default();
        let mut addresses = Vec::new();
        for text in &self.addresses {
            let (address, slots) = text.split_once(':').unwrap_or((text, ""));
            let address = address_of(address)?;
            accesses.add_account(&address);
            addresses.push(address);
            for slot in slots.split(',').filter(|_| text.contains(':')) {
                accesses.add_slot(&address, &slot_of(slot)?);
            }
        }

        let state = self.height.open(&self.common.store)?;
        for account in state.accounts(&addresses)?.into_iter().flatten() {
            accesses.add_code(&account.code_hash);
        }
        let witness = state.witness(&accesses, &ChangeSet::default(), &[])?;
        let encoded = encoded(&witness.to_json());
        let block = state.block();
        let report = WitnessReport {
            height: block.height,
            root: block.root.to_string(),
            file: self.file.display().to_string(),
            bytes: encoded.len() as u64,
            nodes: witness.state.len() as u64,
            codes: witness.codes.len() as u64,
        };
        output.write(&encoded)?;
        output.report(command, &report, &report.text(&self.file))
    }
}

impl WitnessReport {
    fn text(&self, file: &Path) -> String {
        output::aligned(&[
            ("root", self.root.clone()),
            ("witness", format!("{} in {}", bytes(self.bytes), file.display())),
            ("nodes", grouped(self.nodes)),
            ("codes", grouped(self.codes)),
        ])
    }
}
