//! What must be so before anything is loaded.

use std::path::Path;

use rustix::system::uname;

use crate::{
    error::{Error, Kind, Result},
    plane::require_bpf_file_system,
};

/// The oldest kernel: `bpf_map_lookup_percpu_elem` is of 5.19, and 6.1 is the
/// first long-term kernel with it.
const LEAST_KERNEL: (u32, u32) = (6, 1);

/// Numbers of include/uapi/linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Checks this process and this kernel; what an interface lacks shows when it
/// is attached to.
///
/// # Errors
/// The first thing that is missing, with its mend.
pub fn check(pin_dir: &Path) -> Result<()> {
    kernel(&uname().release().to_string_lossy())?;
    capabilities(&std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default())?;
    require_bpf_file_system(pin_dir)
}

fn kernel(release: &str) -> Result<()> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        // A name that says nothing: the load will tell.
        _ => return Ok(()),
    };
    if version < LEAST_KERNEL {
        return Err(Error::failed(format!("this kernel is too old: {release}"))
            .hint("limiterd needs Linux 6.1 or later"));
    }
    Ok(())
}

/// Takes the text of `/proc/thread-self/status`.
fn capabilities(status: &str) -> Result<()> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let Some(held) = held else {
        return Ok(());
    };
    let has = |capability: u32| held >> capability & 1 != 0;
    let mut lacks = Vec::new();
    // Without CAP_PERFMON the verifier takes no offset into a packet that is not
    // a constant (can_skip_alu_sanitation of kernel/bpf/verifier.c).
    for (capability, name, instead) in [
        (CAP_BPF, "CAP_BPF", CAP_SYS_ADMIN),
        (CAP_PERFMON, "CAP_PERFMON", CAP_SYS_ADMIN),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN", CAP_NET_ADMIN),
    ] {
        if !has(capability) && !has(instead) {
            lacks.push(name);
        }
    }
    if lacks.is_empty() {
        return Ok(());
    }
    let lacks = lacks.join(", ");
    let problem = format!("this user may not load XDP programs: the process lacks {lacks}");
    Err(Error::new(Kind::Permission, problem)
        .hint("run as root (sudo limiterd ...), or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_by_their_release() {
        for release in ["6.1.0-18-amd64", "6.18.44", "7.0-rc1", "10.0", "odd"] {
            assert_eq!(kernel(release), Ok(()), "{release}");
        }
        for release in ["5.19.0", "6.0.12", "4.18.0-553.el8", "3.10"] {
            let error = kernel(release).unwrap_err().to_string();
            assert!(error.contains(release) && error.contains("6.1"), "{error}");
        }
    }

    #[test]
    fn capabilities_decide_not_the_user_id() {
        let status = |held: u64| format!("Name:\tx\nCapEff:\t{held:016x}\n");
        let bit = |capability: u32| 1u64 << capability;
        assert_eq!(capabilities(&status(u64::MAX)), Ok(()));
        let three = bit(CAP_NET_ADMIN) | bit(CAP_PERFMON) | bit(CAP_BPF);
        assert_eq!(capabilities(&status(three)), Ok(()));
        assert_eq!(capabilities(&status(bit(CAP_NET_ADMIN) | bit(CAP_SYS_ADMIN))), Ok(()));
        for held in [0, bit(CAP_NET_ADMIN), three & !bit(CAP_BPF), three & !bit(CAP_PERFMON)] {
            assert_eq!(capabilities(&status(held)).unwrap_err().kind, Kind::Permission);
        }
    }
}
