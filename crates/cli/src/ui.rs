//! Everything between the user and a command: arguments, output, errors and exit codes, progress.
//!
//! This folder knows no command and opens no store. It imports the libraries only for their error
//! types ([`exit`]) and for the limits that arguments are checked against ([`args`]).
//!
//! Begin with [`exit::Failure`], the one error type of the program: every error of a library
//! becomes a `Failure` with an exit code, a word for programs (`error.kind`) and a sentence for
//! people. Then read [`output`], which prints reports as text or as the one JSON object.
//!
//! # Invariants
//!
//! - Standard output gets at most one JSON object, also if Ctrl-C arrives while a command ends:
//!   [`output::print_object`] prints the first and drops the second.
//! - Standard error gets everything else: bars, warnings, messages.
//! - A reader of standard output that goes away (`| head`) is no failure.
//! - An output file is complete or unchanged: [`stream::Target`] writes beside it and renames.
//! - [`literal::shown`] and [`literal::field`] are inverse, so that printed keys can be typed
//!   again.
//!
//! Rejected: a signal handler that unwinds. A thread receives the signals and ends the process;
//! stores recover from that like from a crash. Long work is asked to stop instead, by a flag.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod args;
pub(crate) mod exit;
pub(crate) mod text;
pub(crate) mod literal;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod stream;
