//! Values that commands take too, and the names of interfaces.

use super::{
    exact,
    scalar::{Scalar, Written},
    values::invalid,
};
use crate::{
    bytes::{Amount, Bandwidth, ByteBurst},
    error::Result,
    prefix::Prefix,
    rate::{Burst, PacketRate},
};

/// Bytes of a name of an interface (IFNAMSIZ less the terminator).
const LONGEST_INTERFACE: usize = 15;

/// The only texts in lists are the names of interfaces.
impl Scalar for String {
    const FORMAT: &'static str = "interface";
    const WHAT: &'static str = "an interface is a name in quotes, such as \"eth0\"";

    fn read(text: &str) -> Result<Self> {
        let problem = if text.is_empty() {
            "the name of an interface is empty".into()
        } else if text.len() > LONGEST_INTERFACE {
            format!("the name '{text}' is too long for an interface")
        } else if text == "."
            || text == ".."
            || text.contains(|letter: char| {
                letter == '/' || letter == ':' || letter.is_whitespace() || letter.is_control()
            })
        {
            format!("'{}' cannot be the name of an interface", text.escape_debug())
        } else {
            return Ok(text.into());
        };
        Err(invalid(
            problem,
            "Linux takes 1 to 15 bytes without '/', ':' and spaces; `ip link` lists the names",
        ))
    }

    fn written(&self) -> Written {
        Written::Text(self.clone())
    }
}

impl Scalar for Prefix {
    const FORMAT: &'static str = "prefix";
    const WHAT: &'static str =
        "a prefix is an address with or without a length in quotes, such as \"192.0.2.0/24\"";

    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn written(&self) -> Written {
        Written::Text(self.to_string())
    }
}

impl Scalar for PacketRate {
    const FORMAT: &'static str = "rate";
    const WHAT: &'static str =
        "a rate is packets per time, such as 500 (per second), \"2.5k/s\" or \"90/m\"";
    const NUMBER: bool = true;

    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn written(&self) -> Written {
        Written::Text(exact::rate(*self))
    }
}

impl Scalar for Burst {
    const FORMAT: &'static str = "burst";
    const WHAT: &'static str = "a burst is a whole number of packets, such as 200 or \"10k\"";
    const NUMBER: bool = true;

    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn written(&self) -> Written {
        Written::Number(self.0)
    }
}

impl Scalar for Bandwidth {
    const FORMAT: &'static str = "bandwidth";
    const WHAT: &'static str =
        "a bandwidth is a number with its unit in quotes, such as \"10MB/s\" or \"80Mbit/s\"";

    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn written(&self) -> Written {
        Written::Text(exact::bandwidth(*self))
    }
}

impl Scalar for ByteBurst {
    const FORMAT: &'static str = "byte-burst";
    const WHAT: &'static str =
        "a bandwidth_burst is a number with its unit in quotes, such as \"64KiB\" or \"2MB\"";

    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn written(&self) -> Written {
        Written::Text(exact::amount(self.0.into()))
    }
}

impl Scalar for Amount {
    const FORMAT: &'static str = "memory";
    const WHAT: &'static str =
        "an amount of memory is a number with its unit in quotes, such as \"64MiB\"";

    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn written(&self) -> Written {
        Written::Text(exact::amount(self.0))
    }
}
