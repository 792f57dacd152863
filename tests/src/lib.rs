//! What the tests of limiterd share.

pub mod cases;
pub mod daemon;
pub mod front;
pub mod goodput;
pub mod host;
pub mod mutate;
pub mod net;
pub mod network;
pub mod peers;
pub mod program;
pub mod replay;
pub mod sandbox;
pub mod send;
pub mod web;
pub mod wire;
