//! Bandwidths and amounts of bytes as people write them.

use std::{fmt, str::FromStr};

use limiter_common::limit::{MAX_COST, Rate};

use crate::decimal::{Decimal, gcd, per_period, shown};

const SECOND_NS: u64 = 1_000_000_000;
/// A full Ethernet frame without its checksum; a smaller burst would let no
/// full packet through, ever.
const FULL_PACKET: u32 = 1514;

/// Units, each with its bits.
const UNITS: [(&str, u64); 13] = [
    ("B", 8),
    ("kB", 8_000),
    ("KB", 8_000),
    ("MB", 8_000_000),
    ("GB", 8_000_000_000),
    ("KiB", 8 << 10),
    ("MiB", 8 << 20),
    ("GiB", 8 << 30),
    ("bit", 1),
    ("kbit", 1_000),
    ("Kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
];

/// A bandwidth or amount that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a number with a unit.
    #[error("'{0}' is no bandwidth")]
    NotABandwidth(String),
    /// A number outside the range.
    #[error("the bandwidth '{0}' is out of range")]
    BandwidthRange(String),
    /// Not a number with a unit of bytes.
    #[error("'{0}' is no amount of bytes")]
    NotAnAmount(String),
    /// Below a full packet or beyond what is held.
    #[error("a burst of '{0}' is out of range")]
    BurstRange(String),
}

impl Error {
    /// The mend.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NotABandwidth(_) => {
                "write a number and B, kB, MB, GB, KiB, MiB, GiB, kbit, Mbit or Gbit per time, \
                 such as 10MB/s or 80Mbit/s"
            }
            Self::BandwidthRange(_) => "it must lie between 1B/s and 100GB/s",
            Self::NotAnAmount(_) => "write a number and its unit, such as 64KiB or 10MB",
            Self::BurstRange(_) => "it must lie between one full packet (1514B) and 4GiB",
        }
    }
}

/// Bytes per time, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth(pub Rate);

/// A whole number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub u64);

/// Bytes that a source may send at once: a full packet to 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteBurst(pub u32);

/// A number with a unit, as bits.
fn bits(text: &str) -> Option<Decimal> {
    let end = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(end);
    let (_, bits) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    Some(Decimal::plain(number.trim())?.times(bits))
}

impl FromStr for Bandwidth {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let nonsense = || Error::NotABandwidth(text.to_owned());
        let (number, period) = per_period(text.trim()).ok_or_else(nonsense)?;
        let number = bits(number).ok_or_else(nonsense)?;
        let out_of_range = || Error::BandwidthRange(text.to_owned());
        let scale = number.scale.checked_mul(8).ok_or_else(out_of_range)?;
        let period = period.checked_mul(scale).ok_or_else(out_of_range)?;
        let divisor = gcd(number.digits, period).max(1);
        Rate::bytes(number.digits / divisor, period / divisor).map(Self).map_err(|_| out_of_range())
    }
}

impl Bandwidth {
    /// Bytes per second, rounded to what a float holds.
    #[must_use]
    pub fn per_second(self) -> f64 {
        self.0.tokens() as f64 * SECOND_NS as f64 / self.0.period_ns() as f64
    }

    /// The burst that holds one second, at least the largest packet that a
    /// receiver merges.
    #[must_use]
    pub fn one_second(self) -> ByteBurst {
        let bytes =
            u128::from(self.0.tokens()) * u128::from(SECOND_NS) / u128::from(self.0.period_ns());
        ByteBurst(u32::try_from(bytes).unwrap_or(u32::MAX).max(MAX_COST))
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, self.per_second())?;
        f.write_str("/s")
    }
}

fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: f64) -> fmt::Result {
    let (number, unit) = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
        .into_iter()
        .find(|(least, _)| bytes >= *least)
        .map_or((bytes, "B"), |(least, unit)| (bytes / least, unit));
    write!(f, "{}{unit}", shown(number))
}

impl FromStr for Amount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bits = bits(text.trim()).and_then(Decimal::whole);
        match bits.filter(|bits| bits.is_multiple_of(8)) {
            Some(bits) => Ok(Self(bits / 8)),
            None => Err(Error::NotAnAmount(text.to_owned())),
        }
    }
}

impl FromStr for ByteBurst {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Amount(bytes) = text.parse()?;
        match u32::try_from(bytes) {
            Ok(bytes) if bytes >= FULL_PACKET => Ok(Self(bytes)),
            _ => Err(Error::BurstRange(text.to_owned())),
        }
    }
}

impl fmt::Display for ByteBurst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(f, f64::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_people_write() {
        for (text, per_second, shown) in [
            ("10MB/s", 1e7, "10MB/s"),
            ("10MB", 1e7, "10MB/s"),
            ("80Mbit/s", 1e7, "10MB/s"),
            ("1.5 kB/s", 1500.0, "1.5kB/s"),
            ("1MiB/s", 1_048_576.0, "1.049MB/s"),
            ("60B/m", 1.0, "1B/s"),
            ("100GB/s", 1e11, "100GB/s"),
            ("800Gbit/s", 1e11, "100GB/s"),
            ("8bit/s", 1.0, "1B/s"),
        ] {
            let rate: Bandwidth = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!((rate.per_second() / per_second - 1.0).abs() < 1e-12, "{text}");
            assert_eq!(rate.to_string(), shown, "{text}");
        }
        for text in ["", "10", "fast", "-1MB/s", "1MB/week", "1mb/s", "1e3B", "MB/s", "1.MB"] {
            let error = text.parse::<Bandwidth>().unwrap_err();
            assert_eq!(error, Error::NotABandwidth(text.to_owned()), "{text:?}");
        }
        for text in ["0B/s", "7bit/s", "101GB/s", "59B/m", "99999999999999999999GB"] {
            let error = text.parse::<Bandwidth>().unwrap_err();
            assert_eq!(error, Error::BandwidthRange(text.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn amounts_people_write() {
        for (text, bytes) in [("64KiB", 65_536), ("1.5kB", 1500), ("1514B", 1514), ("8bit", 1)] {
            assert_eq!(text.parse(), Ok(Amount(bytes)), "{text}");
        }
        for text in ["", "64", "1.5B", "9bit", "many", "-1MB"] {
            assert_eq!(text.parse::<Amount>(), Err(Error::NotAnAmount(text.to_owned())), "{text}");
        }
        assert_eq!("1514B".parse(), Ok(ByteBurst(1514)));
        assert_eq!("2MB".parse::<ByteBurst>().unwrap().to_string(), "2MB");
        for text in ["0B", "1513B", "4GiB", "99GB"] {
            let error = text.parse::<ByteBurst>().unwrap_err();
            assert_eq!(error, Error::BurstRange(text.to_owned()), "{text}");
        }
    }
}
