//! `terrane replay bitcoin`: known answers, disorder, damage, going back, killing.

use bitcoin::{Block, OutPoint};
use serde_json::Value;
use terrane_testkit::draw::Draw as _;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng as _};

use crate::chain::{self, coinbase, extend, mine, output, record, spend};
use crate::program::{HASH, HASH_999, Place, TIP, command, mainnet, text};

const MAINNET: [u8; 4] = [0xf9, 0xbe, 0xb4, 0xd9];

fn shuffle<T>(items: &mut [T], rng: &mut ChaCha8Rng) {
    for end in (1..items.len()).rev() {
        items.swap(end, rng.index(end + 1));
    }
}

/// The records of mainnet's file, magic and size included.
fn mainnet_records() -> Vec<Vec<u8>> {
    let bytes = std::fs::read(mainnet()).unwrap();
    let mut records = Vec::new();
    let mut rest = bytes.as_slice();
    while let [_, _, _, _, a, b, c, d, ..] = rest {
        let size = 8 + u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        records.push(rest[..size].to_vec());
        rest = &rest[size..];
    }
    assert_eq!(records.len(), 5000);
    records
}

fn offset_of(records: &[Vec<u8>], height: usize) -> usize {
    records[..height].iter().map(Vec::len).sum()
}

/// Checks that an answer is the published one for height 4999.
#[track_caller]
fn assert_whole(json: &Value) {
    assert_eq!(json["height"], 4999);
    assert_eq!(json["tip"], TIP);
    assert_eq!(json["transactions"], 5063);
    assert_eq!(json["inputs"], 306);
    assert_eq!(json["outputs"], 5089);
    assert_eq!(json["utxo_count"], 4782);
    assert_eq!(json["total_sat"], 24_995_000_000_000_u64);
    assert_eq!(json["hash_serialized_3"], HASH);
}

/// Checks that an answer is the published one for height 999.
#[track_caller]
fn assert_999(json: &Value) {
    assert_eq!(json["height"], 999);
    assert_eq!(json["utxo_count"], 997);
    assert_eq!(json["total_sat"], 4_995_000_000_000_u64);
    assert_eq!(json["hash_serialized_3"], HASH_999);
}

/// Replays blocks of the regression-test network in a new place.
fn regtest(blocks: &[u8]) -> (Place, crate::program::Answer) {
    let place = Place::new();
    let path = place.write("blocks.dat", blocks);
    let answer = place.replay("bitcoin", &[text(&path), "--network", "regtest"]);
    (place, answer)
}

#[test]
fn five_thousand_blocks_give_the_published_answers_on_every_engine() {
    for engine in ["lsm", "btree", "memory", "lmdb", "sqlite"] {
        let place = Place::new();
        let json = place.replay("bitcoin", &[text(&mainnet()), "--engine", engine]).done();
        assert_whole(&json);
        assert_eq!(json["command"], "replay bitcoin");
        assert_eq!(json["terrane"], env!("CARGO_PKG_VERSION"));
        assert_eq!(json["blocks"], 5000);
        assert_eq!(json.get("resumed_from"), None);
        for figure in ["wall_s", "blocks_per_s", "lookups_per_s", "rss_bytes"] {
            assert!(json[figure].as_f64().unwrap() > 0.0, "{figure}");
        }
        assert_eq!(json["store_bytes"].as_u64() > Some(0), engine != "memory");
        assert_eq!(place.store().exists(), engine != "memory");
    }
}

#[test]
fn a_store_goes_back_and_forth() {
    let place = Place::new();
    let blocks = mainnet();
    let blocks = text(&blocks);
    assert_999(&place.replay("bitcoin", &[blocks, "--until", "999"]).done());
    let json = place.replay("bitcoin", &[blocks, "--keep-versions", "5000"]).done();
    assert_whole(&json);
    assert_eq!((&json["resumed_from"], &json["blocks"]), (&999.into(), &4000.into()));
    let json = place.replay("bitcoin", &["--rollback-to", "999"]).done();
    assert_999(&json);
    assert_eq!((&json["resumed_from"], &json["blocks"]), (&4999.into(), &0.into()));
    assert_whole(&place.replay("bitcoin", &[blocks]).done());
    // Replayed with the default, so that only the newest 2160 blocks are still there.
    let message = place.replay("bitcoin", &["--rollback-to", "2839"]).failed(2);
    assert!(message.contains("the oldest block kept is 2840"), "{message}");
    assert_eq!(place.replay("bitcoin", &["--rollback-to", "2840"]).done()["height"], 2840);
    let message = place.replay("bitcoin", &["--rollback-to", "2841"]).failed(2);
    assert!(message.contains("the store is at block 2840"), "{message}");
    let json = place.replay("bitcoin", &[blocks, "--rollback-to", "2840"]).done();
    assert_whole(&json);
    assert_eq!(place.replay("bitcoin", &[blocks]).done()["blocks"], 0);
}

/// A database has one state: it goes back by undo records, and on from its last durable point.
#[test]
fn a_database_resumes_and_goes_back_as_a_store_does() {
    for engine in ["lmdb", "sqlite"] {
        let place = Place::new();
        let blocks = mainnet();
        let blocks = text(&blocks);
        let replay = |arguments: &[&str]| {
            place.replay("bitcoin", &[arguments, &["--engine", engine]].concat())
        };
        assert_999(&replay(&[blocks, "--until", "999", "--checkpoint-every", "300"]).done());
        let json = replay(&[blocks, "--until", "1500"]).done();
        assert_eq!((&json["resumed_from"], &json["blocks"]), (&999.into(), &501.into()));
        let json = replay(&["--rollback-to", "999"]).done();
        assert_999(&json);
        assert_eq!((&json["resumed_from"], &json["blocks"]), (&1500.into(), &0.into()));
        assert_eq!(json["digest"], {
            let memory = Place::new();
            let until = [blocks, "--until", "999", "--engine", "memory"];
            memory.replay("bitcoin", &until).done()["digest"].clone()
        });
        assert_eq!(json.get("snapshot"), None, "get, scan and count do not read databases");

        let json = replay(&[blocks, "--until", "1200", "--keep-versions", "100"]).done();
        assert_eq!(json["height"], 1200);
        let message = replay(&["--rollback-to", "1100", "--keep-versions", "100"]).failed(2);
        assert!(message.contains("the oldest block kept is 1101"), "{message}");

        // Another engine finds a directory that is not its own, and leaves it alone.
        let before = names(&place.store());
        for other in ["lsm", "btree", "context"] {
            let answer = place.replay("bitcoin", &[blocks, "--engine", other]);
            assert!(matches!(answer.code, Some(2)), "{engine} as {other}: {answer:?}");
        }
        let mut after = names(&place.store());
        after.retain(|path| !path.ends_with("lock"));
        assert!(after.iter().all(|path| before.contains(path)), "{after:?}");
    }
}

#[test]
fn order_files_padding_obfuscation_and_a_cut_record_do_not_matter() {
    let mut records = mainnet_records();
    shuffle(&mut records, &mut ChaCha8Rng::seed_from_u64(7));
    let key = [0x01, 0xf9, 0x00, 0x80, 0xff, 0xb4, 0x10, 0xd9];
    let place = Place::new();
    let (first, second) = records.split_at(1700);

    for (name, part) in [("blk00000.dat", first), ("blk00001.dat", second)] {
        let mut bytes = Vec::new();
        for (number, record) in part.iter().enumerate() {
            bytes.extend(record);
            // Obfuscated zeros after every 100th record, of every length from 0 on.
            bytes.resize(bytes.len() + if number % 100 == 0 { number / 100 } else { 0 }, 0);
        }
        bytes.extend(&record_cut(&records[3]));
        for (byte, place) in bytes.iter_mut().zip(0..) {
            *byte ^= key[place % 8];
        }
        place.write(&format!("blocks/{name}"), &bytes);
    }

    // A file that Core has allocated and not written yet.
    place.write("blocks/blk00002.dat", &[0; 1000]);
    place.write("blocks/rev00000.dat", b"not a block file");
    place.write("blocks/xor.dat", &key);
    let answer = place.replay("bitcoin", &[text(&place.path("blocks"))]);
    assert_whole(&answer.done());
    assert_eq!(answer.stderr.matches("is cut off").count(), 2, "{answer:?}");
}

fn record_cut(record: &[u8]) -> Vec<u8> {
    record[..record.len() - 20].to_vec()
}

#[test]
fn zeros_never_written_may_follow_obfuscated_records() {
    let key = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
    let place = Place::new();

    let mut bytes = std::fs::read(mainnet()).unwrap();
    for (byte, place) in bytes.iter_mut().zip(0..) {
        *byte ^= key[place % 8];
    }

    bytes.resize(bytes.len() + 70_000, 0);
    let file = place.write("blk00000.dat", &bytes);
    place.write("xor.dat", &key);
    let answer = place.replay("bitcoin", &[text(&file)]);
    assert_whole(&answer.done());
    assert_eq!(answer.stderr, "");
}

#[test]
fn a_record_cut_anywhere_by_the_end_of_the_file_is_a_warning() {
    let chain = chain::chain(1, 5);
    let whole = chain::file(&chain[..5]);
    let last = record(&chain[5]);

    for size in 1..last.len() {
        if size % 23 != 0 && (10..last.len() - 1).contains(&size) {
            continue;
        }
        let (_, answer) = regtest(&[&whole, &last[..size]].concat());
        let json = answer.done();
        assert_eq!(json["height"], 4, "cut to {size}");
        assert!(answer.stderr.contains(&format!("byte {} is cut off", whole.len())), "{answer:?}");
    }
}

#[test]
fn a_flipped_byte_in_a_body_names_the_block_and_keeps_the_one_before() {
    let place = Place::new();
    let records = mainnet_records();
    let offset = offset_of(&records, 2500);
    // A transaction's bytes, where nothing but the Merkle root can tell.
    let mut bytes = std::fs::read(mainnet()).unwrap();
    bytes[offset + 8 + 80 + 60] ^= 1;
    let damaged = place.write("damaged.dat", &bytes);
    let message = place.replay("bitcoin", &[text(&damaged)]).failed(1);
    let hash = bitcoin::consensus::deserialize::<Block>(&records[2500][8..]).unwrap().block_hash();

    for part in ["block 2500", &hash.to_string(), "damaged.dat", &offset.to_string(), "Merkle root"]
    {
        assert!(message.contains(part), "{part} in {message}");
    }
    let at = place.replay("bitcoin", &["--rollback-to", "2499"]).done();
    assert_eq!((&at["resumed_from"], &at["height"]), (&2499.into(), &2499.into()));
    // The transaction count: the bytes are no block at all then.
    bytes[offset + 8 + 80 + 60] ^= 1;
    bytes[offset + 8 + 80] = 9;
    let damaged = place.write("damaged.dat", &bytes);
    let message = place.replay("bitcoin", &[text(&damaged)]).failed(1);
    assert!(message.contains("block 2500") && message.contains("cannot be read"), "{message}");
    assert_whole(&place.replay("bitcoin", &[text(&mainnet())]).done());
}

#[test]
fn a_flipped_bit_in_a_header_names_offset_and_hash_and_keeps_the_block_before() {
    let records = mainnet_records();
    let offset = offset_of(&records, 100);

    // Version, previous hash, Merkle root, time, bits (mantissa and exponent), nonce.
    for byte in [0, 4, 36, 68, 72, 75, 76] {
        let place = Place::new();
        let mut bytes = std::fs::read(mainnet()).unwrap();
        bytes[offset + 8 + byte] ^= 0x20;
        let header = bitcoin::consensus::deserialize::<bitcoin::block::Header>(
            &bytes[offset + 8..offset + 88],
        );
        let hash = header.unwrap().block_hash().to_string();
        let damaged = place.write("damaged.dat", &bytes);
        let answer = place.replay("bitcoin", &[text(&damaged)]);
        let message = answer.failed(1);
        assert!(
            message.contains(&format!("byte {offset}:")) && message.contains(&hash),
            "{message}"
        );
        assert!(answer.stderr.contains("4899 blocks connect to no known block"), "{answer:?}");
        let at = place.replay("bitcoin", &["--rollback-to", "99"]).done();
        assert_eq!(at["resumed_from"], 99, "byte {byte}");
    }
}

#[test]
fn damaged_framing_names_file_and_offset() {
    let records = mainnet_records();
    let whole = std::fs::read(mainnet()).unwrap();
    let offset = offset_of(&records, 300);

    for byte in 0..8 {
        for bit in [0x01, 0x80] {
            let place = Place::new();
            let mut bytes = whole.clone();
            bytes[offset + byte] ^= bit;
            let damaged = place.write("damaged.dat", &bytes);
            let message = place.replay("bitcoin", &[text(&damaged)]).failed(2);
            let expected = format!("damaged.dat at byte {offset}:");
            assert!(message.contains(&expected), "byte {byte} bit {bit}: {message}");
            let at = place.replay("bitcoin", &["--rollback-to", "299"]).done();
            assert_eq!(at["resumed_from"], 299, "byte {byte} bit {bit}");
        }
    }
}

#[test]
fn a_size_that_swallows_the_last_record_is_not_taken_for_the_end() {
    let chain = chain::chain(1, 5);
    let mut bytes = chain::file(&chain);
    let offset = chain::file(&chain[..4]).len();
    let size = u32::from_le_bytes(bytes[offset + 4..offset + 8].try_into().unwrap());
    for longer in [size + 1, size + 8, size + 100] {
        bytes[offset + 4..offset + 8].copy_from_slice(&longer.to_le_bytes());
        let (_, answer) = regtest(&bytes);
        let message = answer.failed(2);
        assert!(message.contains(&format!("at byte {offset}:")), "{message}");
    }
}

#[test]
fn rubbish_after_the_last_record_is_a_warning_and_magic_in_it_proves_nothing() {
    let chain = chain::chain(1, 5);
    let whole = chain::file(&chain);
    let mut rubbish = vec![0x77; 300];
    rubbish[50..54].copy_from_slice(&chain::MAGIC);
    let (_, answer) = regtest(&[whole.clone(), rubbish].concat());
    assert_eq!(answer.done()["height"], 5);
    assert!(answer.stderr.contains(&format!("from byte {} to the end", whole.len())), "{answer:?}");
}

#[test]
fn what_holds_no_blocks_is_refused() {
    let place = Place::new();
    let refused = |path: &std::path::Path, part: &str| {
        let message = place.replay("bitcoin", &[text(path)]).failed(2);
        assert!(message.contains(part), "{message}");
    };
    refused(&place.path("absent"), "absent: no such file");
    refused(&place.write("text.dat", b"no blocks here"), "text.dat at byte 0:");
    refused(&place.write("empty.dat", b""), "leads back to the genesis block");
    refused(&place.write("regtest.dat", &chain::file(&chain::chain(1, 2))), "at byte 0:");
    place.write("empty/rev00000.dat", b"");
    refused(&place.path("empty"), "no blk*.dat");
    place.write("short/xor.dat", b"1234");
    refused(&place.write("short/blk00000.dat", b""), "eight bytes");
    refused(&place.write("later.dat", &mainnet_records()[1..].concat()), "genesis");
}

#[test]
fn stale_branches_do_not_matter_even_damaged_ones() {
    let chain = chain::chain(1, 20);
    let mut stale = chain[..=10].to_vec();
    extend(&mut stale, 2, 5);
    let stale = &stale[11..];
    let (_, alone) = regtest(&chain::file(&chain));
    let alone = alone.done();
    assert_eq!(alone["hash_serialized_3"], chain::hash_serialized_3(&chain));

    for_each_seed("stale_branches_do_not_matter_even_damaged_ones", 5, |rng, _| {
        let mut blocks: Vec<_> = chain.iter().chain(stale).collect();
        shuffle(&mut blocks, rng);
        let (_, answer) = regtest(&chain::file(blocks));
        let json = answer.done();
        for figure in ["height", "tip", "hash_serialized_3", "digest", "transactions"] {
            assert_eq!(json[figure], alone[figure]);
        }
        assert_eq!(answer.stderr, "");
    });

    let mut body = record(&stale[2]);
    *body.last_mut().unwrap() ^= 1;

    // The nonce; with next to no work asked for, some nonces will do.
    let mut header = record(&stale[2]);
    while header_has_work(&header) {
        header[84] = header[84].wrapping_add(1);
    }

    for damaged in [body, header] {
        let parts = [chain::file(&chain), chain::file(&stale[..2]), damaged].concat();
        let (_, answer) = regtest(&parts);
        assert_eq!(answer.done()["tip"], alone["tip"]);
        assert!(answer.stderr.contains("warning: on a stale branch"), "{answer:?}");
    }
}

/// A stale block beside the damaged one took its place: the header without work was called stale,
/// the blocks above it were a warning, and the answer was success at a height of ten.
#[test]
fn a_stale_block_does_not_hide_a_damaged_header_of_the_best_chain() {
    let chain = chain::chain(1, 20);
    let mut stale = chain[..=9].to_vec();
    extend(&mut stale, 2, 1);

    let mut damaged = record(&chain[10]);
    while header_has_work(&damaged) {
        damaged[84] = damaged[84].wrapping_add(1);
    }

    let front = chain::file(&chain[..=9]);
    let back = chain::file(chain[11..].iter().chain(&stale));
    let place = Place::new();
    let path = place.write("blocks.dat", &[front.clone(), damaged, back].concat());
    let replay = |path: &std::path::Path, more: &[&str]| {
        place.replay("bitcoin", &[&[text(path), "--network", "regtest"], more].concat())
    };
    let message = replay(&path, &[]).failed(1);
    assert!(message.contains(&format!("at byte {}:", front.len())), "{message}");
    assert_eq!(replay(&path, &["--until", "9"]).done()["height"], 10, "nothing is asked of it");
    let path = place.write("whole.dat", &chain::file(&chain));
    assert_eq!(replay(&path, &[]).done()["tip"], chain[20].block_hash().to_string());
}

/// The last bytes of a block are often zeros and pass for padding where the size is a little too
/// small. On a stale block that ended the replay before it began.
#[test]
fn a_size_that_lies_about_a_stale_block_is_a_warning() {
    let chain = chain::chain(1, 20);
    let mut stale = chain[..=10].to_vec();
    extend(&mut stale, 2, 2);
    let mut record = record(&stale[11]);
    let size = u32::from_le_bytes(record[4..8].try_into().unwrap()) - 4;
    record[4..8].copy_from_slice(&size.to_le_bytes());
    let front = chain::file(&chain[..15]);
    let back = chain::file(&chain[15..]);
    let (_, answer) = regtest(&[front.clone(), record, back].concat());
    assert_eq!(answer.done()["tip"], chain[20].block_hash().to_string());
    let warning = format!("at byte {}: the size says {size} bytes", front.len());
    assert!(answer.stderr.contains(&warning), "{answer:?}");
}

/// Only the first copy of a block counted, so that a damaged one ended the replay although a whole
/// one lay in the next file, as after an interrupted copy of a block directory.
#[test]
fn a_whole_copy_stands_in_for_a_damaged_one() {
    let chain = chain::chain(1, 20);
    let whole = record(&chain[5]);
    let mut body = whole.clone();
    *body.last_mut().unwrap() ^= 1;
    let mut size = whole.clone();
    size[4] -= 4;

    for damaged in [body, size] {
        let front = chain::file(&chain[..5]);
        let parts = [front.clone(), damaged.clone(), chain::file(&chain[6..])];
        let (_, answer) = regtest(&[parts.concat(), whole.clone()].concat());
        assert_eq!(answer.done()["hash_serialized_3"], chain::hash_serialized_3(&chain));
        let warning = format!("at byte {}: ", front.len());
        assert!(answer.stderr.contains(&warning), "{answer:?}");
        assert!(answer.stderr.contains("another copy is whole"), "{answer:?}");
        // Damaged both times, the first copy is named.
        let (_, answer) = regtest(&[parts.concat(), damaged].concat());
        assert_ne!(answer.code, Some(0), "{answer:?}");
        assert!(answer.stderr.contains(&warning), "{answer:?}");
    }
}

fn header_has_work(record: &[u8]) -> bool {
    let header: bitcoin::block::Header = bitcoin::consensus::deserialize(&record[8..88]).unwrap();
    header.target().is_met_by(header.block_hash())
}

#[test]
fn a_better_chain_replaces_the_stores_own() {
    let old = chain::chain(1, 12);
    let mut new = old[..=7].to_vec();
    extend(&mut new, 2, 8);
    let place = Place::new();
    let old_file = place.write("old.dat", &chain::file(&old));
    // Later files need not repeat the blocks of the store.
    let new_file = place.write("new.dat", &chain::file(&new[8..]));
    let replay = |arguments: &[&str]| {
        place.replay("bitcoin", &[arguments, &["--network", "regtest"]].concat())
    };
    replay(&[text(&old_file)]).done();
    let json = replay(&[text(&new_file), "--until", "12"]).done();
    assert_eq!(json["tip"], old[12].block_hash().to_string(), "equal work is no reason to change");
    let json = replay(&[text(&new_file)]).done();
    assert_eq!((&json["height"], &json["blocks"]), (&15.into(), &8.into()));
    assert_eq!(json["hash_serialized_3"], chain::hash_serialized_3(&new));
    let json = replay(&[text(&old_file)]).done();
    assert_eq!((&json["height"], &json["blocks"]), (&15.into(), &0.into()));
    assert_eq!(replay(&["--rollback-to", "7"]).done()["height"], 7);
    let json = replay(&[text(&old_file)]).done();
    assert_eq!(json["hash_serialized_3"], chain::hash_serialized_3(&old));

    let message = replay(&["--rollback-to", "12", text(&new_file), "--keep-versions", "3"]);
    assert_eq!(message.done()["height"], 15);
    let mut newest = old.clone();
    extend(&mut newest, 1, 10);
    let newest_file = place.write("newest.dat", &chain::file(&newest));
    let message = replay(&[text(&newest_file)]).failed(2);
    assert!(message.contains("below block 13, the oldest block kept"), "{message}");
}

/// The store's own blocks were undone before a block of the better branch was read. Where that
/// branch turned out to be damaged in its midst, the store was left with less work than it had.
#[test]
fn a_better_chain_that_is_damaged_replaces_the_stores_own_only_if_what_is_whole_is_better() {
    let old = chain::chain(1, 12);
    let mut new = old[..=7].to_vec();
    extend(&mut new, 2, 8);

    for (damaged, height) in [(8, 12), (10, 12), (12, 12), (13, 12), (14, 13), (15, 14)] {
        let place = Place::new();
        let mut records: Vec<_> = new.iter().map(record).collect();
        let offset: usize = records[..damaged].iter().map(Vec::len).sum();
        *records[damaged].last_mut().unwrap() ^= 1;
        let old_file = place.write("old.dat", &chain::file(&old));
        let new_file = place.write("new.dat", &records.concat());
        let replay = |path| place.replay("bitcoin", &[text(path), "--network", "regtest"]);
        replay(&old_file).done();
        let message = replay(&new_file).failed(1);
        let expected = format!("new.dat at byte {offset}:");
        assert!(message.contains(&expected), "{message}");
        let json = place.replay("bitcoin", &["--rollback-to", "7", "--network", "regtest"]).done();
        assert_eq!(json["resumed_from"], height, "block {damaged} is damaged");
    }
}

#[test]
fn three_hundred_outputs_of_one_transaction_keep_their_order() {
    let mut chain = chain::chain(1, 2);
    let source = OutPoint { txid: chain[1].txdata[0].compute_txid(), vout: 0 };
    let outputs = (0..300_u16).map(|n| {
        let [low, high] = n.to_le_bytes();
        output(1000 + u64::from(n), &[0x51, low, high])
    });
    let many = spend(&[source], outputs.collect());
    let txid = many.compute_txid();
    let reward = |tag| coinbase(&[5, 9, tag, 9, 9, 9], vec![output(50, &[0x51])]);
    chain.push(mine(&chain[2], vec![reward(1), many]));
    let (_, answer) = regtest(&chain::file(&chain));
    let json = answer.done();
    assert_eq!(json["utxo_count"], 302);
    assert_eq!(json["hash_serialized_3"], chain::hash_serialized_3(&chain));
    // The 257th output is found under its number, and no other one in its stead.
    let spent: Vec<_> = [255, 256, 1].map(|vout| OutPoint { txid, vout }).to_vec();
    chain.push(mine(&chain[3], vec![reward(2), spend(&spent, vec![output(3, &[1])])]));
    let (_, answer) = regtest(&chain::file(&chain));
    assert_eq!(answer.done()["hash_serialized_3"], chain::hash_serialized_3(&chain));
}

#[test]
fn outputs_can_be_spent_in_their_own_block_once() {
    let mut chain = chain::chain(1, 2);
    let source = OutPoint { txid: chain[1].txdata[0].compute_txid(), vout: 0 };
    let first = spend(&[source], vec![output(7, &[0x51]), output(8, &[0x52])]);
    let made = OutPoint { txid: first.compute_txid(), vout: 1 };
    let second = spend(&[made], vec![output(6, &[0x6a, 1]), output(5, &vec![0x51; 10_001])]);
    let reward = coinbase(&[3, 7, 7, 7], vec![output(50, &[0x51])]);
    let base = chain[2].clone();
    chain.push(mine(&base, vec![reward.clone(), first.clone(), second.clone()]));
    let (_, answer) = regtest(&chain::file(&chain));
    let json = answer.done();
    // Genesis and the two outputs that nobody can spend are made but not stored.
    assert_eq!((&json["outputs"], &json["utxo_count"]), (&8.into(), &3.into()));
    assert_eq!(json["hash_serialized_3"], chain::hash_serialized_3(&chain));

    let again = |sources: &[OutPoint]| spend(sources, vec![output(1, &[0x53])]);
    let cases = [
        // In the wrong order; twice in one block; twice in one transaction; never made.
        (vec![second.clone(), first.clone()], second.compute_txid(), made),
        (vec![first.clone(), second.clone(), again(&[made])], again(&[made]).compute_txid(), made),
        (vec![again(&[source, source])], again(&[source, source]).compute_txid(), source),
        (
            vec![again(&[OutPoint { vout: 1, ..source }])],
            again(&[OutPoint { vout: 1, ..source }]).compute_txid(),
            OutPoint { vout: 1, ..source },
        ),
    ];

    for (transactions, culprit, missing) in cases {
        let block = mine(&base, [vec![reward.clone()], transactions].concat());
        chain[3] = block;
        let (place, answer) = regtest(&chain::file(&chain));
        let message = answer.failed(1);
        let hash = chain[3].block_hash().to_string();
        for part in ["block 3", &hash, &culprit.to_string(), &missing.to_string()] {
            assert!(message.contains(part), "{part} in {message}");
        }
        let at = place.replay("bitcoin", &["--rollback-to", "2", "--network", "regtest"]).done();
        assert_eq!(at["resumed_from"], 2);
    }
}

#[test]
fn a_repeated_coinbase_overwrites_and_going_back_restores_the_first() {
    let mut chain = chain::chain(1, 1);
    let twice = coinbase(&[3, 1, 2, 3], vec![output(9, &[0x51]), output(8, &[0x52])]);

    for other in [false, true, false] {
        let tag = [3, 4, 4, u8::try_from(chain.len()).unwrap()];
        let filler = coinbase(&tag, vec![output(1, &[0x53])]);
        let coinbase = if other { filler } else { twice.clone() };
        chain.push(mine(chain.last().unwrap(), vec![coinbase]));
    }

    let (place, answer) = regtest(&chain::file(&chain));
    let json = answer.done();
    assert_eq!(json["utxo_count"], 4);
    assert_eq!(json["hash_serialized_3"], chain::hash_serialized_3(&chain));
    let back = place.replay("bitcoin", &["--rollback-to", "3", "--network", "regtest"]).done();
    assert_eq!(back["hash_serialized_3"], chain::hash_serialized_3(&chain[..4]));
    let back = place.replay("bitcoin", &["--rollback-to", "1", "--network", "regtest"]).done();
    assert_eq!(back["hash_serialized_3"], chain::hash_serialized_3(&chain[..2]));
}

/// Goes back and forth between branches in processes of their own, with a point after every block.
#[test]
fn going_back_in_a_later_process_gives_the_set_of_coins_of_its_branch() {
    let mut branches = [chain::chain(1, 200), Vec::new()];
    branches[1] = branches[0][..=90].to_vec();
    extend(&mut branches[1], 2, 150);
    let place = Place::new();
    let files =
        [0, 1].map(|branch| place.write(&format!("{branch}.dat"), &chain::file(&branches[branch])));
    let replay = |arguments: &[&str], every: &str| {
        let more = ["--network", "regtest", "--checkpoint-every", every];
        place.replay("bitcoin", &[arguments, &more].concat()).done()
    };

    for (branch, every, targets) in
        [(0, "1", [150, 149, 20]), (1, "10", [240, 130, 91]), (0, "30", [200, 95, 7])]
    {
        // Above the fork all is of one branch before the other one is replayed.
        for target in targets {
            let json = replay(&[text(&files[branch]), "--until", "240"], every);
            assert_eq!(json["height"], branches[branch].len() - 1);
            let json = replay(&["--rollback-to", &target.to_string()], every);
            let expected = &branches[branch][..=target];
            assert_eq!(json["tip"], expected[target].block_hash().to_string());
            assert_eq!(json["hash_serialized_3"], chain::hash_serialized_3(expected));
        }
    }
}

#[test]
fn killed_at_any_moment_it_ends_in_the_same_state() {
    let blocks = mainnet();
    for_each_seed("killed_at_any_moment_it_ends_in_the_same_state", 4, |rng, _| {
        let place = Place::new();
        loop {
            let mut child = command();
            child.args(["replay", "bitcoin", text(&blocks), "--checkpoint-every", "50", "--store"]);
            let mut child = child.arg(place.store()).spawn().unwrap();
            // The moment is that of some change of the store, so that most kills hit the work; the
            // outcome does not depend on it.
            let mut changes = rng.below(40);
            let mut before = Vec::new();
            let killed = loop {
                if child.try_wait().unwrap().is_some() {
                    break false;
                }
                let now = names(&place.store());
                if now != before {
                    before = now;
                    if changes == 0 {
                        child.kill().unwrap();
                        child.wait().unwrap();
                        break true;
                    }
                    changes -= 1;
                }
            };
            if !killed || rng.chance(1, 4) {
                break;
            }
        }
        let json = place.replay("bitcoin", &[text(&blocks)]).done();
        assert_whole(&json);
        // Pairs of one moment, and not many of them.
        let snapshots = names(&place.path("store/snapshots"));
        let points = |role: &str| {
            let name =
                |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            let points = snapshots.iter().map(name);
            points.filter_map(|name| name.strip_prefix(role).map(str::to_owned)).collect::<Vec<_>>()
        };
        assert_eq!(points("chain-"), points("utxo-"));
        assert_eq!(snapshots.len(), 2 * points("chain-").len());
        assert!((1..=16).contains(&points("chain-").len()), "{snapshots:?}");
    });
}

/// The names in a directory and below it, as far as they can be read.
fn names(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .flat_map(|entry| {
            let path = entry.path();
            let mut below = if path.is_dir() { names(&path) } else { Vec::new() };
            below.push(path);
            below
        })
        .collect();
    names.sort();
    names.retain(|path| path.is_file());

    names
}

#[test]
fn mainnet_files_have_mainnet_magic() {
    assert!(mainnet_records().iter().all(|record| record.starts_with(&MAINNET)));
}
