//! Everything of limiterd that runs in user space.

pub mod api;
pub mod bytes;
pub mod client;
pub mod compiled;
pub mod config;
mod decimal;
pub mod error;
pub mod gate;
pub mod interface;
pub mod lists;
pub mod machine;
pub mod object;
pub mod plane;
pub mod policies;
pub mod prefix;
pub mod preflight;
pub mod rate;
pub mod server;
pub mod service;
pub mod sizing;
pub mod sockets;
mod trouble;
