//! Values of which there are few, each with a name.

use std::{fmt, net::SocketAddr, str::FromStr};

use axum::http::Uri;
use limiter_common::parse::Kind as Packets;

use super::{
    nearest::mend,
    scalar::{Scalar, Written},
};
use crate::{
    error::{Error, Kind, Result},
    mode::Mode,
};

/// How an XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver where it can, else in the kernel's generic path.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel's generic path: every driver, at a higher cost.
    Generic,
}

/// What happens to the protection when the daemon stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStop {
    /// It stays in force.
    #[default]
    Keep,
    /// It is taken off.
    Detach,
}

/// Where metrics are served over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// Nowhere.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl Default for Metrics {
    fn default() -> Self {
        Self::At(SocketAddr::from(([127, 0, 0, 1], 9898)))
    }
}

impl FromStr for Metrics {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::read(text)
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// A word of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument(pub String);

/// Where something is sent to over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook(pub String);

/// How a limit is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Tokens refill at the rate, up to the burst.
    #[default]
    TokenBucket,
}

/// Names that are reserved for later.
const LATER: [&str; 3] = ["fixed-window", "sliding-window", "leaky-bucket"];

pub(super) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, message).hint(hint)
}

/// The value whose name it is, of all that have one.
fn choice<T: Copy>(text: &str, key: &str, all: &[(T, &'static str)]) -> Result<T> {
    all.iter().find(|(_, name)| *name == text).map(|(value, _)| *value).ok_or_else(|| {
        let names = all.iter().map(|(_, name)| *name);
        invalid(format!("`{key}` cannot be '{text}'"), mend(text, names, '"', "it can be"))
    })
}

macro_rules! choices {
    ($($type:ty, $format:literal, $what:literal, $all:expr;)*) => {$(
        impl Scalar for $type {
            const FORMAT: &'static str = $format;
            const WHAT: &'static str = $what;

            fn choices() -> Vec<&'static str> {
                $all.iter().map(|(_, name)| *name).collect()
            }

            fn read(text: &str) -> Result<Self> {
                choice(text, $format, &$all)
            }

            fn written(&self) -> Written {
                let name = $all.iter().find(|(value, _)| value == self).map(|(_, name)| *name);
                Written::Text(name.unwrap_or_default().into())
            }
        }
    )*};
}

choices! {
    XdpMode, "xdp_mode", "an xdp_mode is \"auto\", \"native\" or \"generic\"",
        [(Self::Auto, "auto"), (Self::Native, "native"), (Self::Generic, "generic")];
    OnStop, "on_stop", "on_stop is \"keep\" or \"detach\"",
        [(Self::Keep, "keep"), (Self::Detach, "detach")];
    Mode, "mode", "a mode is \"enforce\", \"observe\" or \"off\"",
        Self::ALL.map(|mode| (mode, mode.name()));
    Packets, "kind", "a kind is the name of a kind of packet, such as \"tcp-syn\"",
        Self::ALL.map(|kind| (kind, kind.name()));
}

impl Scalar for Algorithm {
    const FORMAT: &'static str = "algorithm";
    const WHAT: &'static str = "an algorithm is \"token-bucket\"";

    fn choices() -> Vec<&'static str> {
        vec!["token-bucket"]
    }

    fn read(text: &str) -> Result<Self> {
        if LATER.contains(&text) {
            let message = format!("the algorithm '{text}' is not available yet");
            return Err(invalid(message, "write \"token-bucket\""));
        }
        choice(text, "algorithm", &[(Self::TokenBucket, "token-bucket")])
    }

    fn written(&self) -> Written {
        Written::Text("token-bucket".into())
    }
}

impl Scalar for Metrics {
    const FORMAT: &'static str = "metrics";
    const WHAT: &'static str = "metrics is an address and a port, such as \"127.0.0.1:9898\", \
                                or \"off\"";

    fn read(text: &str) -> Result<Self> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let mend = "write an address and a port, such as 127.0.0.1:9898 or [::1]:9898, or off";
        let address = text.parse().map(Self::At);
        address.map_err(|_| invalid(format!("'{text}' is no address with a port"), mend))
    }

    fn written(&self) -> Written {
        Written::Text(self.to_string())
    }
}

impl Scalar for Argument {
    const FORMAT: &'static str = "argument";
    const WHAT: &'static str = "a command is a list of words in quotes, the program first";

    fn read(text: &str) -> Result<Self> {
        if text.contains('\0') {
            return Err(invalid("a word of a command has a zero byte", "leave it out"));
        }
        Ok(Self(text.into()))
    }

    fn written(&self) -> Written {
        Written::Text(self.0.clone())
    }
}

impl Scalar for Webhook {
    const FORMAT: &'static str = "webhook";
    const WHAT: &'static str =
        "a webhook is a URL in quotes, such as \"https://host.example/hook\"";

    fn read(text: &str) -> Result<Self> {
        let is_http = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https"));
        match text.parse::<Uri>() {
            Ok(url) if is_http(&url) && url.host().is_some_and(|host| !host.is_empty()) => {
                Ok(Self(text.into()))
            }
            _ => Err(invalid(
                format!("'{}' is no URL that can be called", text.escape_debug()),
                "write it whole, such as https://host.example/hook",
            )),
        }
    }

    fn written(&self) -> Written {
        Written::Text(self.0.clone())
    }
}
