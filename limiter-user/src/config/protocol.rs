//! Protocols by name or number.

use std::fmt;

use super::{
    nearest::mend,
    scalar::{Scalar, Written},
    values::invalid,
};
use crate::error::Result;

/// A protocol above IP, by its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

/// Protocols that are known by name (IANA, "Assigned Internet Protocol Numbers").
const PROTOCOLS: [(&str, u8); 17] = [
    ("tcp", 6),
    ("udp", 17),
    ("icmp", 1),
    ("icmpv6", 58),
    ("igmp", 2),
    ("ipip", 4),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
}

/// Its name, else its number.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

impl Scalar for Protocol {
    const FORMAT: &'static str = "protocol";
    const WHAT: &'static str = "a protocol is a name or a number, such as \"udp\" or 17";
    const NUMBER: bool = true;

    fn read(text: &str) -> Result<Self> {
        if let Some((_, number)) = PROTOCOLS.iter().find(|(name, _)| *name == text) {
            return Ok(Self(*number));
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let range = "it must lie between 0 and 255";
            let number = text.parse().map(Self);
            return number.map_err(|_| {
                invalid(format!("the protocol number {text} is out of range"), range)
            });
        }
        let names = PROTOCOLS.iter().map(|(name, _)| *name);
        let hint = mend(text, names, '"', "write its number, or one of");
        Err(invalid(format!("there is no protocol '{text}'"), hint))
    }

    fn written(&self) -> Written {
        match PROTOCOLS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => Written::Text((*name).into()),
            None => Written::Number(self.0.into()),
        }
    }
}
