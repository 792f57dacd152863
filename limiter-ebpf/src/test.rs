//! The same program with a clock that tests set; no part of the shield.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[path = "test_clock.rs"]
mod clock;
mod frame;
#[cfg(target_arch = "bpf")]
mod kernel;
mod maps;
mod program;
mod samples;
mod steps;
mod word;

/// On a host the crate is only checked.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
