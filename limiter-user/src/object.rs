//! The BPF objects that this build holds.

/// The XDP program; `None` if there was no BPF compiler at build time.
#[cfg(bpf_object)]
pub static LIMITER: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/limiter")));
/// The XDP program; `None` if there was no BPF compiler at build time.
#[cfg(not(bpf_object))]
pub static LIMITER: Option<&[u8]> = None;

/// The XDP program with a clock for tests; `None` if there was no BPF compiler
/// at build time.
#[cfg(bpf_object)]
pub static TEST: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/limiter-test")));
/// The XDP program with a clock for tests; `None` if there was no BPF compiler
/// at build time.
#[cfg(not(bpf_object))]
pub static TEST: Option<&[u8]> = None;

/// Programs for benchmarks; `None` if there was no BPF compiler at build time.
#[cfg(bpf_object)]
pub static BENCH: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/limiter-bench")));
/// Programs for benchmarks; `None` if there was no BPF compiler at build time.
#[cfg(not(bpf_object))]
pub static BENCH: Option<&[u8]> = None;

/// SHA-256 of the XDP program, in hexadecimal.
pub const SHA256: Option<&str> = option_env!("LIMITER_OBJECT_SHA256");
