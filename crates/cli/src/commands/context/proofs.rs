//! `terrane context prove` and `verify-proof`: proofs of the content of paths, for a verifier who
//! has only the hash of the tree.
//!
//! A file is one proof in the format of `docs/format/merkle-proof.md`. It does not name its
//! questions: the verifier asks, and gets the answers that the tree would give. Without questions,
//! `verify-proof` lists all facts of the proof.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use terrane::context::{
    self, Hash, InodeProof, InodeTree, Kind, KindedHash, Proof, ProofEntry, ProofError, ProofTree,
    Rules, Tree, produce_tree_proof,
};

use super::{checkout, open, path_text, steps};
use crate::ui::args::{self, OutputArgs, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output::{self, bytes};
use crate::ui::stream::{Output, PROOF_BYTES_MAX, read_all};
use crate::ui::text::{count_of, hex};

pub(super) const PROVE_EXAMPLES: &str = "\
Examples:
  A value:
    terrane context prove version.proof --find data/version \\
      --store /data/context --commit main
  An absent path, the number of children of a directory, and ten of them:
    terrane context prove p.proof --mem data/a --length data/b --list data/b \\
      --limit 10 --store /data/context

The proof is about the hash of the root tree of the commit. The report names it: `root_hex`, as \
in `terrane context log`.";

pub(super) const VERIFY_EXAMPLES: &str = "\
Examples:
  Print the facts that a proof shows below a known root:
    terrane context verify-proof version.proof --root 4ce6d4..
  Repeat the question of the proof:
    terrane context verify-proof version.proof --root 4ce6d4.. \\
      --find data/version --json

A proof shows the content of paths below a root. The root is a hash that the caller trusts: \
`root_hex` of `terrane context log`. A question that the proof does not answer ends with exit \
code 1, which says nothing about presence or absence.";

#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// File for the proof; `-` is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    questions: Questions,
    /// Commit or branch; the newest commit if it is left out
    #[arg(long, alias = "at", value_name = "COMMIT")]
    commit: Option<String>,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyProofArgs {
    /// File of the proof; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Hash of the root tree of a commit, in hexadecimal
    #[arg(long, value_name = "HEX", value_parser = root_hash)]
    root: RootHash,
    #[command(flatten)]
    questions: Questions,
    /// Hash scheme of the tree
    #[arg(long, value_enum, default_value_t = SchemeName::Tezos)]
    scheme: SchemeName,
    /// Largest proof that is accepted
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size,
        default_value = PROOF_BYTES_MAX)]
    bytes_max: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Questions to a tree; each may be given several times.
#[derive(Debug, Args)]
struct Questions {
    /// Path of a value, or of nothing
    #[arg(long, value_name = "PATH")]
    find: Vec<String>,
    /// Path at which there may be a value
    #[arg(long, value_name = "PATH")]
    mem: Vec<String>,
    /// Path at which there may be a value or a directory
    #[arg(long, value_name = "PATH")]
    mem_tree: Vec<String>,
    /// Path of a directory whose children are listed
    #[arg(long, value_name = "PATH")]
    list: Vec<String>,
    /// Path of a directory whose children are counted
    #[arg(long, value_name = "PATH")]
    length: Vec<String>,
    /// Number of children that a list leaves out, in the order of storage
    #[arg(long, value_name = "N", value_parser = args::count, requires = "list",
        default_value = "0")]
    offset: u64,
    /// Maximum number of children to list
    #[arg(long, value_name = "N", value_parser = args::count, requires = "list")]
    limit: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SchemeName {
    /// Hashes of Tezos
    Tezos,
    /// Trees of the same shape with BLAKE3 hashes
    Blake3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RootHash([u8; 32]);

fn root_hash(text: &str) -> Result<RootHash, String> {
    let bytes = literal::field(format!("hex:{text}").as_bytes()).ok();
    let hash = bytes.and_then(|bytes| bytes.try_into().ok());
    hash.map(RootHash).ok_or_else(|| "not a hash; write 64 hexadecimal digits".to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Question {
    Find,
    Mem,
    MemTree,
    List,
    Length,
}

/// Answer of the tree to a question.
#[derive(Debug, Default, Serialize)]
struct Reply {
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<u64>,
    /// Text for people.
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Serialize)]
struct Answer {
    question: Question,
    path: String,
    #[serde(flatten)]
    reply: Reply,
}

#[derive(Serialize)]
struct Proven {
    commit: String,
    root_hex: String,
    file: String,
    bytes: u64,
    answers: Vec<Answer>,
}

#[derive(Serialize)]
struct Verified {
    root_hex: String,
    file: String,
    bytes: u64,
    #[serde(flatten)]
    content: ProofContent,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    answers: Vec<Answer>,
}

/// Facts of a proof.
#[derive(Default, Serialize)]
struct ProofContent {
    hidden: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<HeldValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    directories: Option<Vec<HeldDirectory>>,
}

#[derive(Serialize)]
struct HeldValue {
    path: String,
    bytes: u64,
    value_hex: String,
    /// Text for people.
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
struct HeldDirectory {
    path: String,
    children: u64,
}

impl Question {
    fn name(self) -> &'static str {
        match self {
            Self::Find => "find",
            Self::Mem => "mem",
            Self::MemTree => "mem-tree",
            Self::List => "list",
            Self::Length => "length",
        }
    }
}

/// Returns a value as text for people; a long value as its length.
fn value_text(value: &[u8]) -> String {
    const SHOWN_MAX: usize = 64;
    let text = if value.len() <= SHOWN_MAX { literal::shown(value) } else { String::new() };
    format!("{} {text}", count_of(value.len() as u64, "byte", "bytes")).trim_end().to_owned()
}

type Asked<'a> = (Question, &'a str, Vec<Vec<u8>>);

impl Questions {
    /// Adds all facts below a state, with their paths.
    fn all(&self) -> Result<Vec<Asked<'_>>, Failure> {
        let kinds = [
            (Question::Find, &self.find),
            (Question::Mem, &self.mem),
            (Question::MemTree, &self.mem_tree),
            (Question::List, &self.list),
            (Question::Length, &self.length),
        ];
        let paths = kinds.into_iter().flat_map(|(question, paths)| {
            paths.iter().map(move |path| Ok((question, path.as_str(), steps(path)?)))
        });
        paths.collect()
    }

    /// Asks all questions to a tree, or to a part of one.
    fn ask(&self, tree: &Tree, asked: &[Asked<'_>]) -> context::Result<Vec<Answer>> {
        let answer = |(question, path, steps): &Asked<'_>| {
            let reply = self.answer(tree, *question, steps)?;
            Ok(Answer { question: *question, path: (*path).to_owned(), reply })
        };
        asked.iter().map(answer).collect()
    }

    fn answer(&self, tree: &Tree, question: Question, path: &[Vec<u8>]) -> context::Result<Reply> {
        let is_there = |found: bool| Reply {
            found: Some(found),
            text: if found { "present" } else { "absent" }.to_owned(),
            ..Reply::default()
        };

        Ok(match question {
            Question::Find => match tree.find(path)? {
                None => Reply { text: "no value".to_owned(), ..is_there(false) },
                Some(value) => Reply {
                    bytes: Some(value.len() as u64),
                    value_hex: Some(hex(&value)),
                    text: value_text(&value),
                    ..is_there(true)
                },
            },
            Question::Mem => is_there(tree.mem(path)?),
            Question::MemTree => is_there(tree.mem_tree(path)?),
            Question::List => {
                let offset = usize::try_from(self.offset).unwrap_or(usize::MAX);
                let limit = self.limit.and_then(|limit| usize::try_from(limit).ok());
                let page = tree.list(path, offset, limit.unwrap_or(usize::MAX))?;
                let steps: Vec<String> = page.iter().map(|(step, _)| path_text(&[step])).collect();
                Reply { text: steps.join(" "), steps: Some(steps), ..Reply::default() }
            }
            Question::Length => {
                let children = tree.length(path)?;
                let text = count_of(children, "child", "children");
                Reply { children: Some(children), text, ..Reply::default() }
            }
        })
    }
}

impl Answer {
    fn line(&self) -> String {
        format!("{} {}: {}", self.question.name(), self.path, self.reply.text)
    }
}

impl ProveArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let asked = self.questions.all()?;
        if asked.is_empty() {
            let why = "nothing to prove; give --find, --mem, --mem-tree, --list or --length";
            return Err(Failure::usage(why));
        }

        let output = Output::new(&self.file, self.force, self.common.output.json)?;
        let store = open(&self.common.store)?;
        let (commit, context) = checkout(&store, self.commit.as_deref())?;

        let (proof, answers) = produce_tree_proof(context.tree(), |tree| {
            let answers = self.questions.ask(&tree, &asked)?;
            Ok((tree, answers))
        })?;

        let encoded = proof.encode()?;
        let report = Proven {
            commit: commit.to_base58(),
            root_hex: hex(context.tree().hash().as_bytes()),
            file: self.file.display().to_string(),
            bytes: encoded.len() as u64,
            answers,
        };

        output.write(&encoded)?;

        output.report(command, &report, &report.text())
    }
}

impl Proven {
    fn text(&self) -> String {
        let lines = [
            ("commit", self.commit.clone()),
            ("root", self.root_hex.clone()),
            ("proof", format!("{} in {}", bytes(self.bytes), self.file)),
        ];
        let answers = self.answers.iter().map(Answer::line);
        [output::aligned(&lines)].into_iter().chain(answers).collect::<Vec<_>>().join("\n")
    }
}

impl VerifyProofArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let asked = self.questions.all()?;
        let file = self.file.display().to_string();
        let encoded = read_all(&self.file, self.bytes_max)?;
        let about = |failure: Failure| failure.about(&file);
        let proof = Proof::decode(&encoded).map_err(|error| about(error.into()))?;
        let RootHash(root) = self.root;

        let rules = match self.scheme {
            SchemeName::Tezos => Rules::TEZOS,
            SchemeName::Blake3 => Rules::BLAKE3,
        };

        let root_hex = hex(&root);
        let verified = proof.verify(&rules, KindedHash::directory(Hash(root)));
        let verified = verified.map_err(|error| match error {
            ProofError::RootMismatch { found, .. } => {
                let kind = if found.kind == Kind::Value { "value" } else { "directory" };
                let found = hex(found.hash.as_bytes());
                about(Failure::check(format!(
                    "the proof is about the {kind} {found}, not about the directory {root_hex}"
                )))
            }
            other => about(other.into()),
        })?;

        let answers = verified.replay(|tree| {
            let answers = self.questions.ask(&tree, &asked)?;
            Ok((tree, answers))
        });

        let (_, answers) = answers.map_err(|error| match error {
            ProofError::AfterMismatch { .. } => about(Failure::usage(
                "the proof is of a change of the tree; only questions can be verified here",
            )),
            other => about(other.into()),
        })?;

        let mut content = ProofContent::default();
        if asked.is_empty() {
            content = ProofContent {
                values: Some(Vec::new()),
                directories: Some(Vec::new()),
                ..ProofContent::default()
            };
        }

        content.add(&mut Vec::new(), verified.state());
        let bytes = encoded.len() as u64;

        let report = Verified { root_hex, file, bytes, content, answers };
        if self.output.json {
            return output::report(command, true, &report, &[]);
        }

        output::print(&report.text())
    }
}

impl ProofContent {
    fn add<'p>(&mut self, path: &mut Vec<&'p [u8]>, tree: &'p ProofTree) {
        match tree {
            ProofTree::Value(value) => {
                if let Some(values) = &mut self.values {
                    values.push(HeldValue {
                        path: path_text(path),
                        bytes: value.len() as u64,
                        value_hex: hex(value),
                        text: value_text(value),
                    });
                }
            }
            ProofTree::BlindedValue(_) | ProofTree::BlindedNode(_) => self.hidden += 1,
            ProofTree::Node(entries) => {
                self.directory(path, entries.len() as u64);
                self.entries(path, entries);
            }
            ProofTree::Inode(inode) => {
                self.directory(path, inode.length);
                self.inode(path, inode);
            }
            ProofTree::Extender(chain) => {
                self.directory(path, chain.length);
                self.inode_tree(path, &chain.proof);
            }
        }
    }

    fn directory(&mut self, path: &[&[u8]], children: u64) {
        if let Some(directories) = &mut self.directories {
            directories.push(HeldDirectory { path: path_text(path), children });
        }
    }

    fn entries<'p>(&mut self, path: &mut Vec<&'p [u8]>, entries: &'p [ProofEntry]) {
        for (step, tree) in entries {
            path.push(step);
            self.add(path, tree);
            path.pop();
        }
    }

    fn inode<'p>(&mut self, path: &mut Vec<&'p [u8]>, inode: &'p InodeProof) {
        inode.proofs.iter().for_each(|(_, tree)| self.inode_tree(path, tree));
    }

    // Recursion is bounded: a decoded proof nests at most `NESTING_MAX` deep.
    fn inode_tree<'p>(&mut self, path: &mut Vec<&'p [u8]>, tree: &'p InodeTree) {
        match tree {
            InodeTree::BlindedInode(_) => self.hidden += 1,
            InodeTree::Values(entries) => self.entries(path, entries),
            InodeTree::Tree(inode) => self.inode(path, inode),
            InodeTree::Extender(chain) => self.inode_tree(path, &chain.proof),
        }
    }
}

impl Verified {
    fn text(&self) -> String {
        let hidden = count_of(self.content.hidden, "part", "parts");
        let lines = [
            ("root", self.root_hex.clone()),
            ("proof", format!("{} in {}, right", bytes(self.bytes), self.file)),
            ("hidden", format!("{hidden} of the tree")),
        ];

        let mut all = vec![output::aligned(&lines)];
        all.extend(self.answers.iter().map(Answer::line));

        let directories = self.content.directories.iter().flatten();
        all.extend(directories.map(|HeldDirectory { path, children }| {
            format!("{path}/: {}", count_of(*children, "child", "children"))
        }));
        let values = self.content.values.iter().flatten();
        all.extend(values.map(|HeldValue { path, text, .. }| format!("{path}: {text}")));

        all.join("\n")
    }
}
