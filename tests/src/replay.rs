//! The loaded program on recorded packets, at recorded times.

use std::path::Path;

use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, ProgramArray},
    programs::{TestRun as _, TestRunOptions, Xdp},
};
use limiter_common::source::Seed;
use limiter_user::{compiled::Compiled, machine::TICK_NS, object, plane::Fixed};

use crate::{program::Program, sandbox::BPF_FS};

/// Bytes of the longest packet.
pub const LONGEST: usize = 2048;
/// Bytes of the shortest: an Ethernet header.
pub const SHORTEST: usize = 14;
/// Packets at once.
pub const MOST: usize = 1024;

/// A packet and when it comes.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Nanoseconds since the boot.
    pub now_ns: u64,
    /// The frame: [`SHORTEST`] to [`LONGEST`] bytes.
    pub bytes: Vec<u8>,
}

/// Layout of the map's value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Recorded {
    time: [u64; 2],
    length: u32,
    padding: u32,
    bytes: [u8; LONGEST],
}

// SAFETY: integers and bytes without padding.
unsafe impl Pod for Recorded {}

/// The program behind a player.
pub struct Replay {
    /// The program.
    pub program: Program,
    player: Ebpf,
}

impl Replay {
    /// Loads both; the program hashes with this seed.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn load(rules: impl Into<Compiled>, policies: u32, max_sources: u32, seed: Seed) -> Self {
        Self::load_on(0, rules, policies, max_sources, seed)
    }

    /// The same for the interface of this number.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn load_on(
        interface: u32,
        rules: impl Into<Compiled>,
        policies: u32,
        max_sources: u32,
        seed: Seed,
    ) -> Self {
        let fixed = Some(Fixed { seed });
        let mut program = Program::load_on(interface, rules, policies, max_sources, fixed);
        // Both objects set and read one clock.
        let clock = Path::new(BPF_FS).join("test-clock");
        let ebpf = &program.instance().ebpf;
        ebpf.map("CLOCK").expect("a map").pin(&clock).expect("pinning");
        let object = object::BENCH.expect("a build with a BPF compiler: cargo xtask build");
        let mut loader = EbpfLoader::new();
        let mut player = loader.map_pin_path("CLOCK", &clock).load(object).expect("the player");
        std::fs::remove_file(&clock).expect("removing the pin");
        replay(&mut player).load().expect("loading the player");
        let mut next: ProgramArray<_> =
            player.map_mut("NEXT").expect("a map").try_into().expect("its type");
        next.set(0, program.runner().fd(), 0).expect("setting the next program");
        Self { program, player }
    }

    /// Plays packets in order, at most [`MOST`], on the calling thread's CPU.
    ///
    /// # Panics
    /// If there are too many, one is too short or too long, or the kernel
    /// refuses.
    pub fn play(&mut self, packets: &[Packet]) {
        assert!(packets.len() <= MOST);
        let mut recorded: Array<_, Recorded> =
            self.player.map_mut("RECORDED").expect("a map").try_into().expect("its type");
        for (at, packet) in (0u32..).zip(packets) {
            let length = packet.bytes.len();
            assert!((SHORTEST..=LONGEST).contains(&length), "{length} bytes");
            let mut bytes = [0; LONGEST];
            bytes[..length].copy_from_slice(&packet.bytes);
            let record = Recorded {
                time: [packet.now_ns, packet.now_ns / TICK_NS],
                length: u32::try_from(length).expect("a frame"),
                padding: 0,
                bytes,
            };
            recorded.set(at, record, 0).expect("recording a packet");
        }
        let mut position: Array<_, u32> =
            self.player.map_mut("POSITION").expect("a map").try_into().expect("its type");
        position.set(0, 0, 0).expect("rewinding");
        let options = TestRunOptions {
            data_in: Some(&[0; 64]),
            repeat: u32::try_from(packets.len()).expect("few"),
            ..TestRunOptions::default()
        };
        let result = replay(&mut self.player).test_run(options).expect("BPF_PROG_TEST_RUN");
        assert_ne!(result.return_value, 0, "the player gave up: XDP_ABORTED");
    }
}

fn replay(player: &mut Ebpf) -> &mut Xdp {
    player.program_mut("replay").expect("a program").try_into().expect("an XDP program")
}
