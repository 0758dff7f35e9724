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
            /// Pebble, of CockroachDB, in Go.
            Pebble,
            /// Badger, of Dgraph, in Go.
            Badger,
            $(
                #[doc = $name]
                #[cfg(feature = $feature)]
                $kind,
            )*
        }

        impl Kind {
            /// Whether a Go program runs it.
            pub fn is_go(self) -> bool {
                matches!(self, Self::Pebble | Self::Badger)
            }

            /// Name for tables.
            pub fn name(self) -> &'static str {
                match self {
                    Self::Terrane => "Terrane",
                    Self::Pebble => "Pebble",
                    Self::Badger => "Badger",
                    $(
                        #[cfg(feature = $feature)]
                        Self::$kind => $name,
                    )*
                }
            }
        }
    };
}

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
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
