//! Modules of one concept.

pub mod text;
