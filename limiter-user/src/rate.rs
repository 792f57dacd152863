//! Rates and bursts as people write them.

use std::{fmt, str::FromStr};

use limiter_common::limit::Rate;

use crate::decimal::{Decimal, gcd, per_period, shown};

const SECOND_NS: u64 = 1_000_000_000;

/// A rate or burst that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a number with an optional suffix and period.
    #[error("'{0}' is no rate")]
    NotARate(String),
    /// A number outside the range.
    #[error("the rate '{0}' is out of range")]
    RateRange(String),
    /// Not a whole number.
    #[error("'{0}' is no burst")]
    NotABurst(String),
    /// Zero or above 2^32-1.
    #[error("the burst '{0}' is out of range")]
    BurstRange(String),
}

impl Error {
    /// The mend.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NotARate(_) => "write packets per time, such as 500, 2.5k/s, 90/m or 1/day",
            Self::RateRange(_) => "it must lie between 1/day and 10M/s",
            Self::NotABurst(_) => "write a whole number of packets, such as 200 or 10k",
            Self::BurstRange(_) => "it must lie between 1 and 4294967295 packets",
        }
    }
}

/// Packets per time, exact from 1/day to 10M/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRate(pub Rate);

/// A whole number of packets, 1 to 2^32-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst(pub u32);

impl FromStr for PacketRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let nonsense = || Error::NotARate(text.to_owned());
        let (number, period) = per_period(text).ok_or_else(nonsense)?;
        let number = Decimal::parse(number).ok_or_else(nonsense)?;
        let out_of_range = || Error::RateRange(text.to_owned());
        let period = period.checked_mul(number.scale).ok_or_else(out_of_range)?;
        let divisor = gcd(number.digits, period).max(1);
        Rate::packets(number.digits / divisor, period / divisor)
            .map(Self)
            .map_err(|_| out_of_range())
    }
}

impl PacketRate {
    /// 1000/s.
    pub const THOUSAND: Self = match Rate::packets(1000, SECOND_NS) {
        Ok(rate) => Self(rate),
        Err(_) => unreachable!(),
    };

    /// Packets per second, rounded to what a float holds.
    #[must_use]
    pub fn per_second(self) -> f64 {
        self.0.tokens() as f64 * SECOND_NS as f64 / self.0.period_ns() as f64
    }

    /// The burst that holds one second of the rate, at least 1.
    #[must_use]
    pub fn one_second(self) -> Burst {
        let tokens =
            u128::from(self.0.tokens()) * u128::from(SECOND_NS) / u128::from(self.0.period_ns());
        Burst(u32::try_from(tokens).unwrap_or(u32::MAX).max(1))
    }
}

/// In the largest unit of time in which the rate is at least 1.
impl fmt::Display for PacketRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.per_second();
        let (number, unit) = [(1.0, "s"), (60.0, "m"), (3600.0, "h"), (86_400.0, "day")]
            .into_iter()
            .map(|(seconds, unit)| (per_second * seconds, unit))
            .find(|(number, _)| *number >= 0.999_999)
            .unwrap_or((per_second * 86_400.0, "day"));
        let (number, suffix) = if number >= 1e6 {
            (number / 1e6, "M")
        } else if number >= 1e4 {
            (number / 1e3, "k")
        } else {
            (number, "")
        };
        write!(f, "{}{suffix}/{unit}", shown(number))
    }
}

impl FromStr for Burst {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = Decimal::parse(text.trim()).and_then(Decimal::whole);
        match u32::try_from(number.ok_or_else(|| Error::NotABurst(text.to_owned()))?) {
            Ok(burst) if burst > 0 => Ok(Self(burst)),
            _ => Err(Error::BurstRange(text.to_owned())),
        }
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_people_write() {
        for (text, per_second, shown) in [
            ("500", 500.0, "500/s"),
            ("500/s", 500.0, "500/s"),
            ("1k", 1e3, "1000/s"),
            ("2.5k/s", 2500.0, "2500/s"),
            ("12.5k/s", 12_500.0, "12.5k/s"),
            ("10M/s", 1e7, "10M/s"),
            ("10000000", 1e7, "10M/s"),
            ("90/m", 1.5, "1.5/s"),
            ("6/min", 0.1, "6/m"),
            ("1/h", 1.0 / 3600.0, "1/h"),
            ("1/day", 1.0 / 86_400.0, "1/day"),
            ("1/d", 1.0 / 86_400.0, "1/day"),
            ("0.5", 0.5, "30/m"),
            (" 7 / s ", 7.0, "7/s"),
            ("999983", 999_983.0, "999.983k/s"),
        ] {
            let rate: PacketRate = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!((rate.per_second() / per_second - 1.0).abs() < 1e-12, "{text}");
            assert_eq!(rate.to_string(), shown, "{text}");
            let again: PacketRate = shown.parse().unwrap();
            assert_eq!(again, rate, "{shown} is {text}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for text in [
            "", " ", "fast", "-5", "+5", "nan", "inf", "1e30", "1e3", "0x10", "5/week", "5/", "/s",
            "k", ".", "1.", ".5", "1..5", "5 5", "1/s/s", "１", "5kk",
        ] {
            let error = text.parse::<PacketRate>().unwrap_err();
            assert_eq!(error, Error::NotARate(text.to_owned()), "{text:?}");
        }
        for text in
            ["0", "0/s", "0.0", "0.9/day", "10.1M/s", "100M", "1G", "99999999999999999999999"]
        {
            let error = text.parse::<PacketRate>().unwrap_err();
            assert_eq!(error, Error::RateRange(text.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn bursts() {
        for (text, burst) in [("1", 1), ("10k", 10_000), ("2.5k", 2500), ("4294967295", u32::MAX)] {
            assert_eq!(text.parse(), Ok(Burst(burst)));
        }
        for text in ["0", "4294967296", "5G", "99999999999999999999999999"] {
            assert_eq!(text.parse::<Burst>(), Err(Error::BurstRange(text.to_owned())));
        }
        for text in ["", "-1", "1.5", "many", "1e3", "0.5k5"] {
            assert_eq!(text.parse::<Burst>(), Err(Error::NotABurst(text.to_owned())));
        }
    }
}
