//! Attaching to interfaces, by BPF links only: they can be pinned and replaced
//! without a gap.

use std::{fmt, path::Path};

use aya::{
    pin::PinError,
    programs::{
        ProgramError, ProgramInfo, XdpMode,
        links::{FdLink, PinnedLink},
        xdp::XdpLink,
    },
};

use super::{
    Attachment, Instance, PROGRAM, chain, errno,
    pins::{Pins, link_pin},
};
use crate::{
    error::{Error, Kind, Result},
    interface::{self, Interface},
};

/// Where in the stack a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before a socket buffer exists.
    Native,
    /// In the kernel's stack, after GRO: slower, for drivers without XDP.
    Generic,
}

/// Where in the stack the operator wants it to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Native where the driver can, generic where not.
    #[default]
    Auto,
    /// Native or not at all.
    Native,
    /// Generic.
    Generic,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Native, Self::Generic];

    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A link that an earlier daemon left pinned.
struct Left {
    link: FdLink,
    mode: Mode,
}

/// Attaches all instances that are not spare, or none.
///
/// What can fail comes first: all interfaces are looked up, then the missing
/// links are made; only then are links taken over that are in force already.
pub(super) fn all(instances: &mut [Instance], pins: &Pins, wish: Wish) -> Result<()> {
    let mut found = Vec::new();
    for (number, instance) in instances.iter().enumerate() {
        let Some(name) = &instance.interface else {
            continue;
        };
        let interface = interface::find(name)?;
        let left = left_over(&interface, pins)?;
        if left.is_none()
            && let Some(program) = interface.program()
        {
            return Err(foreign(&interface, program));
        }
        if let Some(Left { mode: Mode::Generic, .. }) = &left
            && wish == Wish::Native
        {
            return Err(Error::failed(format!(
                "{} is protected in generic mode by an earlier run",
                interface.name
            ))
            .hint("to have native mode, take that off first: limiterd --detach"));
        }
        found.push((number, interface, left));
    }
    let mut links = Vec::new();
    for (number, interface, left) in found {
        let made = match &left {
            None => Some(create(&mut instances[number], &interface, wish)?),
            Some(_) => None,
        };
        links.push((number, interface, left, made));
    }
    for (number, interface, left, made) in links {
        let instance = &mut instances[number];
        let (link, mode) = match (made, left) {
            (Some(made), _) => made,
            (None, Some(left)) => {
                let link = take_over(instance, left.link)?;
                tracing::info!(
                    "{}: took over from an earlier limiterd without a gap",
                    interface.name
                );
                if wish == Wish::Generic && left.mode == Mode::Native {
                    tracing::warn!(
                        "{}: stays in native mode as before; for generic, limiterd --detach first",
                        interface.name
                    );
                }
                (link, left.mode)
            }
            (None, None) => return Err(Error::failed("an interface has no link")),
        };
        let name = instance.interface.as_deref().unwrap_or_default();
        let link = pin(link, &pins.staging().join(link_pin(name)), &interface)?;
        let program = instance.program()?.info().map_err(|error| unexpected(&error))?;
        let index = interface.index;
        instance.attachment =
            Some(Attachment { index, mode, program_id: program.id(), _link: link });
    }
    Ok(())
}

/// Attaches one instance while the others run.
pub(super) fn one(instance: &mut Instance, pins: &Pins, name: &str, wish: Wish) -> Result<()> {
    let interface = interface::find(name)?;
    if let Some(program) = interface.program() {
        let is_ours = instance.attachment.as_ref().is_some_and(|it| it.program_id == program);
        if is_ours && instance.attachment.as_ref().is_some_and(|it| it.index == interface.index) {
            return Err(Error::new(Kind::Invalid, format!("{name} is protected already")));
        }
        return Err(foreign(&interface, program));
    }
    let (link, mode) = create(instance, &interface, wish)?;
    let link = pin(link, &pins.aside(name), &interface)?;
    pins.replace_link(name)?;
    let program = instance.program()?.info().map_err(|error| unexpected(&error))?;
    instance.interface = Some(name.to_owned());
    instance.attachment =
        Some(Attachment { index: interface.index, mode, program_id: program.id(), _link: link });
    Ok(())
}

/// The pinned link of an earlier daemon, if it still holds this interface. It
/// is told by its program, not by its name: the interface may have had another.
fn left_over(interface: &Interface, pins: &Pins) -> Result<Option<Left>> {
    let native = interface.native.map(|id| (id, Mode::Native));
    let holds: Vec<_> =
        native.into_iter().chain(interface.generic.map(|id| (id, Mode::Generic))).collect();
    for path in pins.links()? {
        let damaged = |problem: String| {
            Error::failed(format!("{} is no link of limiterd: {problem}", path.display()))
                .hint("remove what is left of the earlier run: limiterd --detach")
        };
        let link: FdLink =
            PinnedLink::from_pin(&path).map_err(|error| damaged(chain(&error)))?.into();
        let program = link.info().map_err(|error| damaged(chain(&error)))?.program_id();
        if let Some((_, mode)) = holds.iter().find(|(id, _)| *id == program) {
            return Ok(Some(Left { link, mode: *mode }));
        }
    }
    Ok(None)
}

fn create(instance: &mut Instance, on: &Interface, wish: Wish) -> Result<(FdLink, Mode)> {
    let mut attach = |mode: Mode| -> std::result::Result<FdLink, String> {
        let program = instance.program().map_err(|error| error.to_string())?;
        let flags = match mode {
            Mode::Native => XdpMode::Driver,
            Mode::Generic => XdpMode::Skb,
        };
        let id = program.attach_to_if_index(on.index, flags).map_err(|error| why(&error, on))?;
        let link = program.take_link(id).map_err(|error| chain(&error))?;
        // Without link support aya attaches over netlink, which cannot be
        // pinned; dropping that link detaches it again.
        link.try_into().map_err(|_| "the kernel refuses a BPF link for it".to_owned())
    };
    let refused = |mode: Mode, problem: &str| {
        Error::failed(format!("cannot attach to {} in {mode} mode: {problem}", on.name))
    };
    match wish {
        Wish::Generic => match attach(Mode::Generic) {
            Ok(link) => Ok((link, Mode::Generic)),
            Err(problem) => Err(refused(Mode::Generic, &problem)),
        },
        Wish::Native => match attach(Mode::Native) {
            Ok(link) => Ok((link, Mode::Native)),
            Err(problem) => Err(refused(Mode::Native, &problem)
                .hint("use --xdp-mode auto to fall back to the slower generic mode")),
        },
        Wish::Auto => match attach(Mode::Native) {
            Ok(link) => Ok((link, Mode::Native)),
            Err(problem) => {
                let link =
                    attach(Mode::Generic).map_err(|generic| refused(Mode::Generic, &generic))?;
                tracing::warn!(
                    "{} is protected in generic mode only, which is several times slower: {problem}",
                    on.name
                );
                Ok((link, Mode::Generic))
            }
        },
    }
}

/// Puts the new program in the place of the old one, without a gap.
fn take_over(instance: &mut Instance, link: FdLink) -> Result<FdLink> {
    let program = instance.program()?;
    let link = XdpLink::try_from(link).map_err(|error| {
        Error::failed(format!("a pinned link is no XDP link: {}", chain(&error)))
    })?;
    let id = program.attach_to_link(link).map_err(|error| unexpected(&error))?;
    let link = program.take_link(id).map_err(|error| unexpected(&error))?;
    link.try_into().map_err(|_| Error::failed("a pinned link is no BPF link"))
}

fn pin(link: FdLink, path: &Path, interface: &Interface) -> Result<FdLink> {
    let pinned = link.pin(path).map_err(|error: PinError| {
        Error::failed(format!("cannot pin the link of {}: {}", interface.name, chain(&error)))
    })?;
    Ok(pinned.into())
}

/// Name of a program; only a privileged user may look it up.
pub(crate) fn program_name(number: u32) -> Option<String> {
    aya::programs::loaded_programs()
        .filter_map(std::result::Result::ok)
        .find(|info| info.id() == number)
        .and_then(|info: ProgramInfo| info.name_as_str().map(str::to_owned))
}

fn foreign(interface: &Interface, program: u32) -> Error {
    let name = program_name(program).unwrap_or_default();
    let ours = name == PROGRAM;
    let error = Error::failed(format!(
        "{} already has an XDP program: number {program}, '{name}'",
        interface.name
    ));
    if ours {
        error.hint(
            "it is a limiterd's whose pins are elsewhere: limiterd --detach with its --pin-dir",
        )
    } else {
        error.hint(format!("remove it first: ip link set dev {} xdp off", interface.name))
    }
}

/// What a refusal to attach means for the operator.
fn why(error: &ProgramError, on: &Interface) -> String {
    let mtu = on.mtu;
    match errno(error) {
        Some(libc::ERANGE) => {
            format!("its MTU of {mtu} is too large for XDP in this driver; lower the MTU")
        }
        Some(libc::EOPNOTSUPP | libc::EINVAL) => format!(
            "its driver has no native XDP, or not with its present settings (MTU {mtu}, offloads, \
             queues)"
        ),
        Some(libc::EBUSY | libc::EEXIST) => "another XDP program is on it".to_owned(),
        Some(libc::ENOMEM | libc::ENOSPC) => {
            "its driver has no memory, or too few transmit queues, for XDP".to_owned()
        }
        _ => chain(error),
    }
}

fn unexpected(error: &ProgramError) -> Error {
    Error::failed(format!("the kernel refuses a program of ours: {}", chain(error)))
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    #[test]
    fn refusals_of_drivers_are_told_in_words() {
        let on = Interface { name: "eth0".into(), mtu: 9000, ..Interface::default() };
        for (errno, words) in [
            (libc::ERANGE, &["MTU of 9000", "lower"][..]),
            (libc::EOPNOTSUPP, &["no native XDP", "9000"]),
            (libc::EINVAL, &["no native XDP"]),
            (libc::EBUSY, &["another XDP program"]),
            (libc::ENOMEM, &["transmit queues"]),
            (libc::ENOSPC, &["transmit queues"]),
            (libc::EIO, &["bpf_link_create"]),
        ] {
            let io_error = std::io::Error::from_raw_os_error(errno);
            let error = SyscallError { call: "bpf_link_create", io_error }.into();
            let text = why(&error, &on);
            assert!(words.iter().all(|word| text.contains(word)), "{errno}: {text}");
        }
    }
}
