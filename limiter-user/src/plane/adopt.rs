//! What an earlier daemon left pinned, and what of it can be used again.

use std::path::Path;

use aya::{
    maps::{Array, MapData, MapInfo, MapType, PerCpuArray},
    pin::PinError,
};
use limiter_common::{
    control::Control,
    policy::Ruleset,
    stats::{self, Row},
};

use super::{
    chain,
    load::{SHARED, stats_pin},
    pins::Pins,
    rules::map,
};
use crate::{
    error::{Error, Result},
    object,
    state::{Load, State},
};

/// Maps whose size the operator chooses; the bits of `TRACKED` stand for keys
/// in the others.
const SIZED: [&str; 2] = ["SOURCES4", "SOURCES6"];
const WITH_SIZED: [&str; 3] = ["SOURCES4", "SOURCES6", "TRACKED"];

/// The beginning of a start: the pin directory is taken, and what is in it is
/// known.
pub struct Start {
    pub(super) pins: Pins,
    load: Option<Load>,
    generation: Option<u64>,
    on_trial: bool,
}

impl Start {
    /// Takes the pin directory.
    ///
    /// # Errors
    /// No BPF file system, or another daemon on the directory.
    pub fn take(pin_dir: &Path) -> Result<Self> {
        let pins = Pins::stage(pin_dir)?;
        Ok(Self { pins, load: None, generation: None, on_trial: false })
    }

    /// Looks at what an earlier daemon left there, by what is remembered of
    /// its loads.
    ///
    /// # Errors
    /// A pin is not what its name says.
    pub fn look(mut self, state: &State) -> Result<Self> {
        let live = self.pins.live();
        if !live.exists() {
            return Ok(self);
        }
        require_maps(&live)?;
        let control = MapInfo::from_pin(live.join("CONTROL"));
        let control = control.map_err(|error| damaged(&live.join("CONTROL"), &chain(&error)))?;
        self.load = state.loads.iter().find(|load| load.control == control.id()).cloned();
        if self.load.is_none() {
            return Ok(self);
        }
        let control: Array<_, Control> = map(&live, "CONTROL")?;
        let control = control.get(&0, 0).map_err(|error| damaged(&live, &chain(&error)))?;
        let rules: Array<_, Ruleset> = map(&live, "RULES")?;
        self.on_trial = control.live().deadline_ns.is_some();
        let slot = control.live().slot ^ u32::from(self.on_trial);
        let rules = rules.get(&slot, 0).map_err(|error| damaged(&live, &chain(&error)))?;
        self.generation = Some(rules.generation());
        Ok(self)
    }

    /// Number of the rules with which the new daemon goes on: those in force,
    /// or those before if they are on trial.
    #[must_use]
    pub const fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// Whether the rules in force are on trial, or were not confirmed in time.
    #[must_use]
    pub const fn is_on_trial(&self) -> bool {
        self.on_trial
    }

    /// The load whose maps are used again.
    #[must_use]
    pub const fn load(&self) -> Option<&Load> {
        self.load.as_ref()
    }

    /// Whether an earlier daemon left something, whether or not it can be used.
    #[must_use]
    pub fn has_before(&self) -> bool {
        self.pins.loads().is_ok_and(|loads| !loads.is_empty())
    }

    /// What the lists in the kernel say of which nothing is remembered.
    ///
    /// # Errors
    /// The kernel refuses a map access.
    pub fn lists_left(&self, state: &mut State) -> Result<()> {
        if self.load.is_some() || !self.pins.live().exists() {
            return Ok(());
        }
        let [allowed, banned] = super::listed::left(&self.pins.live())?;
        for (prefix, statement) in allowed {
            state.allowed.entry(prefix).or_insert(statement);
        }
        for (prefix, statement) in banned {
            state.banned.entry(prefix).or_insert(statement);
        }
        Ok(())
    }

    /// Pins what can be used again in the staging directory.
    pub(super) fn stage_maps(&self, max_sources: u32) -> Result<()> {
        let Some(load) = &self.load else {
            return Ok(());
        };
        let (live, staging) = (self.pins.live(), self.pins.staging());
        let fits = |name: &&str| {
            let info = MapInfo::from_pin(live.join(name));
            info.is_ok_and(|info| info.max_entries() == max_sources)
        };
        let fits = SIZED.iter().all(fits);
        if !fits {
            tracing::warn!(
                "the number of sources that fit has changed: buckets of sources begin anew"
            );
        }
        for name in SHARED {
            if fits || !WITH_SIZED.contains(&name) {
                pin_again(&live.join(name), &staging.join(name))?;
            }
        }
        for number in 0..load.interfaces.len() {
            let name = stats_pin(number);
            if self.counts(number) && is_counters(&live.join(&name)) {
                pin_again(&live.join(&name), &staging.join(&name))?;
            }
        }
        Ok(())
    }

    /// Whether what a number's counters hold counts: what a spare one holds was
    /// carried when it became spare.
    fn counts(&self, number: usize) -> bool {
        let load = self.load.as_ref();
        load.is_none_or(|load| load.interfaces.get(number).is_some_and(Option::is_some))
    }

    /// Counters that an earlier daemon left and that are not used again.
    pub(super) fn former_counters(&self) -> Result<Vec<PerCpuArray<MapData, Row>>> {
        let live = self.pins.live();
        let mut former = Vec::new();
        for path in self.pins.counters()? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let directory = path.parent().unwrap_or(&path);
            let number = name.strip_prefix("stats-").and_then(|it| it.parse().ok());
            let is_spare = directory == live && !number.is_some_and(|it| self.counts(it));
            if is_spare || directory == live && self.pins.staging().join(&name).exists() {
                continue;
            }
            if !is_counters(&path) {
                tracing::warn!(
                    "{} has counters of a form that this limiterd does not know; what they \
                     counted is lost",
                    path.display()
                );
                continue;
            }
            former.push(map(directory, &name)?);
        }
        Ok(former)
    }
}

fn is_counters(path: &Path) -> bool {
    MapInfo::from_pin(path).is_ok_and(|info| {
        matches!(info.map_type(), Ok(MapType::PerCpuArray))
            && info.value_size() as usize == size_of::<Row>()
            && info.max_entries() == stats::ROWS
    })
}

/// Checks that each map is the one that the program was written for.
fn require_maps(directory: &Path) -> Result<()> {
    let Some(object) = object::LIMITER else {
        return Ok(());
    };
    let object = aya_obj::Object::parse(object)
        .map_err(|error| Error::failed(format!("the BPF object is damaged: {}", chain(&error))))?;
    for name in SHARED {
        let path = directory.join(name);
        let Some(expected) = object.maps.get(name) else {
            continue;
        };
        let info = MapInfo::from_pin(&path).map_err(|error| damaged(&path, &chain(&error)))?;
        let found = [info.map_type().map_or(u32::MAX, |it| it as u32), info.key_size()];
        let found = (found, info.value_size(), info.map_flags());
        let wanted = [expected.map_type(), expected.key_size()];
        let wanted = (wanted, expected.value_size(), expected.map_flags());
        let sized = SIZED.contains(&name);
        if found != wanted || !(sized || info.max_entries() == expected.max_entries()) {
            return Err(damaged(&path, "it is a map of another form"));
        }
    }
    Ok(())
}

fn pin_again(from: &Path, to: &Path) -> Result<()> {
    let map = MapData::from_pin(from).map_err(|error| damaged(from, &chain(&error)))?;
    map.pin(to).map_err(|error: PinError| {
        Error::failed(format!("cannot pin {}: {}", to.display(), chain(&error)))
    })
}

fn damaged(path: &Path, problem: &str) -> Error {
    Error::failed(format!(
        "{} is not the map that limiterd pinned there: {problem}",
        path.display()
    ))
    .hint("begin anew, which takes the protection off for a moment: limiterd --detach")
}
