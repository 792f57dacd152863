//! The name that was probably meant.

/// A sentence that names what was probably meant, or else all that there is;
/// keys are quoted as keys, values as texts.
pub(super) fn mend<'a>(
    text: &str,
    names: impl Iterator<Item = &'a str> + Clone,
    quote: char,
    all: &str,
) -> String {
    match nearest(text, names.clone()) {
        Some(name) => format!("did you mean {quote}{name}{quote}?"),
        None => {
            let names: Vec<_> = names.map(|name| format!("{quote}{name}{quote}")).collect();
            format!("{all}: {}", names.join(", "))
        }
    }
}

/// The name that takes the fewest slips of a hand, if they are few, or else the
/// first that the text is the beginning of.
fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    // A name is short, and the comparison takes the product of both lengths.
    let text: String = text.to_lowercase().replace('-', "_").chars().take(64).collect();
    let slips = |name: &str| strsim::damerau_levenshtein(&text, &name.replace('-', "_"));
    let (slips, name) =
        names.clone().map(|name| (slips(name), name)).min_by_key(|(slips, _)| *slips)?;
    let few = (name.chars().count() / 3).max(1);
    if slips <= few {
        return Some(name);
    }
    let begins = |name: &&str| text.len() >= 3 && name.replace('-', "_").starts_with(&text);
    names.into_iter().find(begins)
}
