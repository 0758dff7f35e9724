//! The benchmark of random reads: what a lookup costs in reads when memory is a small part of the data.

pub mod data;
