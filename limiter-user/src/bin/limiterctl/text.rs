//! Numbers, times and tables as people read them.

use comfy_table::{CellAlignment, Table, presets};

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table
}

/// A table whose middle columns are numbers.
pub(crate) fn numbers(header: &[&str]) -> Table {
    let mut table = table(header);
    for (at, column) in table.column_iter_mut().enumerate().skip(1) {
        if !matches!(header[at], "mode" | "verdict" | "for each" | "why" | "policy") {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(crate) fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}

/// 1234567 as 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn duration(seconds: u64) -> String {
    humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string()
}

/// A share of 0 to 1, of a hundred.
pub(crate) fn share(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".into(),
        _ if percent < 0.01 => "<0.01 %".into(),
        _ if percent < 1.0 => format!("{percent:.2} %"),
        _ => format!("{percent:.1} %"),
    }
}

/// A number of packets or bytes in four digits at most.
pub(crate) fn short(number: f64) -> String {
    match number {
        _ if number < 10.0 && number.fract() != 0.0 => format!("{number:.1}"),
        _ if number < 9_999.5 => format!("{number:.0}"),
        _ if number < 99_950.0 => format!("{:.1}k", number / 1e3),
        _ if number < 999_500.0 => format!("{:.0}k", number / 1e3),
        _ if number < 99_950_000.0 => format!("{:.1}M", number / 1e6),
        _ if number < 999_500_000.0 => format!("{:.0}M", number / 1e6),
        _ => format!("{:.1}G", number / 1e9),
    }
}

/// What came from the network, without anything that a terminal obeys.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { '?' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (9.0, "9"),
            (42.4, "42"),
            (9_999.0, "9999"),
            (12_345.0, "12.3k"),
            (123_456.0, "123k"),
            (1_234_567.0, "1.2M"),
            (123_456_789.0, "123M"),
            (1.5e9, "1.5G"),
        ] {
            assert_eq!(short(number), text, "{number}");
        }
    }

    #[test]
    fn shares() {
        for (of_one, text) in [(0.0, "0 %"), (1e-9, "<0.01 %"), (0.0042, "0.42 %"), (0.5, "50.0 %")]
        {
            assert_eq!(share(of_one), text);
        }
    }

    #[test]
    fn a_terminal_obeys_nothing() {
        assert_eq!(plain("eth0\x1b[2J\n"), "eth0?[2J?");
    }
}
