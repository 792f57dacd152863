//! What this process may do.

use super::{Finding, found};
use crate::api::Level;

/// Numbers of include/uapi/linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;

/// Name of the first user namespace (`PROC_USER_INIT_INO` of
/// include/linux/proc_ns.h).
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// Takes the text of `/proc/self/status` and what `/proc/self/ns/user` points
/// at; facts that are not in them give nothing.
pub(super) fn capabilities(status: &str, user_namespace: Option<&str>) -> Option<Finding> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let held = u64::from_str_radix(line.trim(), 16).ok()?;
    let has = |capability: u32| held >> capability & 1 != 0;
    let subject = "capabilities";
    let fact = match (has(CAP_BPF) || has(CAP_SYS_ADMIN), has(CAP_NET_ADMIN)) {
        (true, true) => None,
        (false, true) => Some("this process has no CAP_BPF"),
        (true, false) => Some("this process has no CAP_NET_ADMIN"),
        (false, false) => Some("this process has neither CAP_BPF nor CAP_NET_ADMIN"),
    };
    if let Some(fact) = fact {
        return Some(
            found(Level::Error, subject, fact)
                .so("it may not load XDP programs")
                .mend("run as root (sudo), or with CAP_BPF and CAP_NET_ADMIN"),
        );
    }
    if user_namespace.is_some_and(|namespace| namespace != FIRST_USER_NAMESPACE) {
        return Some(
            found(Level::Error, subject, "they hold in a user namespace only")
                .so("the kernel lets nobody there load XDP programs")
                .mend("run on the host itself, or in a container that is not rootless"),
        );
    }
    Some(found(Level::Ok, subject, "this process has CAP_BPF and CAP_NET_ADMIN"))
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
        for held in
            [u64::MAX, bit(CAP_NET_ADMIN) | bit(CAP_BPF), bit(CAP_NET_ADMIN) | bit(CAP_SYS_ADMIN)]
        {
            assert_eq!(told(held).level, Level::Ok, "{held:x}");
        }
    }

    #[test]
    fn exactly_what_is_missing_is_named() {
        for (held, names, others) in [
            (0, &["neither CAP_BPF nor CAP_NET_ADMIN"][..], ""),
            (bit(CAP_NET_ADMIN), &["no CAP_BPF"], "CAP_NET_ADMIN"),
            (bit(CAP_BPF), &["no CAP_NET_ADMIN"], "CAP_BPF"),
            (bit(CAP_SYS_ADMIN), &["no CAP_NET_ADMIN"], "CAP_BPF"),
        ] {
            let finding = told(held);
            assert_eq!(finding.level, Level::Error);
            for name in names {
                assert!(finding.finding.contains(name), "{finding}");
            }
            assert!(others.is_empty() || !finding.finding.contains(others), "{finding}");
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
