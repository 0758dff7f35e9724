//! Crashes of the writer: after each of its writes it is cut off from the cluster for good, and the
//! next writer finds the commit whole or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use terrane_cassandra::Cassandra;
use terrane_kv::{Database, Error, Table};

use crate::proxy::{Policy, Proxies};
use crate::setup::{Cluster, KEYSPACE, cluster, commit, entries, store_name};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Changes of the commit that is cut off: new, replaced, removed and divided.
fn changes(number: u8) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    vec![
        (b"alice".to_vec(), Some(vec![number; 3])),
        (b"bob".to_vec(), None),
        (b"carol".to_vec(), Some(vec![number; 300_000])),
        (vec![number, 7, 1], Some(vec![number])),
        (vec![number, 7, 2], Some(vec![number])),
    ]
}

fn apply(model: &mut Model, changes: &[(Vec<u8>, Option<Vec<u8>>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

fn write(database: &dyn Database, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<u64, Error> {
    let changes: Vec<_> =
        changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
    commit(database, &changes)
}

fn found(database: &dyn Database) -> Model {
    entries(&*database.reader().unwrap(), Table::Main).into_iter().collect()
}

/// Rows of the main table in the cluster, visible or not.
fn raw_rows(cluster: &Cluster, id: i64) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = cluster.session().await;
        let text =
            format!("SELECT store, key FROM {KEYSPACE}.kv WHERE tab = 'main' ALLOW FILTERING");
        let rows = session.query_unpaged(text, ()).await.unwrap().into_rows_result().unwrap();
        let rows = rows.rows::<(i64, Vec<u8>)>().unwrap().map(|row| row.unwrap().0);
        rows.filter(|store| *store == id).count()
    })
}

fn store_id(cluster: &Cluster, store: &str) -> i64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = cluster.session().await;
        let text = format!("SELECT id FROM {KEYSPACE}.head WHERE store = ?");
        let rows = session.query_unpaged(text, (store,)).await.unwrap().into_rows_result().unwrap();
        rows.single_row::<(i64,)>().unwrap().0
    })
}

#[test]
fn a_writer_cut_off_after_any_write_leaves_a_commit_whole_or_nothing() {
    let Some(cluster) = cluster() else { return };
    let store = store_name("crash");
    let mut model = Model::new();

    // Before the first cut: keys that the commits replace and remove.
    let first = [(b"alice".to_vec(), Some(b"0".to_vec())), (b"bob".to_vec(), Some(b"0".to_vec()))];
    let database = cluster.open(&store);
    write(&*database, &first).unwrap();
    apply(&mut model, &first);
    drop(database);

    let mut outcomes = [0, 0];
    for writes in 0.. {
        let proxies = Proxies::start(&cluster.nodes);
        let options = cluster
            .options_at(proxies.points(), &store)
            .timeouts(Duration::from_secs(2), Duration::from_millis(200))
            .take_over();
        let database = Cassandra::open(proxies.through(options)).unwrap();
        assert_eq!(found(&database), model, "before {writes} writes");

        proxies.set(Policy::Writes(writes));
        let number = writes as u8 + 1;
        let written = write(&database, &changes(number));
        let is_cut = proxies.faults() > 0;
        proxies.set(Policy::Cut);
        drop(database);

        // The next writer knows nothing of the one before.
        let database = Cassandra::open(cluster.options(&store).take_over()).unwrap();
        let mut with = model.clone();
        apply(&mut with, &changes(number));
        let now = found(&database);
        let is_there = now == with;
        assert!(is_there || now == model, "{writes} writes: half a commit");
        assert!(is_there || written.is_err(), "{writes} writes: an acknowledged commit is gone");
        outcomes[usize::from(is_there)] += 1;
        if is_there {
            model = with;
        }

        // It writes over what the dead one left, and removes some of it.
        let own = [
            (b"bob".to_vec(), Some(vec![number])),
            (b"carol".to_vec(), None),
            (vec![number, 7, 1], None),
        ];
        write(&database, &own).unwrap();
        apply(&mut model, &own);
        assert_eq!(found(&database), model, "after {writes} writes and a commit");
        assert!(database.check().unwrap().is_empty());
        drop(database);

        if !is_cut {
            written.unwrap();
            break;
        }
    }
    println!(
        "{} cuts, after {} of them the commit was there",
        outcomes[0] + outcomes[1],
        outcomes[1]
    );
    assert!(outcomes[0] > 5 && outcomes[1] > 0);

    // What all the dead left is collected in the end, and nothing else.
    let id = store_id(&cluster, &store);
    let database = cluster.open(&store);
    while raw_rows(&cluster, id) > model.len() {
        database.compact().unwrap();
    }
    assert_eq!(raw_rows(&cluster, id), model.len());
    assert_eq!(found(&*database), model);
    assert!(database.check().unwrap().is_empty());
}
