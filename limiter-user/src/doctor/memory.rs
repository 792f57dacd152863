//! Memory for the maps.

use super::{Finding, found};
use crate::{api::Level, sizing::Sizing};

/// Bytes that the kernel can give without pushing anybody out, from the text
/// of `/proc/meminfo`.
pub(super) fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the maps need beside the bytes that are available.
pub(super) fn need(sizing: Sizing, available: Option<u64>) -> Option<Finding> {
    let available = available?;
    let Sizing { maps_bytes, max_sources, cpus, .. } = sizing;
    let fact = format!(
        "the maps take {} MiB for {max_sources} IPv4 and {max_sources} IPv6 sources on {cpus} \
         CPUs, of {} MiB available",
        maps_bytes.div_ceil(1 << 20),
        available >> 20
    );
    let mend = "use fewer sources: --max-sources or --memory";
    Some(if maps_bytes > available {
        found(Level::Error, "memory", fact).so("a start fails, or pushes others out").mend(mend)
    } else if maps_bytes > available / 2 {
        found(Level::Warning, "memory", fact).so("little is left for all others").mend(mend)
    } else {
        found(Level::Ok, "memory", fact)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::Wish;

    const MEMINFO: &str = "MemTotal:        8135172 kB\nMemFree:         5155204 kB\n\
                           MemAvailable:    7170848 kB\nBuffers:          108344 kB\n";

    #[test]
    fn available_memory_is_read_or_unknown() {
        assert_eq!(available(MEMINFO), Some(7_170_848 << 10));
        for text in ["", "MemAvailable: lots kB\n", "MemAvailable: 5\n", "MemFree: 1 kB\n"] {
            assert_eq!(available(text), None, "{text}");
        }
        assert_eq!(available(&format!("MemAvailable: {} kB\n", u64::MAX)), None);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let sizing = Sizing::new(2, 1, Wish::Default).unwrap();
        for (available, level) in [
            (sizing.maps_bytes - 1, Level::Error),
            (sizing.maps_bytes, Level::Warning),
            (sizing.maps_bytes * 2, Level::Ok),
        ] {
            let finding = need(sizing, Some(available)).unwrap();
            assert_eq!(finding.level, level);
            assert!(finding.finding.contains("68") || finding.finding.contains("69"), "{finding}");
            assert_eq!(finding.mend.is_some(), level != Level::Ok);
        }
        assert_eq!(need(sizing, None), None);
    }
}
