//! Address prefixes as people write them.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error as Told, Kind};

/// A prefix that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Neither an address nor an address with a length.
    #[error("'{0}' is no address and no prefix")]
    NotAPrefix(String),
    /// A length beyond the address.
    #[error("the prefix length in '{text}' is out of range")]
    Length {
        /// What was written.
        text: String,
        /// The longest there is.
        longest: u8,
    },
    /// Bits beyond the length are set.
    #[error("'{text}' has host bits set")]
    HostBits {
        /// What was written.
        text: String,
        /// The prefix that it lies in.
        meant: Prefix,
    },
}

impl Error {
    /// The mend.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NotAPrefix(_) => {
                "write an address or a prefix, such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/48"
                    .into()
            }
            Self::Length { longest, .. } => format!("it must lie between 0 and {longest}"),
            Self::HostBits { meant, .. } => format!("write {meant}"),
        }
    }
}

impl From<Error> for Told {
    fn from(error: Error) -> Self {
        let hint = error.hint();
        Self::new(Kind::Invalid, error.to_string()).hint(hint)
    }
}

/// An IPv4 or IPv6 prefix without host bits. IPv4-mapped IPv6 prefixes are the
/// IPv4 prefixes that they map. Ordered by address, a prefix before those
/// inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Bits of `::ffff:0:0/96`.
const MAPPED_BITS: u8 = 96;

impl Prefix {
    /// The prefix of that length in which an address lies; a length beyond the
    /// address means all of it.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Self {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = length.min(longest);
        let (address, length) = match address {
            IpAddr::V6(v6) if length >= MAPPED_BITS => match v6.to_ipv4_mapped() {
                Some(v4) => (IpAddr::V4(v4), length - MAPPED_BITS),
                None => (address, length),
            },
            _ => (address, length),
        };
        let net = IpNet::new(address, length).unwrap_or_else(|_| IpNet::from(address));
        Self { address: net.network(), length: net.prefix_len() }
    }

    /// Its first address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Its length in bits, of the family of its address.
    #[must_use]
    pub const fn length(&self) -> u8 {
        self.length
    }

    /// Whether all of `other` lies inside; a prefix lies inside itself.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        self.net().contains(&other.net())
    }

    /// Whether the address lies inside, an IPv4-mapped one as IPv4.
    #[must_use]
    pub fn contains_address(&self, address: IpAddr) -> bool {
        self.contains(&Self::new(address, u8::MAX))
    }

    /// Whether they have an address in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Whether it is a single address.
    #[must_use]
    pub const fn is_single(&self) -> bool {
        self.length == if self.address.is_ipv4() { 32 } else { 128 }
    }

    fn net(&self) -> IpNet {
        IpNet::new(self.address, self.length).unwrap_or_else(|_| IpNet::from(self.address))
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self::new(address, u8::MAX)
    }
}

impl FromStr for Prefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let nonsense = || Error::NotAPrefix(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| nonsense())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => longest,
            Some(digits) if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) => {
                return Err(nonsense());
            }
            Some(digits) => digits
                .parse()
                .ok()
                .filter(|length| *length <= longest)
                .ok_or_else(|| Error::Length { text: text.to_owned(), longest })?,
        };
        let net = IpNet::new(address, length).map_err(|_| nonsense())?;
        let prefix = Self::new(address, length);
        if net.network() == address {
            Ok(prefix)
        } else {
            Err(Error::HostBits { text: text.to_owned(), meant: prefix })
        }
    }
}

/// A single address without its length.
impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            self.address.fmt(f)
        } else {
            write!(f, "{}/{}", self.address, self.length)
        }
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|error: Error| serde::de::Error::custom(format!("{error}; {}", error.hint())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn prefixes_people_write() {
        for (text, shown) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7/32", "192.0.2.7"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:DB8::/48", "2001:db8::/48"),
            ("2001:db8::1", "2001:db8::1"),
            ("::/0", "::/0"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
        ] {
            assert_eq!(prefix(text).to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_no_prefix_is_refused_with_the_right_one() {
        for (text, words) in [
            ("", "no address"),
            ("example.org", "no address"),
            ("192.0.2.7/", "no address"),
            ("192.0.2.7/+8", "no address"),
            ("192.0.2.7/24/8", "no address"),
            ("192.0.2.256", "no address"),
            ("192.0.2.0/33", "between 0 and 32"),
            ("2001:db8::/129", "between 0 and 128"),
            ("192.0.2.7/24", "write 192.0.2.0/24"),
            ("2001:db8::1/48", "write 2001:db8::/48"),
            ("::ffff:192.0.2.7/120", "write 192.0.2.0/24"),
        ] {
            let error = text.parse::<Prefix>().unwrap_err();
            let told = format!("{error}; {}", error.hint());
            assert!(told.contains(words), "{text}: {told}");
        }
    }

    #[test]
    fn families_do_not_contain_each_other() {
        assert!(prefix("0.0.0.0/0").contains(&prefix("192.0.2.7")));
        assert!(!prefix("::/0").contains(&prefix("192.0.2.7")));
        assert!(prefix("0.0.0.0/0").contains_address("::ffff:192.0.2.7".parse().unwrap()));
        assert!(prefix("192.0.2.0/24").overlaps(&prefix("192.0.0.0/16")));
        assert!(!prefix("192.0.2.0/24").overlaps(&prefix("192.0.3.0/24")));
        assert!(prefix("192.0.2.0/24") < prefix("192.0.2.0/25"));
    }
}
