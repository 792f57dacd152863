//! Where in the text a key or value stands.
//!
//! A place has a name such as `policy.2.match.ports.0`; no key has a point in
//! it, and a list that stands as its only value is that value at every index.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Bytes of the text.
pub(super) type Span = Range<usize>;

/// The parsed text.
pub(super) struct Tree<'i>(pub(super) Spanned<DeTable<'i>>);

impl Tree<'_> {
    /// Where the value of that place stands; of one that is absent, what would
    /// hold it.
    pub(super) fn value(&self, place: &str) -> Span {
        self.find(place).1
    }

    /// Where the key of that place stands; of one that is absent, what would
    /// hold it.
    pub(super) fn key(&self, place: &str) -> Span {
        self.find(place).0
    }

    fn find(&self, place: &str) -> (Span, Span) {
        let mut found = (0..0, 0..0);
        let mut table = Some(self.0.get_ref());
        let mut value: Option<&Spanned<DeValue<'_>>> = None;
        for step in place.split('.') {
            let next = match (table, value.map(Spanned::get_ref)) {
                (Some(table), _) => table.get_key_value(step).map(|(k, v)| (k.span(), v)),
                (None, Some(DeValue::Array(items))) => {
                    step.parse().ok().and_then(|at: usize| items.get(at)).map(|v| (v.span(), v))
                }
                _ => None,
            };
            let Some((key, next)) = next else { break };
            found = (key, next.span());
            table = next.get_ref().as_table();
            value = Some(next);
        }
        found
    }
}
