//! What is wrong with a text that is no TOML, in the words of an operator.

use std::collections::HashSet;

use toml::de::{DeTable, Error};

use super::{
    report::{Finding, Lines},
    schema::schema,
    structure,
};

/// Lines that are passed over; a text that is something else has thousands.
const MOST_PASSED_OVER: usize = 100;
/// The parser looks no further behind such a line.
const LAST_WORD: &str = "key with no value";

/// Everything that is wrong with the text, its keys and values included.
pub(super) fn check(text: &str) -> Vec<Finding> {
    let lines = Lines::new(text);
    let mut rest = text.to_owned();
    let mut findings = Vec::new();
    loop {
        let (mut table, errors) = DeTable::parse_recoverable(&rest);
        let last_word = errors.iter().find(|error| error.message().starts_with(LAST_WORD));
        if let Some(error) = last_word.filter(|_| findings.len() < MOST_PASSED_OVER) {
            let found = finding(text, error);
            let line = lines.span(lines.number(found.span.start));
            let comment = format!("{:<1$}", "#", line.len());
            findings.push(found);
            rest.replace_range(line, &comment);
            continue;
        }
        findings.extend(errors.iter().map(|error| finding(text, error)));
        // On a line that is no TOML, keys and values are guesses.
        let number = |found: &Finding| lines.number(found.span.start);
        let broken: HashSet<_> = findings.iter().map(number).collect();
        let unsound = structure::check(&mut table, schema());
        findings.extend(unsound.into_iter().filter(|found| !broken.contains(&number(found))));
        return findings;
    }
}

/// What is wrong with the text at the place of the error.
fn finding(text: &str, error: &Error) -> Finding {
    let span = error.span().unwrap_or(0..0);
    let found = text.get(span.clone()).unwrap_or_default().trim();
    match error.message() {
        message if message.starts_with("string values must be quoted") => {
            if found.is_empty() {
                return Finding::error(span, "the value is missing");
            }
            Finding::error(span, format!("'{}' is no value", found.escape_debug()))
                .hint("a text stands in quotes; true, false and whole numbers do not")
        }
        "invalid basic string, expected `\"`" => {
            Finding::error(span, "the text has no closing quote").hint("end it with \"")
        }
        "invalid literal string, expected `'`" => {
            Finding::error(span, "the text has no closing quote").hint("end it with '")
        }
        message if message.starts_with(LAST_WORD) => {
            Finding::error(span, "a key without a value").hint("write key = value")
        }
        message if message.starts_with("duplicate key") => {
            Finding::error(span, "the same key stands here twice").hint("remove one of the two")
        }
        message => Finding::error(span, message),
    }
}
