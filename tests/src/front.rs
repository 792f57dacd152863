//! The programs in front of the one that is measured: they write the source
//! address of each packet.

use std::io::ErrorKind;

use aya::{
    Ebpf, Pod,
    maps::{Array, ProgramArray},
    programs::{ProgramError, ProgramFd, TestRun as _, TestRunAttrs, TestRunOptions, Xdp},
};
use limiter_user::object;

use crate::wire::{Ipv4, Ipv6, Udp};

/// Packets handed to the stack at once in a live run.
const LIVE_BATCH: u32 = 64;

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// A small UDP packet from the source that the front writes when it
    /// changes nothing.
    #[must_use]
    pub fn frame(self) -> Vec<u8> {
        let datagram = Udp::new(4000, 9).payload(18);
        match self {
            Self::V4 => Ipv4::new("198.18.0.1", "198.18.255.254").next(17, &datagram).build(),
            Self::V6 => {
                Ipv6::new("2001:db8:c612:1::1", "2001:db8:ffff::1").next(17, &datagram).build()
            }
        }
    }
}

/// Which packets get which source; layout of the map's value.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Shape {
    /// Which bits of the address change.
    pub mask: u32,
    /// 1: only in every other packet.
    pub every_other: u32,
    /// Not random: so many from the list, in turn. 0: random.
    pub listed: u32,
    /// The first of those.
    pub first: u32,
    /// Which bits of the last word of an IPv6 address change.
    pub host_mask: u32,
}

// SAFETY: five integers without padding.
unsafe impl Pod for Shape {}

/// Where a run takes place.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// The program alone, on one packet in memory.
    Alone,
    /// Packets that really are handed to the stack, as received by this
    /// interface of the calling thread's network namespace.
    Live(u32),
}

/// The loaded programs.
pub struct Front {
    ebpf: Ebpf,
}

impl Front {
    /// Loads them.
    ///
    /// # Panics
    /// If the kernel refuses, or this build has no BPF compiler.
    #[must_use]
    pub fn load() -> Self {
        let object = object::BENCH.expect("a build with a BPF compiler: cargo xtask bench");
        let mut ebpf = Ebpf::load(object).expect("loading the benchmark's programs");
        let names: Vec<_> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            program(&mut ebpf, &name).load().expect("loading a program");
        }
        Self { ebpf }
    }

    /// One of the programs.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn program(&mut self, name: &str) -> &mut Xdp {
        program(&mut self.ebpf, name)
    }

    /// A descriptor of one of the programs.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn fd(&mut self, name: &str) -> ProgramFd {
        self.program(name).fd().expect("loaded").try_clone().expect("a descriptor")
    }

    /// Time of `program` alone, nanoseconds for each of `repeat` packets.
    pub fn alone(&mut self, program: &str, frame: &[u8], repeat: u32, stage: Stage) -> f64 {
        run(self.program(program), frame, repeat, stage)
    }

    /// Whether the kernel hands frames of test runs to the network stack at all.
    /// Some are built so that even root may not.
    ///
    /// # Panics
    /// If it refuses for another reason.
    pub fn may_run_live(&mut self, interface: u32) -> bool {
        let frame = Family::V4.frame();
        match try_run(self.program("bare_drop"), &frame, 1, Stage::Live(interface)) {
            Ok(_) => true,
            Err(ProgramError::SyscallError(error))
                if error.io_error.kind() == ErrorKind::PermissionDenied =>
            {
                false
            }
            Err(error) => panic!("BPF_PROG_TEST_RUN: {error}"),
        }
    }

    /// Time of a front that writes sources of this shape and of `next` behind
    /// it.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn before(
        &mut self,
        next: &ProgramFd,
        family: Family,
        shape: Shape,
        repeat: u32,
        stage: Stage,
    ) -> f64 {
        let front = front_of(family);
        self.via(front, "NEXT", next, &family.frame(), shape, repeat, stage)
    }

    /// Sends a frame through `next`, from sources of this shape.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn send(
        &mut self,
        next: &ProgramFd,
        family: Family,
        frame: &[u8],
        shape: Shape,
        repeat: u32,
    ) {
        let front = front_of(family);
        let _ns = self.via(front, "NEXT", next, frame, shape, repeat, Stage::Alone);
    }

    /// Sets the list of sources, as numbers.
    ///
    /// # Panics
    /// If there are more than 65,536.
    pub fn list(&mut self, sources: &[u32]) {
        let mut list: Array<_, u32> =
            self.ebpf.map_mut("LIST").expect("a map").try_into().expect("its type");
        for (at, source) in (0u32..).zip(sources) {
            list.set(at, source, 0).expect("setting a source");
        }
    }

    /// The same for a program without support for several buffers.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn before_plain(
        &mut self,
        next: &ProgramFd,
        family: Family,
        shape: Shape,
        repeat: u32,
    ) -> f64 {
        let front = match family {
            Family::V4 => "plain_source4",
            Family::V6 => "plain_source6",
        };
        self.via(front, "NEXT_PLAIN", next, &family.frame(), shape, repeat, Stage::Alone)
    }

    #[expect(clippy::too_many_arguments, reason = "private")]
    fn via(
        &mut self,
        front: &str,
        slots: &str,
        next: &ProgramFd,
        frame: &[u8],
        shape: Shape,
        repeat: u32,
        stage: Stage,
    ) -> f64 {
        let mut slots: ProgramArray<_> =
            self.ebpf.map_mut(slots).expect("a map").try_into().expect("its type");
        slots.set(0, next, 0).expect("setting the next program");
        let mut shapes: Array<_, Shape> =
            self.ebpf.map_mut("SHAPE").expect("a map").try_into().expect("its type");
        shapes.set(0, shape, 0).expect("setting the shape");
        run(self.program(front), frame, repeat, stage)
    }
}

const fn front_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "random_source4",
        Family::V6 => "random_source6",
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Xdp {
    let program = ebpf.program_mut(name).unwrap_or_else(|| panic!("no program {name}"));
    program.try_into().expect("an XDP program")
}

/// Time of a program, nanoseconds per packet, as the kernel measures it.
fn run(program: &Xdp, frame: &[u8], repeat: u32, stage: Stage) -> f64 {
    try_run(program, frame, repeat, stage).expect("BPF_PROG_TEST_RUN")
}

fn try_run(program: &Xdp, frame: &[u8], repeat: u32, stage: Stage) -> Result<f64, ProgramError> {
    let length = u32::try_from(frame.len()).expect("a frame");
    let mut context = Vec::new();
    let mut attrs = TestRunAttrs::new();
    if let Stage::Live(interface) = stage {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex,
        // rx_queue_index, egress_ifindex.
        let words = [0, length, 0, interface, 0, 0];
        context = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        attrs = attrs.xdp_live_frames(LIVE_BATCH);
    }
    let options = TestRunOptions {
        data_in: Some(frame),
        ctx_in: (!context.is_empty()).then_some(&context),
        repeat,
        attrs,
        ..TestRunOptions::default()
    };
    Ok(program.test_run(options)?.duration.as_nanos() as f64)
}
