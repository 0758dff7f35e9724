//! Rust source as a list of tokens: enough of the language to tell code from comments and strings,
//! which a search of the text confuses.
//!
//! Every input gives some list of tokens. Input that is not Rust gives a useless list, never a
//! panic.

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or keyword; raw names come without their `r#`.
    Word,
    /// A number, with its underscores and suffix.
    Number,
    /// A string, byte string or character, with prefix, quotes and escapes as written.
    Text,
    /// `'a`
    Lifetime,
    /// One character of punctuation; `::` is two tokens.
    Mark,
}

/// A token and where it stands. Comments are no tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl Token<'_> {
    /// Whether this is the name or keyword `word`.
    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text == word
    }

    /// Whether this is the punctuation `mark`.
    pub(crate) fn is_mark(&self, mark: &str) -> bool {
        self.kind == Kind::Mark && self.text == mark
    }
}

/// The tokens of `source`.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { source, at: 0, line: 1 };
    let mut found = Vec::new();
    while let Some(token) = lexer.next_token() {
        found.push(token);
    }
    found
}

/// `tokens` without the items that only tests see: those behind `#[cfg(test)]`.
pub(crate) fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if starts_test_only(&tokens[at..]) {
            at = end_of_item(tokens, at);
        } else {
            kept.push(*token);
            at += 1;
        }
    }
    kept
}

/// Whether `tokens` start with `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn starts_test_only(tokens: &[Token<'_>]) -> bool {
    if !tokens.first().is_some_and(|token| token.is_mark("#")) {
        return false;
    }
    let texts: Vec<&str> = tokens.iter().take(7).map(|token| token.text).collect();
    texts.starts_with(&["#", "[", "cfg", "(", "test", ")"])
        || texts == ["#", "[", "cfg", "(", "all", "(", "test"]
}

/// The index after the item that starts at `start` with its attributes.
fn end_of_item(tokens: &[Token<'_>], start: usize) -> usize {
    let mut at = start;
    while tokens.get(at).is_some_and(|token| token.is_mark("#")) {
        at = end_of_group(tokens, at + 1);
    }

    while let Some(token) = tokens.get(at) {
        match token.text {
            ";" | "," if token.kind == Kind::Mark => return at + 1,
            "{" if token.kind == Kind::Mark => return end_of_group(tokens, at),
            "(" | "[" if token.kind == Kind::Mark => at = end_of_group(tokens, at),
            _ => at += 1,
        }
    }

    at
}

/// The index after the bracket that closes the one at `start`.
pub(crate) fn end_of_group(tokens: &[Token<'_>], start: usize) -> usize {
    let mut depth = 0usize;
    for (offset, token) in tokens.iter().enumerate().skip(start) {
        if token.kind != Kind::Mark {
            continue;
        }
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return offset + 1;
                }
            }
            _ => {}
        }
    }

    tokens.len()
}

struct Lexer<'a> {
    source: &'a str,
    /// Offset in bytes, always on the border of a character.
    at: usize,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip(&mut self, count: usize) {
        for character in self.rest().chars().take(count) {
            self.line += usize::from(character == '\n');
            self.at += character.len_utf8();
        }
    }

    fn skip_while(&mut self, keep: impl Fn(char) -> bool) {
        let rest = self.rest();
        let end = rest.find(|character| !keep(character)).unwrap_or(rest.len());
        self.line += rest[..end].matches('\n').count();
        self.at += end;
    }

    fn next_token(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let start = self.at;

        let line = self.line;
        let first = self.peek()?;
        let kind = if self.skip_quoted() {
            Kind::Text
        } else if first.is_ascii_digit() {
            self.skip_number();
            Kind::Number
        } else if is_word(first) {
            if self.rest().starts_with("r#") {
                self.skip(2);
                let start = self.at;
                self.skip_while(is_word);
                return Some(Token { kind: Kind::Word, text: &self.source[start..self.at], line });
            }
            self.skip_while(is_word);
            Kind::Word
        } else if first == '\'' {
            self.skip(1);
            self.skip_while(is_word);
            Kind::Lifetime
        } else {
            self.skip(1);
            Kind::Mark
        };

        Some(Token { kind, text: &self.source[start..self.at], line })
    }

    /// Skips white space and comments, nested ones included.
    fn skip_blank(&mut self) {
        loop {
            self.skip_while(char::is_whitespace);
            let rest = self.rest();
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if self.rest().starts_with("/*") {
                let mut depth = 0usize;
                while self.peek().is_some() {
                    if self.rest().starts_with("/*") {
                        depth += 1;
                        self.skip(2);
                    } else if self.rest().starts_with("*/") {
                        depth -= 1;
                        self.skip(2);
                        if depth == 0 {
                            break;
                        }
                    } else {
                        self.skip(1);
                    }
                }
            } else {
                return;
            }
        }
    }

    /// Digits with their suffix, and a fraction only if a digit follows: `0..9` is three tokens.
    fn skip_number(&mut self) {
        self.skip_while(is_word);
        let mut rest = self.rest().chars();
        if rest.next() == Some('.') && rest.next().is_some_and(|next| next.is_ascii_digit()) {
            self.skip(1);
            self.skip_while(is_word);
        }
    }

    /// Skips a string or character of any kind, if one starts here.
    fn skip_quoted(&mut self) -> bool {
        let rest = self.rest();
        if !rest.starts_with(['r', 'b', 'c', '"', '\'']) {
            return false;
        }
        for prefix in ["r", "br", "cr"] {
            if let Some(after) = rest.strip_prefix(prefix) {
                let hashes = after.bytes().take_while(|&byte| byte == b'#').count();
                if after[hashes..].starts_with('"') {
                    let close = format!("\"{}", "#".repeat(hashes));
                    let body = prefix.len() + hashes + 1;
                    let end = rest[body..]
                        .find(&close)
                        .map_or(rest.len(), |end| body + end + close.len());
                    self.skip(rest[..end].chars().count());
                    return true;
                }
            }
        }

        for (prefix, quote) in [("\"", '"'), ("b\"", '"'), ("c\"", '"'), ("b'", '\'')] {
            if rest.starts_with(prefix) {
                self.skip(prefix.len());
                self.skip_to_quote(quote);
                return true;
            }
        }

        // `'a'` and `'\n'` are characters, `'a` alone is a lifetime.
        let mut ahead = rest.chars();
        if ahead.next() == Some('\'') {
            let second = ahead.next();
            if second == Some('\\') || (second.is_some() && ahead.next() == Some('\'')) {
                self.skip(1);
                self.skip_to_quote('\'');
                return true;
            }
        }

        false
    }

    fn skip_to_quote(&mut self, quote: char) {
        while let Some(character) = self.peek() {
            match character {
                '\\' => self.skip(2),
                _ if character == quote => return self.skip(1),
                _ => self.skip(1),
            }
        }
    }
}

fn is_word(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_strings_hide_code() {
        assert_eq!(
            texts("a /* b /* c */ d */ e // f\n\"g \\\" h\" i"),
            ["a", "e", "\"g \\\" h\"", "i"]
        );
        assert_eq!(texts("r#\"a \" b\"# c br\"d\""), ["r#\"a \" b\"#", "c", "br\"d\""]);
    }

    #[test]
    fn characters_differ_from_lifetimes() {
        let kinds = |source| tokens(source).iter().map(|token| token.kind).collect::<Vec<_>>();
        assert_eq!(
            kinds("'a' '\\'' 'a b'x'"),
            [Kind::Text, Kind::Text, Kind::Lifetime, Kind::Text]
        );
    }

    #[test]
    fn numbers_keep_their_suffix_and_ranges_their_dots() {
        assert_eq!(texts("0..1_000u64 1.5 0xFF"), ["0", ".", ".", "1_000u64", "1.5", "0xFF"]);
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let found = tokens("\"a\nb\" /* \n */ c\nd");
        assert_eq!(found.iter().map(|token| token.line).collect::<Vec<_>>(), [1, 3, 4]);
    }

    #[test]
    fn items_for_tests_are_dropped_whole() {
        let source = "a #[cfg(test)] #[path = \"x\"] mod tests { b { c } } d \
                      #[cfg(all(test, unix))] use e; f #[cfg(any(test, g))] h";
        let left: Vec<&str> =
            without_tests(&tokens(source)).iter().map(|token| token.text).collect();
        let any = ["#", "[", "cfg", "(", "any", "(", "test", ",", "g", ")", ")", "]", "h"];
        assert_eq!(left, [["a", "d", "f"].as_slice(), &any].concat());
    }

    #[test]
    fn broken_source_ends() {
        for source in ["\"open", "r##\"open", "/* open", "'", "b'", "{ ( ]", "#[cfg(test)] mod"] {
            without_tests(&tokens(source));
        }
    }
}
