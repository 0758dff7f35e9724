//! Pages of a table as a snapshot sees them: the database's page with the old values put in.

use terrane_kv::Entry;
use terrane_kv::overlay::undo::Old;

/// Puts what a snapshot sees otherwise into a page of what the database has. `is_last`: the
/// database has nothing behind the page. `is_before` is the order of both. The result may be empty
/// although there is more behind the page.
pub(super) fn merged<'u>(
    page: Vec<Entry>,
    is_last: bool,
    olds: impl Iterator<Item = (&'u [u8], &'u Old)>,
    is_before: impl Fn(&[u8], &[u8]) -> bool,
    entries: usize,
) -> Vec<Entry> {
    let mut page = page.into_iter().peekable();

    let mut olds = olds.peekable();
    let mut merged = Vec::new();
    while merged.len() < entries {
        let old_is_next = match (page.peek(), olds.peek()) {
            (Some((key, _)), Some((old_key, _))) => !is_before(key, old_key),
            (Some(_), None) => false,
            (None, Some(_)) if is_last => true,
            (None, _) => break,
        };

        if !old_is_next {
            merged.extend(page.next());
            continue;
        }

        if let Some((key, old)) = olds.next() {
            page.next_if(|(page_key, _)| page_key == key);
            merged.extend(old.as_ref().map(|old| (key.to_vec(), old.clone())));
        }
    }

    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_merged_up_to_where_the_database_may_have_more() {
        let entry = |key: &str| (key.as_bytes().to_vec(), b"new".to_vec());
        let olds = [("b", Some(b"old".to_vec())), ("c", None), ("e", Some(b"old".to_vec()))];
        let olds = || olds.iter().map(|(key, old)| (key.as_bytes(), old));
        let merge = |is_last, entries| {
            let page = vec![entry("a"), entry("c"), entry("d")];
            let keys: Vec<String> = merged(page, is_last, olds(), |a, b| a < b, entries)
                .into_iter()
                .map(|(key, _)| String::from_utf8(key).unwrap())
                .collect();
            keys.concat()
        };

        assert_eq!(merge(false, 9), "abd", "e may stand behind keys that were not read");
        assert_eq!(merge(true, 9), "abde");
        assert_eq!(merge(true, 2), "ab");
    }
}
