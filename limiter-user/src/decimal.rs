//! Decimal numbers as people write them, kept exact.

/// A decimal number as numerator and power of ten, so that `2.5k` is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    /// The number times `scale`; the largest u64 where it is beyond one.
    pub(crate) digits: u64,
    /// A power of ten.
    pub(crate) scale: u64,
}

impl Decimal {
    /// Digits, at most one point, at most one suffix k, M or G.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, factor) = match text.char_indices().last()? {
            (at, 'k' | 'K') => (&text[..at], 1_000),
            (at, 'M') => (&text[..at], 1_000_000),
            (at, 'G') => (&text[..at], 1_000_000_000),
            _ => (text, 1),
        };
        Some(Self::plain(number)?.times(factor))
    }

    /// Digits and at most one point.
    pub(crate) fn plain(number: &str) -> Option<Self> {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || number.ends_with('.') {
            return None;
        }
        // More digits than a u64 holds are out of range, not nonsense.
        let digits = format!("{whole}{fraction}").parse().unwrap_or(u64::MAX);
        let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        Some(Self { digits, scale })
    }

    /// So many times as much.
    pub(crate) const fn times(self, factor: u64) -> Self {
        Self { digits: self.digits.saturating_mul(factor), scale: self.scale }
    }

    /// The number, if it is whole.
    pub(crate) const fn whole(self) -> Option<u64> {
        if self.digits.is_multiple_of(self.scale) { Some(self.digits / self.scale) } else { None }
    }
}

/// A number for people: three decimals at most, without trailing zeros.
pub(crate) fn shown(number: f64) -> String {
    let number = format!("{number:.3}");
    number.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Greatest common divisor.
pub(crate) const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `512/min` as the number's text and the length of the period in nanoseconds;
/// without a period, per second.
pub(crate) fn per_period(text: &str) -> Option<(&str, u64)> {
    const SECOND_NS: u64 = 1_000_000_000;
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let period = match unit.trim() {
        "s" | "sec" | "second" => SECOND_NS,
        "m" | "min" | "minute" => 60 * SECOND_NS,
        "h" | "hour" => 3600 * SECOND_NS,
        "d" | "day" => 86_400 * SECOND_NS,
        _ => return None,
    };
    Some((number.trim(), period))
}
