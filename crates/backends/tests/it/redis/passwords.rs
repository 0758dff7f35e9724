//! Passwords that are given beside the URL, to a server that is started with one.

use terrane_backends::redis::{Options, Redis};
use terrane_kv::Error;

use super::{put, read, start};

#[test]
fn a_password_beside_the_url_opens_a_server_that_asks_for_one() {
    let Some(running) = start(&["--requirepass", "right-word"]) else { return };
    let with =
        |url: &str, word: &str| Redis::open(Options::server(url).password(Some(word.to_owned())));
    let url = running.server.url();
    let database = with(&url, "right-word").unwrap();
    put(&database, "key", b"1").unwrap();
    drop(database);

    // It goes before the URL's.
    let other = url.replace("//", "//:other-word@");
    assert_eq!(read(&with(&other, "right-word").unwrap(), "key").unwrap().unwrap(), b"1");
    let without = Redis::open(Options::server(&url));

    for refused in [with(&url, "wrong-word"), with(&other, "wrong-word"), without] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::BackEnd { .. }), "{refused}");
        let shown = format!("{refused} {refused:?}");
        let leaked = ["right-word", "wrong-word", "other-word"].map(|word| shown.contains(word));
        assert_eq!(leaked, [false; 3], "{shown}");
    }
}
