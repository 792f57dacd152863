//! What a policy does with packets over its limit.

use std::fmt;

use limiter_common::policy;

use crate::error::{Error, Kind, Result};

/// What happens to packets over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are dropped.
    Enforce,
    /// They pass, and are counted as `would_drop`.
    Observe,
    /// There is no limit.
    Off,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Observe, Self::Off];

    /// Name in JSON and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }

    /// The mode of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("there is no mode '{name}'"))
                .hint("the modes are enforce, observe and off")
        })
    }

    pub(crate) const fn compile(self) -> policy::Mode {
        match self {
            Self::Enforce => policy::Mode::Enforce,
            Self::Observe => policy::Mode::Observe,
            Self::Off => policy::Mode::Off,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
