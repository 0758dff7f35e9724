//! Profiles of a block: published counts, shared out among accesses and depths.
//!
//! Published are the numbers of operations, of distinct paths, of paths by depth, and the accesses
//! of the hottest paths; how these go together is ours. An access that changes a value is a
//! question, two reads and a write of its path.

/// Action on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Asks whether there is a value.
    Mem,
    /// Asks whether its directory is there.
    MemTree,
    /// Looks the value up.
    Find,
    /// Looks a value of the last copy up.
    FindCopied,
    /// Asks, looks up twice and writes.
    Change,
    /// Writes.
    Add,
    /// Removes.
    Remove,
}

/// Class of a path. Depths are counted from `data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Paths of the whole chain, depth 1 to 3.
    Global,
    /// The one of these that is changed beside the counter.
    Changing,
    /// A field of an account, or the size of a big map: depth 4.
    Account,
    /// Code or storage of a contract: depth 5.
    Storage,
    /// An item of a big map: depth 6.
    Item,
    /// An item that was never there: depth 6.
    New,
    /// An item that never will be: depth 6.
    Never,
    /// In the directory that is copied: depth 4.
    Roll,
    /// In the last copy: depth 5.
    Copied,
}

/// A path that is changed more often than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hot {
    /// The balance of an account.
    Balance,
    /// The counter of the whole chain.
    GlobalCounter,
    /// The size of the big map of this rank by size.
    MapSize(u64),
}

/// Accesses to the distinct paths of a class; each path has at least one access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The operation.
    pub action: Action,
    /// To what.
    pub class: Class,
    /// Number of paths.
    pub paths: u32,
    /// Number of accesses.
    pub accesses: u32,
}

/// Kind of a block.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name used on the command line and in reports.
    pub name: &'static str,
    /// Transactions of a block, where they are published.
    pub transactions: Option<u64>,
    /// The hottest paths, and how often each is changed.
    pub hot: &'static [(Hot, u32)],
    /// The others.
    pub groups: &'static [Access],
    /// Blocks from one copy of a directory to the next.
    pub copy_every: Option<u64>,
}

const fn access(action: Action, class: Class, paths: u32, accesses: u32) -> Access {
    Access { action, class, paths, accesses }
}

/// One block of Tezos in the protocol Lima, level 2,981,990: 2,363 questions, 3,892 reads and 3,180
/// writes, over 579 paths that are read and 957 that are written, 1,489 in all: 718 of depth 4, 52
/// of 5, 699 of 6.
pub static LIMA: Profile = Profile {
    name: "lima",
    transactions: Some(46),
    hot: &[
        (Hot::Balance, 444),
        (Hot::Balance, 240),
        (Hot::Balance, 160),
        (Hot::GlobalCounter, 106),
        (Hot::Balance, 90),
        (Hot::Balance, 70),
        (Hot::MapSize(0), 31),
        (Hot::MapSize(1), 31),
        (Hot::MapSize(2), 31),
        (Hot::Balance, 20),
    ],
    groups: &[
        access(Action::Change, Class::Changing, 1, 1),
        access(Action::Change, Class::Account, 271, 400),
        access(Action::Change, Class::Storage, 26, 36),
        access(Action::Change, Class::Item, 112, 140),
        access(Action::Find, Class::Global, 18, 60),
        access(Action::Find, Class::Account, 85, 130),
        access(Action::Find, Class::Storage, 26, 52),
        access(Action::Find, Class::Item, 30, 50),
        access(Action::Mem, Class::Account, 173, 263),
        access(Action::Mem, Class::Item, 150, 250),
        access(Action::Mem, Class::Never, 50, 50),
        access(Action::Add, Class::Account, 180, 550),
        access(Action::Add, Class::Item, 277, 750),
        access(Action::Add, Class::New, 60, 60),
        access(Action::Remove, Class::Item, 20, 20),
    ],
    copy_every: None,
};

/// The mean block of 10,310 of the year 2021: 224 reads, 53 questions for values and 33 for
/// directories, 71 values written and 5 removed; a copy in 219 blocks.
pub static YEAR_2021: Profile = Profile {
    name: "2021",
    transactions: None,
    hot: &[
        (Hot::GlobalCounter, 6),
        (Hot::MapSize(0), 2),
        (Hot::MapSize(1), 2),
        (Hot::MapSize(2), 2),
    ],
    groups: &[
        access(Action::Change, Class::Account, 16, 16),
        access(Action::Change, Class::Storage, 2, 2),
        access(Action::Change, Class::Item, 10, 10),
        access(Action::Find, Class::Global, 8, 10),
        access(Action::Find, Class::Account, 60, 70),
        access(Action::Find, Class::Storage, 10, 12),
        access(Action::Find, Class::Item, 45, 50),
        access(Action::FindCopied, Class::Copied, 2, 2),
        access(Action::Mem, Class::Account, 5, 5),
        access(Action::Mem, Class::Item, 5, 5),
        access(Action::Mem, Class::Never, 3, 3),
        access(Action::MemTree, Class::Account, 15, 15),
        access(Action::MemTree, Class::Item, 14, 14),
        access(Action::MemTree, Class::Never, 4, 4),
        access(Action::Add, Class::Account, 9, 9),
        access(Action::Add, Class::Item, 13, 13),
        access(Action::Add, Class::New, 8, 8),
        access(Action::Add, Class::Roll, 1, 1),
        access(Action::Remove, Class::Item, 5, 5),
    ],
    copy_every: Some(219),
};

/// The mean block of 100,000 of the protocol Lima: the published mix of operations of
/// [`YEAR_2021`], 6.5 times each, and the 46 transactions of a block.
///
/// The factor is ours. It fits the published 1,330 loads of inodes and 464 KB that irmin wrote in a
/// block: 418 paths are written, with up to 1 KB of nodes each, and 1,201 objects are read with
/// 300,000 values and an empty cache. [`LIMA`] is one published block, which is larger.
pub static LIMA_MEAN: Profile = Profile {
    name: "lima-mean",
    transactions: Some(46),
    hot: &[
        (Hot::GlobalCounter, 39),
        (Hot::MapSize(0), 13),
        (Hot::MapSize(1), 13),
        (Hot::MapSize(2), 13),
    ],
    groups: &[
        access(Action::Change, Class::Account, 104, 104),
        access(Action::Change, Class::Storage, 13, 13),
        access(Action::Change, Class::Item, 65, 65),
        access(Action::Find, Class::Global, 16, 65),
        access(Action::Find, Class::Account, 390, 455),
        access(Action::Find, Class::Storage, 40, 78),
        access(Action::Find, Class::Item, 292, 338),
        access(Action::Mem, Class::Account, 33, 33),
        access(Action::Mem, Class::Item, 33, 33),
        access(Action::Mem, Class::Never, 19, 19),
        access(Action::MemTree, Class::Account, 97, 97),
        access(Action::MemTree, Class::Item, 91, 91),
        access(Action::MemTree, Class::Never, 27, 27),
        access(Action::Add, Class::Account, 59, 59),
        access(Action::Add, Class::Item, 85, 85),
        access(Action::Add, Class::New, 58, 58),
        access(Action::Remove, Class::Item, 30, 30),
    ],
    copy_every: None,
};

/// All profiles.
pub static ALL: [&Profile; 3] = [&LIMA, &LIMA_MEAN, &YEAR_2021];
