//! Samples of packets, as the programs leave them in a ring buffer.

use aya::maps::{Map, MapData, MapError, PerCpuArray, RingBuf};
use limiter_common::sample::{Budget, Sample};

use super::{Plane, chain};
use crate::error::{Error, Result};

/// The samples of all interfaces.
pub struct Samples {
    ring: RingBuf<MapData>,
    budgets: PerCpuArray<MapData, Budget>,
}

impl Plane {
    /// The samples. Only one can have them.
    ///
    /// # Errors
    /// Somebody has them already, or the kernel refuses a map access.
    pub fn samples(&mut self) -> Result<Samples> {
        let ring = self.taken("EVENTS")?;
        let budgets = self.taken("BUDGETS")?;
        Ok(Samples {
            ring: RingBuf::try_from(ring).map_err(|error| unreadable(&error))?,
            budgets: PerCpuArray::try_from(budgets).map_err(|error| unreadable(&error))?,
        })
    }

    fn taken(&mut self, name: &str) -> Result<Map> {
        let map = self.instances.first_mut().and_then(|first| first.ebpf.take_map(name));
        map.ok_or_else(|| Error::failed("samples of packets are read already"))
    }
}

impl Iterator for Samples {
    type Item = Sample;

    /// The next one, if there is one at present.
    fn next(&mut self) -> Option<Sample> {
        loop {
            let entry = self.ring.next()?;
            if let Some(sample) = Sample::from_bytes(&entry) {
                return Some(sample);
            }
        }
    }
}

impl Samples {
    /// Samples that there was no room for, since the load.
    ///
    /// # Errors
    /// The kernel refuses a map access.
    pub fn lost(&self) -> Result<u64> {
        let mut lost = 0;
        for budgets in self.budgets.iter() {
            let budgets = budgets.map_err(|error| unreadable(&error))?;
            lost += budgets.iter().map(|budget| budget.lost).sum::<u64>();
        }
        Ok(lost)
    }
}

fn unreadable(error: &MapError) -> Error {
    Error::failed(format!("samples of packets cannot be read: {}", chain(error)))
}
