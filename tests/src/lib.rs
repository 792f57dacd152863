//! What the tests of limiterd share.

pub mod browser;
pub mod cases;
pub mod daemon;
pub mod front;
pub mod goodput;
pub mod host;
pub mod http;
pub mod mutate;
pub mod net;
pub mod network;
pub mod peers;
pub mod program;
pub mod replay;
pub mod sandbox;
pub mod scene;
pub mod send;
pub mod senders;
pub mod terminal;
pub mod watched;
pub mod web;
pub mod wire;

/// The seed of random tests: `LIMITER_SEED`, or another one in each run, which
/// is printed so that the run can be repeated.
#[must_use]
pub fn seed() -> u64 {
    let seed = std::env::var("LIMITER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("LIMITER_SEED={seed}");
    seed
}
