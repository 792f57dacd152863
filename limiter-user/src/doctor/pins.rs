//! What earlier daemons left pinned, and whether one holds the pins now.

use std::path::{Path, PathBuf};

use super::{Finding, found};
use crate::{
    api::Level,
    interface::Interface,
    plane::{LinkPin, LoadPins, Stage, Survey},
};

const SUBJECT: &str = "pins";

/// Name of the first process namespace (`PROC_PID_INIT_INO` of
/// include/linux/proc_ns.h).
const FIRST_PROCESS_NAMESPACE: &str = "pid:[4026531836]";

/// Who holds the lock of a pin directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The process of this number.
    Process(u32),
    /// Nobody.
    Nobody,
    /// Perhaps somebody in another process namespace.
    Unknown,
}

/// Finds the holder in the text of `/proc/locks`, which shows processes of this
/// process namespace only. Trying the lock instead would make a daemon fail
/// that starts in this moment.
pub(super) fn holder(
    locks: &str,
    device: (u32, u32),
    inode: u64,
    process_namespace: Option<&str>,
) -> Holder {
    let file = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    let process = locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1).peekable();
        // After an arrow stands who waits for the lock above.
        if words.next()? != "FLOCK" {
            return None;
        }
        let (process, locked) = (words.nth(2)?, words.next()?);
        if locked == file { process.parse().ok() } else { None }
    });
    match process {
        Some(process) => Holder::Process(process),
        None if process_namespace == Some(FIRST_PROCESS_NAMESPACE) => Holder::Nobody,
        None => Holder::Unknown,
    }
}

/// What is in the pin directory, beside the interfaces as they are now.
pub(super) fn left(survey: &Survey, holder: Holder, interfaces: &[Interface]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Holder::Process(process) = holder {
        let fact = format!("limiterd (process {process}) holds the pin directory");
        findings.push(
            found(Level::Note, SUBJECT, fact)
                .so("a second one is refused there")
                .mend("ask the first: limiterctl status"),
        );
    }
    for load in &survey.loads {
        findings.extend(of_load(load, holder, interfaces));
        findings.extend(foreign(&load.foreign, Level::Error));
    }
    findings.extend(foreign(&survey.foreign, Level::Note));
    if findings.is_empty() {
        findings.push(found(Level::Ok, SUBJECT, "nothing is left of an earlier limiterd"));
    }
    findings
}

fn of_load(load: &LoadPins, holder: Holder, interfaces: &[Interface]) -> Vec<Finding> {
    let shown = load.path.display();
    let held = matches!(holder, Holder::Process(_));
    let readable = load.links.iter().all(|link| link.program.is_some());
    let mut findings = Vec::new();
    let (attached, stale): (Vec<_>, Vec<_>) =
        load.links.iter().partition(|link| is_attached(link, interfaces));
    let names = |links: &[&LinkPin]| {
        let names: Vec<_> = links.iter().map(|link| name(link, interfaces)).collect();
        names.join(", ")
    };
    let attached = if attached.is_empty() { None } else { Some(names(&attached)) };
    match (load.stage, attached) {
        (Stage::Live, Some(names)) if held => {
            findings.push(found(Level::Ok, SUBJECT, format!("{shown} holds links of {names}")));
        }
        (Stage::Live, Some(names)) if holder == Holder::Nobody && readable => findings.push(
            found(
                Level::Note,
                SUBJECT,
                format!("{shown} holds links of {names}, without a daemon"),
            )
            .so("the protection is in force with the rules that it had")
            .mend("start limiterd, which takes it over, or take it off: limiterd --detach"),
        ),
        (Stage::Live, Some(names)) => {
            findings.push(found(Level::Note, SUBJECT, format!("{shown} holds links of {names}")));
        }
        (Stage::Other, names) => {
            let of = names.map(|names| format!(", of {names}")).unwrap_or_default();
            findings.push(
                found(Level::Warning, SUBJECT, format!("{shown} is of another version{of}"))
                    .so("a start takes over links, bans and sums, but not the buckets"),
            );
        }
        (Stage::Unfinished, _) if !held => findings.push(
            found(
                Level::Note,
                SUBJECT,
                format!("{shown} is of a start or a detach that did not end"),
            )
            .so("the next start removes it"),
        ),
        (Stage::Live | Stage::Unfinished, _) => {}
    }
    if load.stage == Stage::Live && !stale.is_empty() {
        let names = stale.iter().map(|link| link.interface.as_str()).collect::<Vec<_>>().join(", ");
        findings.push(
            found(Level::Warning, SUBJECT, format!("{shown} holds links of {names}"))
                .so("no interface of this network namespace has them")
                .mend("unless they protect another one, limiterd --detach removes them"),
        );
    }
    findings
}

/// Whether the program of a link is on an interface; a link that cannot be read
/// is taken to be.
fn is_attached(link: &LinkPin, interfaces: &[Interface]) -> bool {
    link.program.is_none() || carrier(link, interfaces).is_some()
}

fn carrier<'a>(link: &LinkPin, interfaces: &'a [Interface]) -> Option<&'a Interface> {
    let program = link.program?;
    interfaces.iter().find(|interface| interface.program() == Some(program))
}

/// The interface of a link by the name that it has now.
fn name<'a>(link: &'a LinkPin, interfaces: &'a [Interface]) -> &'a str {
    carrier(link, interfaces).map_or(&link.interface, |interface| &interface.name)
}

fn foreign(paths: &[PathBuf], level: Level) -> Option<Finding> {
    let first: &Path = paths.first()?;
    let more = match paths.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let finding = found(level, SUBJECT, format!("{}{more} is not limiterd's", first.display()));
    Some(if level == Level::Error {
        finding
            .so("a start fails, because it would be in its way")
            .mend(format!("rm -r {}, or use another --pin-dir", first.display()))
    } else {
        finding.so("it stays, and the directory with it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: FLOCK  ADVISORY  WRITE 11874 00:1c:464 0 EOF
2: POSIX  ADVISORY  WRITE 77 00:1c:465 0 EOF
3: FLOCK  ADVISORY  WRITE 10678 fe:00:5316610 0 EOF
3: -> FLOCK  ADVISORY  WRITE 11854 fe:00:466 0 EOF
";

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let first = Some(FIRST_PROCESS_NAMESPACE);
        let at = |device, inode| holder(LOCKS, device, inode, first);
        assert_eq!(at((0, 0x1c), 464), Holder::Process(11_874));
        assert_eq!(at((0xfe, 0), 5_316_610), Holder::Process(10_678));
        for (device, inode) in
            [((0, 0x1c), 465), ((0xfe, 0), 466), ((0, 0x1c), 46), ((1, 0x1c), 464)]
        {
            assert_eq!(at(device, inode), Holder::Nobody);
        }
        assert_eq!(holder(LOCKS, (9, 9), 1, Some("pid:[4026532000]")), Holder::Unknown);
        assert_eq!(holder(LOCKS, (9, 9), 1, None), Holder::Unknown);
        for text in ["", "x", "1: FLOCK", "1: FLOCK ADVISORY WRITE x 00:01:1 0 EOF"] {
            assert!(!matches!(holder(text, (0, 1), 1, first), Holder::Process(_)), "{text}");
        }
    }

    fn survey(stage: Stage, program: Option<u32>) -> Survey {
        let links = vec![LinkPin { interface: "eth0".into(), program }];
        let load = LoadPins { path: "/b/v3".into(), stage, links, foreign: Vec::new() };
        Survey { loads: vec![load], foreign: Vec::new() }
    }

    fn renamed() -> Vec<Interface> {
        vec![Interface { name: "wan0".into(), native: Some(7), ..Interface::default() }]
    }

    #[test]
    fn leftovers_are_told_by_the_interface_that_they_are_on() {
        for (stage, program, holder, level, word) in [
            (Stage::Live, Some(7), Holder::Process(5), Level::Note, "process 5"),
            (Stage::Live, Some(7), Holder::Nobody, Level::Note, "wan0, without a daemon"),
            (Stage::Live, Some(7), Holder::Unknown, Level::Note, "wan0"),
            (Stage::Live, None, Holder::Nobody, Level::Note, "holds links of eth0"),
            (Stage::Live, Some(8), Holder::Nobody, Level::Warning, "eth0"),
            (Stage::Other, Some(7), Holder::Nobody, Level::Warning, "another version, of wan0"),
            (Stage::Unfinished, Some(8), Holder::Nobody, Level::Note, "did not end"),
        ] {
            let findings = left(&survey(stage, program), holder, &renamed());
            assert_eq!(findings[0].level, level, "{}", findings[0]);
            assert!(findings[0].to_string().contains(word), "{}", findings[0]);
        }
    }

    #[test]
    fn what_is_not_ours_is_named() {
        let none = left(&Survey::default(), Holder::Nobody, &[]);
        assert_eq!((none.len(), none[0].level), (1, Level::Ok));
        let mut survey = survey(Stage::Live, Some(7));
        survey.loads[0].foreign = vec!["/b/v3/junk".into(), "/b/v3/more".into()];
        survey.foreign = vec!["/b/other".into()];
        let findings = left(&survey, Holder::Nobody, &renamed());
        let told: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert!(told[1].contains("error") && told[1].contains("/b/v3/junk and 1 more"), "{told:?}");
        assert!(told[2].contains("note") && told[2].contains("/b/other"), "{told:?}");
    }
}
