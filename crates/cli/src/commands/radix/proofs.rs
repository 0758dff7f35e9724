//! `terrane radix prove` and `verify-proof`: proofs of the values at addresses, or of their
//! absence, for a verifier who has only the root.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use terrane::radix::{Address, Form, Proof, Root, verify_proof};

use super::{Answer, CommonArgs, RootArgs, TreeArgs, addresses_of, find_root};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output::{self, bytes};
use crate::ui::stream::{Output, PROOF_BYTES_MAX, read_all};

pub(super) const PROVE_EXAMPLES: &str = "\
Examples:
  terrane radix prove abcd.proof abcd --store /data/radix
  terrane radix prove two.proof abcd 00ff --store /data/radix --root 4c5116ae \\
    --form full

For an address without a value, the proof shows its absence.";

pub(super) const VERIFY_EXAMPLES: &str = "\
Examples:
  terrane radix verify-proof abcd.proof \\
    --root 4c5116ae4e7439e4355ac190cc595225259142c42fd9d19a88dc14c48653d870
  terrane radix verify-proof two.proof abcd 00ff \\
    --root 4c5116ae4e7439e4355ac190cc595225259142c42fd9d19a88dc14c48653d870

`verify-proof` needs no store. If addresses are given, the proof must be about exactly these. A \
proof that does not hold ends with exit code 1.";

/// Name of a form of proofs.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormArg {
    /// Nodes in the bytes that are hashed, like Transact
    Full,
    /// Compact form with the same content
    Compact,
}

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// File for the proof; `-` is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Addresses: 1 to 35 bytes each, in lower-case hexadecimal
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,
    /// Form of the proof
    #[arg(long, value_enum, default_value_t = FormArg::Compact)]
    form: FormArg,
    #[command(flatten)]
    root: RootArgs,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyProofArgs {
    /// File of the proof; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Addresses that the proof must be about; all that it has if they are left out
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<String>,
    /// Root, all 64 digits of it
    #[arg(long, value_name = "ROOT")]
    root: String,
    /// Largest proof that is accepted
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size,
        default_value = PROOF_BYTES_MAX)]
    bytes_max: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Proven {
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<String>,
    root: String,
    file: String,
    bytes: u64,
    values: Vec<Answer>,
}

impl Proven {
    fn text(&self) -> String {
        let mut lines = vec![
            ("root", self.root.clone()),
            ("proof", format!("{} in {}", bytes(self.bytes), self.file)),
        ];

        for answer in &self.values {
            let value = answer.value_hex.as_ref().map_or("no value".to_owned(), |digits| {
                let value = literal::field(format!("hex:{digits}").as_bytes()).unwrap_or_default();
                literal::shown(&value)
            });
            lines.push((answer.address.as_str(), value));
        }

        output::aligned(&lines)
    }
}

impl ProveArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let output = Output::new(&self.file, self.force, self.common.output.json)?;
        let addresses = addresses_of(&self.addresses)?;
        let store = self.common.open_to_read()?;
        let tree = self.tree.find(&store)?;
        let root = find_root(&tree, self.root.root.as_deref())?;
        let proof = tree.prove(&root, &addresses)?;

        let form = match self.form {
            FormArg::Full => Form::Full,
            FormArg::Compact => Form::Compact,
        };

        let encoded = proof.to_bytes(form);
        store.close()?;
        let report = Proven {
            tree: Some(tree.name().to_owned()),
            root: root.to_string(),
            file: self.file.display().to_string(),
            bytes: encoded.len() as u64,
            values: of_proof(&proof, &root)?,
        };

        output.write(&encoded)?;

        output.report(command, &report, &report.text())
    }
}

fn of_proof(proof: &Proof, root: &Root) -> Result<Vec<Answer>, Failure> {
    let values = proof.verify(root).map_err(|error| Failure::check(error.to_string()))?;
    Ok(values.map(|(address, value)| Answer::new(&address, value)).collect())
}

impl VerifyProofArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let root: Result<Root, _> = self.root.parse();
        let root = root.map_err(|why| Failure::usage(format!("--root {:?}: {why}", self.root)))?;
        let addresses = addresses_of(&self.addresses)?;
        let file = self.file.display().to_string();
        let encoded = read_all(&self.file, self.bytes_max)?;

        let refused =
            |error: terrane::radix::ProofError| Failure::check(error.to_string()).about(&file);
        let values = if addresses.is_empty() {
            let proof = Proof::from_bytes(&encoded).map_err(refused)?;
            let values = proof.verify(&root).map_err(refused)?;
            values.map(|(address, value)| Answer::new(&address, value)).collect()
        } else {
            let values = verify_proof(&root, &encoded, &addresses).map_err(refused)?;
            let pairs = addresses.iter().zip(&values);
            let answer = |(address, value): (&Address, &Option<Vec<u8>>)| {
                Answer::new(address, value.as_deref())
            };
            pairs.map(answer).collect()
        };

        let bytes = encoded.len() as u64;
        let report = Proven { tree: None, root: root.to_string(), file, bytes, values };
        if self.output.json {
            return output::report(command, true, &report, &[]);
        }

        output::print(&report.text())
    }
}
