//! The recipes of `examples/`, each run as a user would run it.

use std::error::Error;

#[path = "../examples/account_proof.rs"]
mod account_proof;
#[path = "../examples/backup_restore.rs"]
mod backup_restore;
#[path = "../examples/durable_threads.rs"]
mod durable_threads;
#[path = "../examples/explorer.rs"]
mod explorer;
#[expect(dead_code, reason = "the program starts itself, which a test cannot")]
#[path = "../examples/follower.rs"]
mod follower;
#[path = "../examples/light_client.rs"]
mod light_client;
#[path = "../examples/migration.rs"]
mod migration;
#[path = "../examples/pruning_node.rs"]
mod pruning_node;
#[path = "../examples/utxo_by_address.rs"]
mod utxo_by_address;
#[path = "../examples/utxo_rollback.rs"]
mod utxo_rollback;

type Tested = Result<(), Box<dyn Error>>;

#[test]
fn an_account_is_proved_to_a_light_client() -> Tested {
    account_proof::main()
}

#[test]
fn an_account_and_a_slot_are_proved_to_a_light_client() -> Tested {
    light_client::main()
}

#[test]
fn a_backup_is_restored() -> Tested {
    backup_restore::main()
}

#[test]
fn eight_threads_commit_durably() -> Tested {
    durable_threads::main()
}

#[test]
fn an_explorer_pages_backwards() -> Tested {
    explorer::main()
}

/// The follower reads on a thread here; `cargo run --example follower` starts a process for it.
#[test]
fn a_follower_finds_every_block() -> Tested {
    let place = tempfile::tempdir()?;
    let dir = place.path().join("chain");
    let store = follower::create(&dir)?;
    let views = std::thread::scope(|scope| {
        let following = scope.spawn(|| follower::follow(&dir).map_err(|error| error.to_string()));
        follower::write(&store).map_err(|error| error.to_string())?;
        following.join().expect("the follower panicked")
    })?;
    assert!(views >= 1);
    Ok(store.close()?)
}

#[test]
fn sorted_data_become_a_named_table() -> Tested {
    migration::main()
}

#[test]
fn a_node_goes_back_and_forgets_old_blocks() -> Tested {
    pruning_node::main()
}

#[test]
fn a_set_of_unspent_outputs_is_rolled_back() -> Tested {
    utxo_rollback::main()
}

#[test]
fn coins_are_found_by_their_address() -> Tested {
    utxo_by_address::main()
}
