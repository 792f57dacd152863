//! Errors that an operator sees: his problem, and the mend.

use std::fmt;

/// What sort of failure it is: exit code of the tools and `code` in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None of the others.
    Failed,
    /// An interface, policy or file of that name is not there.
    NotFound,
    /// The daemon does not answer.
    Unreachable,
    /// Not allowed.
    Permission,
    /// A value that cannot be used.
    Invalid,
    /// A command line that cannot be understood.
    Usage,
    /// Not while a change waits to be confirmed.
    Pending,
    /// It would lock somebody out.
    Guarded,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::Unreachable,
        Self::Permission,
        Self::Invalid,
        Self::Pending,
        Self::Guarded,
    ];

    /// Exit code of a tool that fails so.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Unreachable => 4,
            Self::Permission => 5,
            Self::Invalid => 6,
            Self::Pending => 7,
            Self::Guarded => 8,
        }
    }

    /// `code` in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::NotFound => "not_found",
            Self::Unreachable => "unreachable",
            Self::Permission => "permission",
            Self::Invalid => "invalid",
            Self::Usage => "usage",
            Self::Pending => "confirm_pending",
            Self::Guarded => "guarded",
        }
    }

    /// The kind of that name; any other is a plain failure.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Failed)
    }
}

/// A failure in one sentence, with its mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What sort of failure.
    pub kind: Kind,
    /// The problem.
    pub message: String,
    /// The mend, where there is one to name.
    pub hint: Option<String>,
}

/// A result with such an error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a mend.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// A failure without a mend.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// Names the mend.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{}; {hint}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {}

impl From<crate::rate::Error> for Error {
    fn from(error: crate::rate::Error) -> Self {
        Self::new(Kind::Invalid, error.to_string()).hint(error.hint())
    }
}

impl From<crate::bytes::Error> for Error {
    fn from(error: crate::bytes::Error) -> Self {
        Self::new(Kind::Invalid, error.to_string()).hint(error.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_exit_codes_are_one_to_one() {
        let mut codes: Vec<_> = Kind::ALL.into_iter().map(Kind::exit_code).collect();
        codes.dedup();
        assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8]);
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), kind);
        }
        assert_eq!(Kind::from_name("of a later version"), Kind::Failed);
    }
}
