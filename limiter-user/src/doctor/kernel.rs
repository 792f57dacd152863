//! The kernel's release and its compiler for BPF.

use super::{Finding, found};
use crate::api::Level;

/// The oldest kernel: `bpf_map_lookup_percpu_elem` is of 5.19, and 6.1 is the
/// first long-term kernel with it.
const LEAST: (u32, u32) = (6, 1);

/// The switch of the compiler; only the first network namespace shows it.
pub(super) const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";

/// Takes a release such as `6.1.0-18-amd64`; one that says nothing gives
/// nothing.
pub(super) fn release(release: &str) -> Option<Finding> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return None;
    };
    Some(if (major, minor) < LEAST {
        found(Level::Error, "kernel", format!("this kernel is too old: Linux {release}"))
            .so("it lacks functions that the program calls")
            .mend("boot Linux 6.1 or later")
    } else {
        found(Level::Ok, "kernel", format!("Linux {release}"))
    })
}

/// Takes the text of [`JIT`].
pub(super) fn jit(text: &str) -> Option<Finding> {
    match text.trim() {
        "0" => Some(
            found(Level::Warning, "jit", "the kernel interprets BPF programs")
                .so("every packet costs several times as much")
                .mend("sysctl -w net.core.bpf_jit_enable=1"),
        ),
        "1" => Some(found(Level::Ok, "jit", "the kernel compiles BPF programs")),
        "2" => Some(
            found(Level::Note, "jit", "the kernel compiles BPF programs and prints the code")
                .so("its log holds machine code, which is for debugging only")
                .mend("sysctl -w net.core.bpf_jit_enable=1"),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_by_their_release() {
        for text in ["6.1.0-18-amd64", "6.18.44", "7.0-rc1", "10.0"] {
            assert_eq!(release(text).unwrap().level, Level::Ok, "{text}");
        }
        for text in ["5.19.0", "6.0.12", "4.18.0-553.el8", "3.10"] {
            let finding = release(text).unwrap();
            assert_eq!(finding.level, Level::Error, "{text}");
            let told = finding.to_string();
            assert!(told.contains(text) && told.contains("6.1"), "{told}");
        }
        for text in ["odd", "", "6", "99999999999.1"] {
            assert_eq!(release(text), None, "{text}");
        }
    }

    #[test]
    fn the_compiler_is_on_or_off_or_unknown() {
        let level = |text| jit(text).map(|finding| finding.level);
        assert_eq!(level("0\n"), Some(Level::Warning));
        assert_eq!(level("1\n"), Some(Level::Ok));
        assert_eq!(level("2\n"), Some(Level::Note));
        assert_eq!(level(""), None);
        assert_eq!(level("on"), None);
    }
}
