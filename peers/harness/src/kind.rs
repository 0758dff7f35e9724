//! The engines by name.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($($feature:literal $kind:ident $name:literal,)*) => {
        /// The engines that are built in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
        #[serde(rename_all = "lowercase")]
        #[value(rename_all = "lowercase")]
        pub enum Kind {
            /// Ours.
            Terrane,
            /// Pebble, of `CockroachDB`, in Go.
            Pebble,
            /// Badger, of Dgraph, in Go.
            Badger,
            /// The path-based state of go-ethereum, in Go.
            Pathdb,
            $(
                #[doc = $name]
                #[cfg(feature = $feature)]
                $kind,
            )*
        }

        impl Kind {
            /// Whether a Go program runs it.
            pub fn is_go(self) -> bool {
                matches!(self, Self::Pebble | Self::Badger | Self::Pathdb)
            }

            /// Name for tables.
            pub fn name(self) -> &'static str {
                match self {
                    Self::Terrane => "Terrane",
                    Self::Pebble => "Pebble",
                    Self::Badger => "Badger",
                    Self::Pathdb => "go-ethereum pathdb",
                    $(
                        #[cfg(feature = $feature)]
                        Self::$kind => $name,
                    )*
                }
            }

            /// Why it cannot run a workload, by design: `has_root` says whether the workload
            /// commits a state to a root.
            pub fn cannot(self, has_root: bool) -> Option<&'static str> {
                match (self, has_root) {
                    (Self::Terrane, _) | (Self::Pathdb, true) => None,
                    (Self::Pathdb, false) => Some(STATES_ONLY),
                    #[cfg(feature = "nomt")]
                    (Self::Nomt, has_root) => (!has_root).then_some(STATES_ONLY),
                    #[cfg(feature = "qmdb")]
                    (Self::Qmdb, has_root) => (!has_root).then_some(STATES_ONLY),
                    (_, true) => Some("it keeps no root over its entries"),
                    (_, false) => None,
                }
            }
        }
    };
}

/// The sentence of engines whose every commit makes a root.
const STATES_ONLY: &str = "each of its commits makes a root, so only `state` is measured";

kinds! {
    "rocksdb" RocksDb "RocksDB",
    "fjall" Fjall "fjall",
    "redb" Redb "redb",
    "lmdb" Lmdb "LMDB",
    "sqlite" Sqlite "SQLite",
    "mdbx" Mdbx "libmdbx",
    "paritydb" ParityDb "ParityDB",
    "canopydb" CanopyDb "canopydb",
    "surrealkv" SurrealKv "SurrealKV",
    "nomt" Nomt "NOMT",
    "qmdb" Qmdb "commonware QMDB",
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
