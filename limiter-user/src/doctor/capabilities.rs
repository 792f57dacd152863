//! What this process may do.

use super::{Finding, found};
use crate::api::Level;

/// Numbers of include/uapi/linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Name of the first user namespace (`PROC_USER_INIT_INO` of
/// include/linux/proc_ns.h).
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// Takes the text of `/proc/thread-self/status` and what `/proc/thread-self/ns/user` points
/// at; facts that are not in them give nothing.
pub(super) fn capabilities(status: &str, user_namespace: Option<&str>) -> Option<Finding> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let held = u64::from_str_radix(line.trim(), 16).ok()?;
    let has = |capability: u32| held >> capability & 1 != 0;
    let subject = "capabilities";
    // Without CAP_PERFMON the verifier takes no offset into a packet that is not
    // a constant (can_skip_alu_sanitation of kernel/bpf/verifier.c).
    let lacks: Vec<_> = [
        (CAP_BPF, "CAP_BPF", CAP_SYS_ADMIN),
        (CAP_PERFMON, "CAP_PERFMON", CAP_SYS_ADMIN),
        (CAP_NET_ADMIN, "CAP_NET_ADMIN", CAP_NET_ADMIN),
    ]
    .into_iter()
    .filter(|(capability, _, instead)| !has(*capability) && !has(*instead))
    .map(|(_, name, _)| name)
    .collect();
    if !lacks.is_empty() {
        return Some(
            found(Level::Error, subject, format!("this process lacks {}", lacks.join(", ")))
                .so("it may not load XDP programs")
                .mend("run as root (sudo), or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"),
        );
    }
    if user_namespace.is_some_and(|namespace| namespace != FIRST_USER_NAMESPACE) {
        return Some(
            found(Level::Error, subject, "they hold in a user namespace only")
                .so("the kernel lets nobody there load XDP programs")
                .mend("run on the host itself, or in a container that is not rootless"),
        );
    }
    Some(found(Level::Ok, subject, "this process has CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(held: u64) -> Finding {
        let status = format!("Name:\tx\nCapEff:\t{held:016x}\nCapBnd:\t0\n");
        capabilities(&status, Some(FIRST_USER_NAMESPACE)).unwrap()
    }

    const fn bit(capability: u32) -> u64 {
        1 << capability
    }

    #[test]
    fn capabilities_decide_not_the_user_id() {
        let three = bit(CAP_NET_ADMIN) | bit(CAP_PERFMON) | bit(CAP_BPF);
        for held in [u64::MAX, three, bit(CAP_NET_ADMIN) | bit(CAP_SYS_ADMIN)] {
            assert_eq!(told(held).level, Level::Ok, "{held:x}");
        }
    }

    #[test]
    fn exactly_what_is_missing_is_named() {
        for (held, lacks) in [
            (0, "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"),
            (bit(CAP_NET_ADMIN), "CAP_BPF, CAP_PERFMON"),
            (bit(CAP_NET_ADMIN) | bit(CAP_PERFMON), "CAP_BPF"),
            (bit(CAP_NET_ADMIN) | bit(CAP_BPF), "CAP_PERFMON"),
            (bit(CAP_BPF) | bit(CAP_PERFMON), "CAP_NET_ADMIN"),
            (bit(CAP_SYS_ADMIN), "CAP_NET_ADMIN"),
        ] {
            let finding = told(held);
            assert_eq!(finding.level, Level::Error);
            assert_eq!(finding.finding, format!("this process lacks {lacks}"));
            assert!(finding.to_string().contains("root"), "{finding}");
        }
    }

    #[test]
    fn those_of_a_user_namespace_are_none() {
        let status = format!("CapEff:\t{:016x}\n", u64::MAX);
        let finding = capabilities(&status, Some("user:[4026532000]")).unwrap();
        assert_eq!(finding.level, Level::Error);
        assert_eq!(capabilities(&status, None).unwrap().level, Level::Ok);
    }

    #[test]
    fn without_the_facts_there_is_no_finding() {
        for status in ["", "Name:\tx\n", "CapEff:\tfull\n"] {
            assert_eq!(capabilities(status, None), None);
        }
    }
}
