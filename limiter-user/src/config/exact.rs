//! Exact texts of rates and amounts; their usual display is rounded.

use std::fmt::Display;
use std::str::FromStr;

use limiter_common::limit::Rate;

use crate::{
    bytes::{Amount, Bandwidth},
    rate::PacketRate,
};

/// Units of time that rates are written in, nanoseconds.
const PERIODS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
];

/// The display where it is exact, else the first of the other texts that is.
fn first_exact<T: FromStr + Display + PartialEq>(
    value: &T,
    others: impl Iterator<Item = String>,
) -> String {
    let shown = value.to_string();
    let is_exact = |text: &String| text.parse().is_ok_and(|read: T| read == *value);
    std::iter::once(shown.clone()).chain(others).find(is_exact).unwrap_or(shown)
}

pub(super) fn rate(rate: PacketRate) -> String {
    let others = PERIODS
        .into_iter()
        .filter_map(|(unit, period)| Some(format!("{}/{unit}", tokens_in(rate.0, period, 1)?)));
    first_exact(&rate, others)
}

pub(super) fn bandwidth(bandwidth: Bandwidth) -> String {
    let units = [("B", 1), ("bit", 8)];
    let others = PERIODS.into_iter().flat_map(|(time, period)| {
        units.into_iter().filter_map(move |(unit, per_byte)| {
            Some(format!("{}{unit}/{time}", tokens_in(bandwidth.0, period, per_byte)?))
        })
    });
    first_exact(&bandwidth, others)
}

/// So many bytes in the largest unit of which they are a whole number.
pub(super) fn amount(bytes: u64) -> String {
    let units = [
        ("GiB", 1 << 30),
        ("GB", 1_000_000_000),
        ("MiB", 1 << 20),
        ("MB", 1_000_000),
        ("KiB", 1 << 10),
        ("kB", 1_000),
    ];
    let fits = |(_, unit): &(&str, u64)| bytes > 0 && bytes.is_multiple_of(*unit);
    let (name, unit) = units.into_iter().find(fits).unwrap_or(("B", 1));
    let text = format!("{}{name}", bytes / unit);
    debug_assert_eq!(text.parse(), Ok(Amount(bytes)));
    text
}

/// How many tokens a period holds, times `factor`, if that is a decimal number.
fn tokens_in(rate: Rate, period: u64, factor: u64) -> Option<String> {
    let (mut whole, per) = (u128::from(rate.tokens()), u128::from(rate.period_ns()));
    whole = whole.checked_mul(period.into())?.checked_mul(factor.into())?;
    let mut text = (whole / per).to_string();
    let mut rest = whole % per;
    if rest > 0 {
        text.push('.');
    }
    // A u64 holds no more decimals.
    for _ in 0..19 {
        if rest == 0 {
            return Some(text);
        }
        text.push_str(&(rest * 10 / per).to_string());
        rest = rest * 10 % per;
    }
    None
}
