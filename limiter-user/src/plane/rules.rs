//! Two generations of rules and the word that says which is live.

use std::{path::Path, time::Duration};

use aya::maps::{Array, Map, MapData, MapError};
use limiter_common::policy::{Control, Ruleset};

use super::chain;
use crate::error::{Error, Result};

/// More than any packet takes; used only where the kernel offers no barrier.
const PACKETS_IN_FLIGHT: Duration = Duration::from_millis(100);

/// The rule-set map and the control word.
pub(super) struct Rules {
    rules: Array<MapData, Ruleset>,
    control: Array<MapData, Control>,
    live: Control,
}

impl Rules {
    /// Opens the two maps that are pinned in `directory`.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let rules = Array::try_from(open(directory, "RULES")?).map_err(|error| failed(&error))?;
        let control: Array<_, Control> =
            Array::try_from(open(directory, "CONTROL")?).map_err(|error| failed(&error))?;
        let live = control.get(&0, 0).map_err(|error| failed(&error))?;
        Ok(Self { rules, control, live })
    }

    pub(super) const fn generation(&self) -> u64 {
        self.live.generation
    }

    /// Writes the generation that no packet reads, reads it back, and makes it
    /// live.
    pub(super) fn set(&mut self, rules: &Ruleset) -> Result<()> {
        let next = Control { generation: self.live.generation + 1 };
        let rules = rules.stamped(next.generation);
        // A packet that started before the last change may still read the slot
        // that is written now.
        wait_for_packets_in_flight();
        self.rules.set(next.slot(), rules, 0).map_err(|error| failed(&error))?;
        let written = self.rules.get(&next.slot(), 0).map_err(|error| failed(&error))?;
        if written != rules {
            return Err(Error::failed("the kernel did not keep the rules as they were written"));
        }
        // Eight bytes: the kernel copies them as one word.
        self.control.set(0, next, 0).map_err(|error| failed(&error))?;
        self.live = next;
        Ok(())
    }
}

fn open(directory: &Path, name: &str) -> Result<Map> {
    let data = MapData::from_pin(directory.join(name)).map_err(|error| failed(&error))?;
    Map::from_map_data(data).map_err(|error| failed(&error))
}

fn failed(error: &MapError) -> Error {
    Error::failed(format!("cannot access the rules in the kernel: {}", chain(error)))
}

/// Waits until every packet that is being processed now has been processed:
/// XDP programs run under RCU, and this system call is `synchronize_rcu`
/// (kernel/sched/membarrier.c).
fn wait_for_packets_in_flight() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes three integers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Refused on kernels with nohz_full.
        std::thread::sleep(PACKETS_IN_FLIGHT);
    }
}
