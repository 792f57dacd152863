//! Loading the object for one interface.

use std::path::Path;

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{MapData, PerCpuArray},
    programs::{ProgramError, Xdp},
};

use limiter_common::{sample::Pace, source::Seed};

use super::{Instance, PROGRAM, chain, errno};
use crate::{
    error::{Error, Kind, Result},
    sizing::Sizing,
};

/// Maps that all loads share.
pub(super) const SHARED: [&str; 14] = [
    "SOURCES4",
    "SOURCES6",
    "TOTALS",
    "TRACKED",
    "CELLS",
    "RULES",
    "CONTROL",
    "CLASSES",
    "CLASS_PREFIX",
    "LISTS_EXACT",
    "LISTS_PREFIX",
    "LISTED",
    "EVENTS",
    "BUDGETS",
];

/// Pin of the counters of a number.
pub(super) fn stats_pin(number: usize) -> String {
    format!("stats-{number}")
}

/// Loads the object; its maps are pinned in `directory`, those that are there
/// already are shared.
///
/// All loads get the same `seed`, so that they agree about the homes of keys,
/// and a `number` of their own, by which policies tell interfaces apart.
pub(super) fn instance(
    interface: Option<String>,
    number: u32,
    directory: &Path,
    sizing: Sizing,
    seed: Seed,
    pace: Pace,
    object: Option<&[u8]>,
) -> Result<Instance> {
    let object = object.ok_or_else(|| {
        Error::failed("this build holds no BPF program")
            .hint("build it where a BPF compiler is set up: cargo xtask build")
    })?;
    let stats = stats_pin(number as usize);
    let mut loader = EbpfLoader::new();
    loader
        .override_global("CPUS", &sizing.cpus, true)
        .override_global("INTERFACE", &number, true)
        .override_global("SEED0", &seed[0], true)
        .override_global("SEED1", &seed[1], true)
        .override_global("PACE_EVERY", &pace.every, true)
        .override_global("PACE_WINDOW", &pace.window, true)
        .override_global("PACE_BUDGET", &pace.budget, true)
        .map_max_entries("SOURCES4", sizing.max_sources)
        .map_max_entries("SOURCES6", sizing.max_sources)
        .map_pin_path("STATS", directory.join(&stats));
    for map in SHARED {
        loader.map_pin_path(map, directory.join(map));
    }
    let mut ebpf = loader.load(object).map_err(|error| refused(&error, sizing))?;
    program(&mut ebpf)?.load().map_err(|error| rejected(&error))?;
    let counters = ebpf.take_map("STATS").ok_or_else(damaged)?;
    let counters = PerCpuArray::<MapData, _>::try_from(counters).map_err(|_| damaged())?;
    Ok(Instance { interface, ebpf, counters, attachment: None })
}

/// The program in a loaded object.
pub(super) fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp> {
    let program = ebpf.program_mut(PROGRAM).ok_or_else(damaged)?;
    program.try_into().map_err(|_: ProgramError| damaged())
}

fn damaged() -> Error {
    Error::failed("the BPF object of this build is not the one that it was written for")
        .hint("build it again: cargo xtask build")
}

fn refused(error: &EbpfError, sizing: Sizing) -> Error {
    match errno(error) {
        Some(libc::ENOMEM) => Error::failed(format!(
            "the kernel has no memory for the maps ({} MiB)",
            sizing.maps_bytes >> 20
        ))
        .hint(format!("allow fewer than {} sources with --max-sources", sizing.max_sources)),
        Some(libc::EPERM) => {
            Error::new(Kind::Permission, "the kernel does not let this user create BPF maps")
                .hint("run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")
        }
        _ => Error::failed(format!("the kernel does not take the maps: {}", chain(error))),
    }
}

fn rejected(error: &ProgramError) -> Error {
    Error::failed(format!("the kernel does not take the program: {}", chain(error)))
        .hint("Linux 6.1 or later is needed; please report this if yours is")
}
