//! The floods: open-loop, paced, and bounded in packets and time.

use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::JoinHandle,
};

use serde::Serialize;

use crate::{
    goodput::place::WIRE_CPU,
    net::{ATTACKER4, IFACE, Net, SERVER4},
    sandbox,
    send::{Load, Sent, send},
    web::PORT,
    wire::{Ipv4, Tcp, Udp},
};

/// As many as the generator can send.
pub const UNPACED: u64 = 100_000_000;
/// Frames of a flood before it repeats itself.
const FRAMES: u32 = 1 << 17;
/// The same where each has a source of its own.
const SPOOFED_FRAMES: u32 = 1 << 20;
/// No flood has more frames, whatever its rate.
const MOST_FRAMES: u64 = 50_000_000;

/// Its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SYN packets to the web server's port from one address.
    Syn,
    /// Datagrams of 64 bytes from one address.
    Udp,
    /// SYN packets to the web server's port from random addresses.
    SpoofedSyn,
    /// The same, and the users come after it has begun.
    SpoofedSynFirst,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Syn, Self::Udp, Self::SpoofedSyn, Self::SpoofedSynFirst];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syn => "SYN, one source",
            Self::Udp => "UDP, one source",
            Self::SpoofedSyn => "SYN, spoofed sources",
            Self::SpoofedSynFirst => "the same, new users",
        }
    }

    /// Whether the users were there before the flood.
    #[must_use]
    pub const fn knows_users(self) -> bool {
        !matches!(self, Self::SpoofedSynFirst)
    }

    const fn is_spoofed(self) -> bool {
        matches!(self, Self::SpoofedSyn | Self::SpoofedSynFirst)
    }

    fn frame(self, random: u64, ethernet: ([u8; 6], [u8; 6])) -> Vec<u8> {
        let port = u16::try_from(random >> 48).unwrap_or(0) | 1024;
        let (source, protocol, payload) = match self {
            Self::Syn => (ATTACKER4.to_owned(), 6, syn(port)),
            Self::Udp => (ATTACKER4.to_owned(), 17, Udp::new(port, 53).payload(64)),
            Self::SpoofedSyn | Self::SpoofedSynFirst => (spoofed(random).to_string(), 6, syn(port)),
        };
        let frame = Ipv4::new(&source, SERVER4).next(protocol, &payload);
        frame.ethernet(ethernet.0, ethernet.1).build()
    }
}

fn syn(port: u16) -> Vec<u8> {
    // With a segment size, as every real one has.
    let mut tcp = Tcp::new(port, PORT).flags(0x02).options(4).build();
    tcp[20..].copy_from_slice(&[2, 4, 5, 180]);
    tcp
}

/// An address of 10.0.0.0/8, which none of the hosts has.
fn spoofed(random: u64) -> Ipv4Addr {
    let host = u32::try_from(random & 0xff_ffff).unwrap_or(0);
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() | host)
}

/// A flood under way; it ends with this.
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Sent>>>,
}

impl Flood {
    /// Starts it on the attacker's host.
    #[must_use]
    pub fn start(net: &Net, kind: Kind, per_second: u64) -> Self {
        let ethernet = (net.server.hardware_address(IFACE), net.attacker.hardware_address(IFACE));
        let mut random = 0x9e37_79b9_7f4a_7c15;
        let frames = if kind.is_spoofed() { SPOOFED_FRAMES } else { FRAMES };
        let frames = (0..frames).map(|_| kind.frame(next(&mut random), ethernet)).collect();
        let load = Load { frames, count: MOST_FRAMES, per_second };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = net.attacker.spawn(move || {
            sandbox::pin_to_cpu(WIRE_CPU);
            // The polite client may share this CPU, and comes first.
            rustix::process::nice(19)?;
            send(IFACE, &load, || stopped.load(SeqCst))
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends it.
    ///
    /// # Panics
    /// If it had ended by itself, for a reason or at its bound.
    pub fn finish(mut self) {
        let thread = self.thread.take().expect("the flood");
        assert!(!thread.is_finished(), "the flood has come to its end too early");
        self.stop.store(true, SeqCst);
        thread.join().expect("the flood").expect("the generator");
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Xorshift (Marsaglia), the same at every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
