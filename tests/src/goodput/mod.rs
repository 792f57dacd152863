//! Goodput: what a polite client gets from a real web server while a flood
//! runs, under one shield or another.

pub mod client;
pub mod flood;
pub mod place;
pub mod plot;
pub mod report;
pub mod shield;
pub mod site;
