//! Packets that no sender in his right mind would send, and some that he would.

use fastrand::Rng;

use crate::{
    cases::cases,
    replay::{LONGEST, SHORTEST},
    wire::{Ipv4, Ipv6, Tcp, Udp},
};

/// A source of packets.
pub struct Mutator {
    rng: Rng,
    corpus: Vec<Vec<u8>>,
    /// Sources that occur; few, so that their buckets are met again.
    sources: u32,
}

impl Mutator {
    /// The same packets for the same seed.
    #[must_use]
    pub fn new(seed: u64, sources: u32) -> Self {
        let corpus = cases().into_iter().map(|case| case.bytes);
        let corpus = corpus.filter(|bytes| (SHORTEST..=LONGEST).contains(&bytes.len())).collect();
        Self { rng: Rng::with_seed(seed), corpus, sources }
    }

    /// The next packet.
    pub fn packet(&mut self) -> Vec<u8> {
        let mut bytes = if self.rng.u8(..4) == 0 { self.case() } else { self.sound() };
        match self.rng.u8(..8) {
            0 => self.flip(&mut bytes),
            1 => {
                let length = self.rng.usize(SHORTEST..=bytes.len());
                bytes.truncate(length);
            }
            2 => {
                let length = self.rng.usize(bytes.len()..=LONGEST);
                let byte = self.rng.u8(..);
                bytes.resize(length, byte);
            }
            3 => {
                for _ in 0..self.rng.u8(1..8) {
                    self.flip(&mut bytes);
                }
            }
            _ => {}
        }
        bytes
    }

    fn case(&mut self) -> Vec<u8> {
        let case = self.rng.usize(..self.corpus.len());
        self.corpus[case].clone()
    }

    /// A packet without fault from one of the sources.
    fn sound(&mut self) -> Vec<u8> {
        let source = self.rng.u32(..self.sources);
        let length = self.rng.u16(18..=200);
        let payload = vec![0; length.into()];
        let (protocol, body) = match self.rng.u8(..5) {
            0 => (6, Tcp::new(4000, 443).flags(0x02).build()),
            1 => (6, Tcp::new(4000, 443).flags(0x10).build()),
            2 => (1, [&[8, 0][..], &payload].concat()),
            3 => (47, payload),
            _ => (17, Udp::new(4000, 53).payload(length)),
        };
        let [_, b, c, d] = source.to_be_bytes();
        if self.rng.bool() {
            let address = format!("198.{}.{}.{}", 18 + (b & 1), c, d);
            Ipv4::new(&address, "192.0.2.1").next(protocol, &body).build()
        } else {
            let protocol = if protocol == 1 { 58 } else { protocol };
            let address = format!("2001:db8:{b:x}:{c:x}{d:02x}::{:x}", self.rng.u16(..));
            Ipv6::new(&address, "2001:db8::1").next(protocol, &body).build()
        }
    }

    fn flip(&mut self, bytes: &mut [u8]) {
        // Headers more often than what is behind them.
        let end = if self.rng.bool() { bytes.len().min(80) } else { bytes.len() };
        let at = self.rng.usize(..end);
        bytes[at] = match self.rng.u8(..4) {
            0 => 0,
            1 => 0xff,
            2 => bytes[at] ^ (1 << self.rng.u8(..8)),
            _ => self.rng.u8(..),
        };
    }
}
