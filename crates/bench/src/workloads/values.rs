//! Values of a workload: sizes, and how much of each can be compressed.
//!
//! | name            | value of a number
//! |
//! |-----------------|-------------------------------------------------------------------------------|
//! | `random:N`      | N incompressible bytes
//! |
//! | `uniform:A..B`  | A to B incompressible bytes, each length as likely as any other
//! |
//! | `dict:N`        | 110 bytes, one of N values in turn: those of the published `bench_kvdb`
//! |
//! | `hist:S×W,…`    | S incompressible bytes with weight W
//! |
//! | `bitcoin`       | an unspent output: amount, height, flag and script
//! |
//! | `ethereum`      | a slim account or a storage slot of the state, in RLP
//! |
//!
//! A value follows from a seed, a number and a version. Its random bytes are those of a
//! [`Stream`].
//!
//! `bitcoin` has the kinds of script in the numbers of the unspent outputs of June 2022 (82.4 M,
//! <https://bitcoin.stackexchange.com/a/114044>): 63.0 % pay to a hash of a key, 18.7 % to a hash
//! of a script, 16.5 % to a witness key, 1.1 % to a witness script, 0.5 % bare multisignature, 0.1
//! % Taproot, 0.1 % to a key. Bytes are those of `terrane replay bitcoin`: amount (i64), height
//! (u32), flag, script. Scripts have the fixed bytes of their kind and a random hash or key,
//! amounts are even on a logarithmic scale.
//!
//! `ethereum` has the forms of the flat state: one value in seven is a slim account, and one
//! account in ten is a contract, whose code one time in two is one of 64 that are everywhere. The
//! others are storage slots: integers and addresses without leading zeros. **These shares are round
//! numbers, not measured ones.**

use std::fmt::Write as _;
use std::sync::Arc;

use super::draws::{Stream, below, mix};

/// Bytes of the values of the published `bench_kvdb`.
pub const PUBLISHED_BYTES: u32 = 110;

/// Bytes of a value at most: it stays on one page with its key.
pub const VALUE_BYTES_MAX: u32 = 3_000;

/// Rows of a histogram at most.
pub const HISTOGRAM_ROWS_MAX: usize = 256;

/// Values of a dictionary at most.
const DICTIONARY_MAX: u64 = 1_000_000;

/// Numbers whose values the mean size is taken from.
const SAMPLE: u64 = 4096;

/// A value's place: whose value it is, after how many changes.
#[derive(Debug, Clone, Copy)]
pub struct ValueId {
    /// Seed of the values.
    pub seed: u64,
    /// Number of the key.
    pub number: u64,
    /// Changes before.
    pub version: u64,
}

/// Kinds of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// Lengths from the first to the second, both included.
    Random(u32, u32),
    /// A number of different values of [`PUBLISHED_BYTES`].
    Dictionary(u64),
    /// Lengths with their weights.
    Histogram(Arc<[(u32, u64)]>),
    /// Unspent outputs.
    Bitcoin,
    /// Accounts and storage slots.
    Ethereum,
}

impl Default for Values {
    fn default() -> Self {
        Self::Random(PUBLISHED_BYTES, PUBLISHED_BYTES)
    }
}

impl Values {
    /// The name used in reports and labels.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Random(least, most) if least == most => format!("random:{least}"),
            Self::Random(least, most) => format!("uniform:{least}..{most}"),
            Self::Dictionary(count) => format!("dict:{count}"),
            Self::Histogram(rows) => {
                let mut name = "hist:".to_owned();
                for (at, (bytes, weight)) in rows.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    let _ = write!(name, "{comma}{bytes}x{weight}");
                }
                name
            }
            Self::Bitcoin => "bitcoin".to_owned(),
            Self::Ethereum => "ethereum".to_owned(),
        }
    }

    /// Parses a [`name`](Self::name); `None` if it is not one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let length = |text: &str| text.parse().ok().filter(|&bytes| bytes <= VALUE_BYTES_MAX);
        match name.split_once(':') {
            None if name == "bitcoin" => Some(Self::Bitcoin),
            None if name == "ethereum" => Some(Self::Ethereum),
            Some(("random", bytes)) => length(bytes).map(|bytes| Self::Random(bytes, bytes)),
            Some(("uniform", range)) => {
                let (least, most) = range.split_once("..")?;
                let (least, most) = (length(least)?, length(most)?);
                (least < most).then_some(Self::Random(least, most))
            }
            Some(("dict", count)) => {
                let count = count.parse().ok()?;
                (1..=DICTIONARY_MAX).contains(&count).then_some(Self::Dictionary(count))
            }
            Some(("hist", rows)) => {
                let row = |row: &str| {
                    let (bytes, weight) = row.split_once('x')?;
                    Some((length(bytes)?, weight.parse().ok()?))
                };
                let rows: Option<Vec<_>> = rows.split(',').map(row).collect();
                Self::histogram(&rows?)
            }
            _ => None,
        }
    }

    /// Lengths with their weights; `None` for no rows, too many, too long values, or weights whose
    /// sum is 0 or beyond 2^63.
    #[must_use]
    pub fn histogram(rows: &[(u32, u64)]) -> Option<Self> {
        let sum = rows.iter().try_fold(0_u64, |sum, &(_, weight)| sum.checked_add(weight))?;
        let is_short = rows.iter().all(|&(bytes, _)| bytes <= VALUE_BYTES_MAX);
        let is_valid = is_short && rows.len() <= HISTOGRAM_ROWS_MAX && 0 < sum && sum < 1 << 63;
        is_valid.then(|| Self::Histogram(rows.into()))
    }

    /// Whether no byte of any value can be compressed.
    #[must_use]
    pub fn is_incompressible(&self) -> bool {
        matches!(self, Self::Random(..) | Self::Histogram(_))
    }

    /// Puts the value of a number after some changes into `value`, in place of what it holds.
    pub fn fill(&self, id: ValueId, value: &mut Vec<u8>) {
        let ValueId { seed, number, version } = id;
        value.clear();
        let stream = Stream { start: mix(mix(seed, number), version) };
        match self {
            Self::Random(least, most) if least == most => random(stream, 0, *least, value),
            &Self::Random(least, most) => {
                let bytes = least + below(stream.output(0), u64::from(most - least) + 1) as u32;
                random(stream, 1, bytes, value);
            }
            &Self::Dictionary(count) => {
                let entry = number.wrapping_add(version) % count;
                let stream = Stream { start: mix(mix(seed, entry), 0) };
                random(stream, 0, PUBLISHED_BYTES, value);
            }
            Self::Histogram(rows) => {
                let row = weighted(rows, |&(_, weight)| weight, stream.output(0));
                random(stream, 1, row.0, value);
            }
            Self::Bitcoin => bitcoin(stream, value),
            Self::Ethereum => ethereum(seed, stream, value),
        }
    }

    /// Mean size of a value in bytes, over the first numbers of a seed.
    #[must_use]
    pub fn mean_bytes(&self, seed: u64) -> f64 {
        if let Self::Random(least, most) = self {
            return f64::from(least + most) / 2.0;
        }
        let mut value = Vec::new();
        let sizes = (0..SAMPLE).map(|number| {
            self.fill(ValueId { seed, number, version: 0 }, &mut value);
            value.len()
        });
        sizes.sum::<usize>() as f64 / SAMPLE as f64
    }
}

/// Appends `bytes` random bytes: the outputs of the stream from `at` on.
fn random(stream: Stream, at: u64, bytes: u32, value: &mut Vec<u8>) {
    let end = value.len() + bytes as usize;
    for at in at.. {
        let rest = end - value.len();
        if rest == 0 {
            break;
        }
        value.extend_from_slice(&stream.output(at).to_le_bytes()[..rest.min(8)]);
    }
}

/// Returns the row that a random number falls to, each as often as its weight says.
fn weighted<T>(rows: &[T], weight: impl Fn(&T) -> u64, random: u64) -> &T {
    let sum = rows.iter().map(&weight).sum();
    let mut place = below(random, sum);
    for row in rows {
        match place.checked_sub(weight(row)) {
            Some(rest) => place = rest,
            None => return row,
        }
    }
    unreachable!("a place is below the sum of the weights")
}

/// A kind of script: fixed bytes, random bytes, fixed bytes.
struct Script {
    /// Outputs of the kind, in thousands.
    weight: u64,
    prefix: &'static [u8],
    random_bytes: u32,
    suffix: &'static [u8],
}

/// Kinds of script, with the numbers of June 2022.
const SCRIPTS: [Script; 7] = [
    // DUP HASH160 of 20 bytes EQUALVERIFY CHECKSIG
    Script { weight: 51_900, prefix: &[0x76, 0xa9, 0x14], random_bytes: 20, suffix: &[0x88, 0xac] },
    // HASH160 of 20 bytes EQUAL
    Script { weight: 15_400, prefix: &[0xa9, 0x14], random_bytes: 20, suffix: &[0x87] },
    // Witness version 0 of 20 bytes, and of 32 bytes
    Script { weight: 13_600, prefix: &[0x00, 0x14], random_bytes: 20, suffix: &[] },
    Script { weight: 881, prefix: &[0x00, 0x20], random_bytes: 32, suffix: &[] },
    // 1 of 3 keys of 33 bytes; the length bytes between the keys are random here
    Script { weight: 435, prefix: &[0x51, 0x21], random_bytes: 101, suffix: &[0x53, 0xae] },
    // Witness version 1 of 32 bytes
    Script { weight: 89, prefix: &[0x51, 0x20], random_bytes: 32, suffix: &[] },
    // A key of 65 bytes CHECKSIG
    Script { weight: 49, prefix: &[0x41, 0x04], random_bytes: 64, suffix: &[0xac] },
];

/// Bits of the largest amount: 1,374 coins.
const AMOUNT_BITS: u64 = 37;

/// Height of the chain in June 2022.
const HEIGHT: u64 = 740_000;

fn bitcoin(stream: Stream, value: &mut Vec<u8>) {
    let script = weighted(&SCRIPTS, |script| script.weight, stream.output(0));
    let bits = 1 + below(stream.output(1), AMOUNT_BITS);
    let amount = stream.output(2) >> (64 - bits);
    let height = below(stream.output(3), HEIGHT) as u32;
    let is_coinbase = u8::from(below(stream.output(4), 100) == 0);

    value.extend_from_slice(&amount.to_le_bytes());
    value.extend_from_slice(&height.to_le_bytes());
    value.push(is_coinbase);
    value.extend_from_slice(script.prefix);
    random(stream, 5, script.random_bytes, value);
    value.extend_from_slice(script.suffix);
}

/// One value in so many is an account.
const ACCOUNT_SHARE: u64 = 7;

/// One account in so many is a contract.
const CONTRACT_SHARE: u64 = 10;

/// Codes that half of all contracts share.
const COMMON_CODES: u64 = 64;

/// Bytes of the integers in storage slots, with their weights: flags and small numbers, amounts,
/// addresses, hashes.
const SLOTS: [(u32, u64); 6] = [(1, 30), (4, 10), (9, 15), (11, 10), (20, 20), (32, 15)];

/// RLP: a string of 0 bytes, a string of 32 bytes, a list whose length has one byte.
const RLP_EMPTY: u8 = 0x80;
const RLP_HASH: u8 = 0xa0;
const RLP_LIST: u8 = 0xc0;
const RLP_LONG_LIST: u8 = 0xf8;

fn ethereum(seed: u64, stream: Stream, value: &mut Vec<u8>) {
    if below(stream.output(0), ACCOUNT_SHARE) != 0 {
        let (bytes, _) = *weighted(&SLOTS, |&(_, weight)| weight, stream.output(1));
        integer(stream, 2, bytes, value);
        return;
    }

    if below(stream.output(1), CONTRACT_SHARE) != 0 {
        // Nonce and balance; root and code are empty.
        let mut account = Vec::new();
        integer(stream, 2, 1, &mut account);
        integer(stream, 3, 1 + below(stream.output(4), 9) as u32, &mut account);
        account.extend_from_slice(&[RLP_EMPTY, RLP_EMPTY]);
        value.push(RLP_LIST + account.len() as u8);
        value.extend_from_slice(&account);
        return;
    }

    // Nonce 1, no balance, root and code.
    value.extend_from_slice(&[RLP_LONG_LIST, 68, 1, RLP_EMPTY, RLP_HASH]);
    random(stream, 6, 32, value);
    value.push(RLP_HASH);
    let is_common = below(stream.output(2), 2) == 0;
    let code = mix(seed, below(stream.output(3), COMMON_CODES));
    let code = if is_common { Stream { start: code } } else { Stream { start: stream.output(4) } };
    random(code, 0, 32, value);
}

/// Appends an integer of at most 32 bytes in RLP: without leading zeros, a small one as itself.
fn integer(stream: Stream, at: u64, bytes: u32, value: &mut Vec<u8>) {
    debug_assert!((1..=32).contains(&bytes));
    let mut digits = Vec::new();
    random(stream, at, bytes, &mut digits);
    // No leading zero.
    digits[0] |= 1;
    if digits.len() > 1 || RLP_EMPTY <= digits[0] {
        value.push(RLP_EMPTY + digits.len() as u8);
    }
    value.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn value(values: &Values, number: u64) -> Vec<u8> {
        let mut value = vec![9; 3];
        values.fill(ValueId { seed: 5, number, version: 0 }, &mut value);
        value
    }

    fn sizes(values: &Values) -> BTreeMap<usize, u32> {
        let mut sizes = BTreeMap::new();
        for number in 0..10_000 {
            *sizes.entry(value(values, number).len()).or_default() += 1;
        }
        sizes
    }

    #[test]
    fn names_are_read_back_and_nothing_else_is() {
        for name in [
            "random:110",
            "random:0",
            "uniform:1..300",
            "dict:32",
            "hist:10x3,300x1",
            "bitcoin",
            "ethereum",
        ] {
            assert_eq!(Values::from_name(name).unwrap().name(), name);
        }
        for name in [
            "",
            "random",
            "random:3001",
            "uniform:3..3",
            "uniform:4..3",
            "uniform:3",
            "dict:0",
            "hist:",
            "hist:3x0",
            "hist:3001x1",
            "hist:3",
            "litecoin",
        ] {
            assert_eq!(Values::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn lengths_are_those_of_the_name() {
        assert_eq!(sizes(&Values::default()), [(110, 10_000)].into());
        let uniform = sizes(&Values::Random(3, 12));
        assert!(uniform.len() == 10 && uniform.values().all(|count| count.abs_diff(1_000) < 160));
        let hist = sizes(&Values::from_name("hist:10x3,300x1,7x0").unwrap());
        assert!(hist.len() == 2 && hist[&10].abs_diff(7_500) < 220, "{hist:?}");

        for values in [Values::Bitcoin, Values::Ethereum, Values::Random(3, 12)] {
            let mean = values.mean_bytes(5);
            let found =
                sizes(&values).iter().map(|(size, count)| size * *count as usize).sum::<usize>();
            assert!((mean - found as f64 / 1e4).abs() < mean * 0.02, "{values:?} {mean} {found}");
        }
    }

    #[test]
    fn a_dictionary_has_so_many_values() {
        let dictionary = Values::Dictionary(32);
        let distinct: BTreeSet<_> = (0..1_000).map(|number| value(&dictionary, number)).collect();
        assert_eq!(distinct.len(), 32);
        assert_eq!(value(&dictionary, 3), value(&dictionary, 35));
        // The first ones are those of values that are all different.
        assert_eq!(value(&dictionary, 3), value(&Values::default(), 3));
    }

    #[test]
    fn outputs_have_the_scripts_of_the_chain() {
        let found = sizes(&Values::Bitcoin);
        // 8 + 4 + 1 bytes before scripts of 25, 23 and 22 bytes, and of 34.
        for (script, per_cent) in [(25, 63.0), (23, 18.7), (22, 16.5), (34, 1.2)] {
            let share = f64::from(found[&(13 + script)]) / 100.0;
            assert!((share - per_cent).abs() < 2.0, "{script}: {share}");
        }
        for number in 0..1_000 {
            let value = value(&Values::Bitcoin, number);
            let amount = u64::from_le_bytes(value[..8].try_into().unwrap());
            let height = u32::from_le_bytes(value[8..12].try_into().unwrap());
            assert!(amount < 1 << AMOUNT_BITS && u64::from(height) < HEIGHT && value[12] <= 1);
        }
    }

    /// Length of the RLP item at the start of `bytes`.
    fn item(bytes: &[u8]) -> usize {
        match bytes[0] {
            0..RLP_EMPTY => 1,
            first @ RLP_EMPTY..=0xb7 => 1 + usize::from(first - RLP_EMPTY),
            first @ RLP_LIST..=0xf7 => 1 + usize::from(first - RLP_LIST),
            RLP_LONG_LIST => 2 + usize::from(bytes[1]),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn accounts_and_slots_are_rlp() {
        let mut contracts = 0;
        let mut accounts = 0;
        for number in 0..10_000 {
            let value = value(&Values::Ethereum, number);
            assert_eq!(item(&value), value.len(), "{value:x?}");
            if value[0] < RLP_LIST {
                continue;
            }
            let is_contract = value[0] == RLP_LONG_LIST;
            let mut rest = &value[1 + usize::from(is_contract)..];
            for _ in 0..4 {
                rest = &rest[item(rest)..];
            }
            assert!(rest.is_empty(), "four fields: {value:x?}");
            accounts += 1;
            contracts += u32::from(is_contract);
        }
        assert!(u32::abs_diff(accounts, 10_000 / 7) < 200, "{accounts}");
        assert!(contracts.abs_diff(accounts / 10) < 60, "{contracts}");
    }
}
