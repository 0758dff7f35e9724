//! Ethereum states as `terrane inspect` shows them, beside the store that they are in.

use std::path::Path;

use serde::Serialize;
use terrane::mpt::Block;

use crate::commands::mpt::open_to_read;
use crate::ui::exit::Failure;
use crate::ui::output;

/// Report of a state.
#[derive(Serialize)]
pub(crate) struct StateInfo {
    /// Null before the first block.
    height: Option<u64>,
    block_hash: Option<String>,
    root: Option<String>,
    /// Null without a history.
    history_from: Option<u64>,
    /// Null if nothing was pruned.
    reorg_from: Option<u64>,
    is_import_unfinished: bool,
}

impl StateInfo {
    /// Reads the state in a directory.
    pub(crate) fn read(dir: &Path) -> Result<Self, Failure> {
        let reader = open_to_read(dir)?;
        let tip = reader.tip()?;
        let (history_from, reorg_from) = reader.floors()?;
        Ok(Self {
            height: tip.map(|tip| tip.height),
            block_hash: tip.map(|tip| tip.hash.to_string()),
            root: tip.map(|Block { root, .. }| root.to_string()),
            history_from,
            reorg_from,
            is_import_unfinished: reader.is_import_unfinished()?,
        })
    }

    pub(crate) fn text(&self) -> String {
        let none = || "none".to_owned();
        let height = |height: Option<u64>| height.map_or_else(none, |height| height.to_string());
        let mut lines = vec![
            ("ethereum state", format!("block {}", height(self.height))),
            ("block hash", self.block_hash.clone().unwrap_or_else(none)),
            ("root", self.root.clone().unwrap_or_else(none)),
            ("history from", height(self.history_from)),
        ];
        if self.reorg_from.is_some() {
            lines.push(("reorgs to", height(self.reorg_from)));
        }
        if self.is_import_unfinished {
            lines.push(("import", "not finished".to_owned()));
        }
        output::aligned(&lines)
    }
}
