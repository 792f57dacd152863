//! Changes to the limits of a policy at run time.

use std::str::FromStr;

use crate::{
    bytes::{Bandwidth, ByteBurst},
    config::{PerPrefix, Policy, Total},
    error::{Error, Kind, Result},
    mode::Mode,
    rate::{Burst, PacketRate},
};

/// A value, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting<T> {
    /// No limit of this sort.
    Off,
    /// This one.
    On(T),
}

impl<T: FromStr<Err = E>, E: Into<Error>> FromStr for Setting<T> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            value => value.parse().map(Self::On).map_err(Into::into),
        }
    }
}

/// A change to what one level allows; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelChange {
    /// The new rate; one that is new has a burst of a second.
    pub rate: Option<Setting<PacketRate>>,
    /// The new burst.
    pub burst: Option<Burst>,
    /// The new bandwidth; one that is new has a burst of a second.
    pub bandwidth: Option<Setting<Bandwidth>>,
    /// The new burst in bytes.
    pub bandwidth_burst: Option<ByteBurst>,
}

/// A change to a policy; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// For each source.
    pub source: LevelChange,
    /// For each wider prefix.
    pub prefix: LevelChange,
    /// For everybody together.
    pub total: LevelChange,
    /// Whether no excess at all is possible.
    pub strict: Option<bool>,
    /// The new mode.
    pub mode: Option<Mode>,
}

/// What a level allows, wherever it stands.
struct Level<'a> {
    rate: &'a mut Option<PacketRate>,
    burst: &'a mut Option<Burst>,
    bandwidth: &'a mut Option<Bandwidth>,
    bandwidth_burst: &'a mut Option<ByteBurst>,
}

/// The level that a value with these fields describes.
macro_rules! level {
    ($value:expr) => {
        Level {
            rate: &mut $value.rate,
            burst: &mut $value.burst,
            bandwidth: &mut $value.bandwidth,
            bandwidth_burst: &mut $value.bandwidth_burst,
        }
    };
}

impl Change {
    /// Changes a policy.
    ///
    /// # Errors
    /// A burst of a rate that there is not, or no limit is left.
    pub fn apply(&self, policy: &mut Policy) -> Result<()> {
        self.source.apply(level!(policy), "for each source")?;
        if self.prefix != LevelChange::default() {
            let mut prefix: PerPrefix = policy.per_prefix.clone().unwrap_or_default();
            self.prefix.apply(level!(prefix), "for each prefix")?;
            let is_limit = prefix.rate.is_some() || prefix.bandwidth.is_some();
            policy.per_prefix = is_limit.then_some(prefix);
        }
        if self.total != LevelChange::default() {
            let mut total: Total = policy.total.clone().unwrap_or_default();
            self.total.apply(level!(total), "for everybody")?;
            let is_limit = total.rate.is_some() || total.bandwidth.is_some();
            policy.total = is_limit.then_some(total);
        }
        policy.strict = self.strict.unwrap_or(policy.strict);
        policy.mode = self.mode.unwrap_or(policy.mode);
        Ok(())
    }
}

impl LevelChange {
    fn apply(&self, level: Level<'_>, whose: &str) -> Result<()> {
        let Level { rate, burst, bandwidth, bandwidth_burst } = level;
        set(self.rate, self.burst, rate, burst).ok_or_else(|| no_rate("rate", whose))?;
        set(self.bandwidth, self.bandwidth_burst, bandwidth, bandwidth_burst)
            .ok_or_else(|| no_rate("bandwidth", whose))
    }
}

/// Changes a rate and its burst; `None` if there is no rate to have the burst.
fn set<R, B>(
    new_rate: Option<Setting<R>>,
    new_burst: Option<B>,
    rate: &mut Option<R>,
    burst: &mut Option<B>,
) -> Option<()> {
    match new_rate {
        None => {}
        Some(Setting::Off) => (*rate, *burst) = (None, None),
        Some(Setting::On(new)) => *rate = Some(new),
    }
    if let Some(new) = new_burst {
        rate.as_ref()?;
        *burst = Some(new);
    }
    Some(())
}

fn no_rate(what: &str, whose: &str) -> Error {
    Error::new(Kind::Invalid, format!("there is no {what} {whose} to have a burst"))
        .hint(format!("name the {what} too"))
}
