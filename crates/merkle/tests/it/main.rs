//! Tests of the context store through its public face.

mod collection;
mod crash;
mod damage;
mod faults;
mod golden;
mod processes;
mod script;
mod stores;
mod trees;
mod vectors;
