//! Ranges of ports and of VLANs.

use std::fmt;

use super::{
    scalar::{Scalar, Written},
    values::invalid,
};
use crate::error::Result;

/// Destination ports from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port, not below the first.
    pub last: u16,
}

/// VLAN identifiers from the first to the last, both included; 0 stands for
/// frames without a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanRange {
    /// The first identifier.
    pub first: u16,
    /// The last identifier, not below the first and at most 4094.
    pub last: u16,
}

/// 4095 is reserved (IEEE 802.1Q).
const LAST_VLAN: u16 = 4094;

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display_range(f, self.first, self.last)
    }
}

impl fmt::Display for VlanRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display_range(f, self.first, self.last)
    }
}

fn display_range(f: &mut fmt::Formatter<'_>, first: u16, last: u16) -> fmt::Result {
    if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
}

fn written_range(first: u16, last: u16, text: &impl fmt::Display) -> Written {
    if first == last { Written::Number(first.into()) } else { Written::Text(text.to_string()) }
}

fn read_range(text: &str, what: &str, most: u16, example: &str) -> Result<(u16, u16)> {
    let number = |digits: &str| {
        let digits = digits.trim();
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return Err(invalid(format!("'{text}' is no {what}"), example));
        }
        let number = digits.parse().ok().filter(|number| *number <= most);
        number.ok_or_else(|| {
            let range = format!("it must lie between 0 and {most}");
            invalid(format!("the {what} '{digits}' is out of range"), range)
        })
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        let mend = format!("write \"{last}-{first}\"");
        return Err(invalid(format!("the range '{text}' runs backwards"), mend));
    }
    Ok((first, last))
}

impl Scalar for PortRange {
    const FORMAT: &'static str = "ports";
    const WHAT: &'static str = "ports are a number or a range, such as 53 or \"5000-5010\"";
    const NUMBER: bool = true;

    fn read(text: &str) -> Result<Self> {
        let (first, last) =
            read_range(text, "port", u16::MAX, "write a number or a range, such as \"5000-5010\"")?;
        Ok(Self { first, last })
    }

    fn written(&self) -> Written {
        written_range(self.first, self.last, self)
    }
}

impl Scalar for VlanRange {
    const FORMAT: &'static str = "vlans";
    const WHAT: &'static str = "VLANs are a number or a range, such as 100 or \"100-199\"";
    const NUMBER: bool = true;

    fn read(text: &str) -> Result<Self> {
        let example = "write a number or a range, such as \"100-199\"; 0 stands for no tag";
        let (first, last) = read_range(text, "VLAN", LAST_VLAN, example)?;
        Ok(Self { first, last })
    }

    fn written(&self) -> Written {
        written_range(self.first, self.last, self)
    }
}
