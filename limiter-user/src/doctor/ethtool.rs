//! What a driver says of its device through the ioctl of ethtool, which needs
//! no right and is answered in this network namespace.

use std::os::fd::AsRawFd as _;

use netlink_sys::{Socket, protocols::NETLINK_GENERIC};

/// Numbers of include/uapi/linux/ethtool.h.
const GET_DRIVER: u32 = 0x03;
const GET_GRO: u32 = 0x2b;
const GET_FLAGS: u32 = 0x25;
const GET_CHANNELS: u32 = 0x3c;
const FLAG_LRO: u32 = 1 << 15;
const LONGEST_NAME: usize = 15;

/// What a driver says; what it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    /// Its name.
    pub(super) driver: Option<String>,
    /// Whether the kernel merges received packets.
    pub(super) gro: Option<bool>,
    /// Whether the device merges received packets.
    pub(super) lro: Option<bool>,
    /// Its queues.
    pub(super) queues: Option<Queues>,
}

/// Queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queues {
    /// Receive queues in use.
    pub(super) receive: u32,
    /// Transmit queues in use.
    pub(super) transmit: u32,
    /// Receive queues that the device can have.
    pub(super) most_receive: u32,
    /// Whether they come in pairs of both kinds.
    pub(super) combined: bool,
}

/// Larger than every structure that is asked for here.
type Words = [u32; 64];

/// Asks the driver of an interface.
pub(super) fn device(interface: &str) -> Device {
    // Any socket will do; this one exists also without IPv4.
    let Ok(socket) = Socket::new(NETLINK_GENERIC) else {
        return Device::default();
    };
    let ask = |command| ask(&socket, interface, command);
    Device {
        driver: ask(GET_DRIVER).and_then(|words| driver(&words)),
        gro: ask(GET_GRO).map(|words| words[1] != 0),
        lro: ask(GET_FLAGS).map(|words| words[1] & FLAG_LRO != 0),
        queues: ask(GET_CHANNELS).and_then(|words| queues(&words)),
    }
}

fn ask(socket: &Socket, interface: &str, command: u32) -> Option<Words> {
    /// `struct ifreq` of include/uapi/linux/if.h.
    #[repr(C)]
    struct Request {
        name: [u8; LONGEST_NAME + 1],
        data: *mut Words,
        rest: [u64; 2],
    }
    let mut name = [0; LONGEST_NAME + 1];
    // A byte of 0 has to follow.
    name[..LONGEST_NAME].get_mut(..interface.len())?.copy_from_slice(interface.as_bytes());
    let mut words: Words = [0; 64];
    words[0] = command;
    let request = Request { name, data: &raw mut words, rest: [0; 2] };
    // SAFETY: the request and the words in it outlive the call, and the words
    // have room for what each command writes, 196 bytes at most.
    let done =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw const request) };
    (done == 0).then_some(words)
}

/// `struct ethtool_drvinfo`: the name is 32 bytes after the command.
fn driver(words: &Words) -> Option<String> {
    let bytes: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = bytes.split(|byte| *byte == 0).next()?;
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// `struct ethtool_channels`: the most of receive, transmit, other and combined
/// ones, then how many there are of each.
fn queues(words: &Words) -> Option<Queues> {
    let [_, most_rx, _, _, most_combined, rx, tx, _, combined] = *words.first_chunk()?;
    let receive = rx.saturating_add(combined);
    let transmit = tx.saturating_add(combined);
    (receive > 0).then_some(Queues {
        receive,
        transmit,
        most_receive: most_rx.max(most_combined),
        combined: combined > 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(start: &[u32]) -> Words {
        let mut words = [0; 64];
        words[..start.len()].copy_from_slice(start);
        words
    }

    #[test]
    fn names_of_drivers_are_read() {
        let named = |name: &[u8]| {
            let mut bytes = [0; 32];
            bytes[..name.len()].copy_from_slice(name);
            let mut words = words(&[GET_DRIVER]);
            for (word, bytes) in words[1..].iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_ne_bytes(bytes.try_into().unwrap());
            }
            driver(&words)
        };
        assert_eq!(named(b"virtio_net"), Some("virtio_net".into()));
        assert_eq!(named(&[b'x'; 32]), Some("x".repeat(32)));
        assert_eq!(named(b""), None);
        assert_eq!(named(&[0xff, 0xfe]), None);
    }

    #[test]
    fn queues_are_read() {
        let combined = queues(&words(&[GET_CHANNELS, 0, 0, 1, 8, 0, 0, 1, 2])).unwrap();
        let expected = Queues { receive: 2, transmit: 2, most_receive: 8, combined: true };
        assert_eq!(combined, expected);
        let apart = queues(&words(&[GET_CHANNELS, 4, 2, 0, 0, 3, 1, 0, 0])).unwrap();
        let expected = Queues { receive: 3, transmit: 1, most_receive: 4, combined: false };
        assert_eq!(apart, expected);
        assert_eq!(queues(&words(&[GET_CHANNELS])), None);
    }

    #[test]
    fn the_kernel_is_asked() {
        assert_eq!(device("no-such-if0"), Device::default());
        assert_eq!(device("a name that is far too long"), Device::default());
        // Loopback merges nothing in hardware, and the kernel says so.
        assert_ne!(device("lo").lro, Some(true));
        assert!(device("lo").gro.is_some());
    }
}
