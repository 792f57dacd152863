//! The parser on bytes that coverage chooses: it never panics, never reads
//! outside of the frame, and never loops without bound.
#![no_main]

use std::cell::Cell;

use libfuzzer_sys::fuzz_target;
use limiter_common::{
    frame::{Frame, Header, Linear},
    parse::{MAX_EXTENSION_HEADERS, MAX_VLAN_TAGS, Parsed, parse},
};

/// Reads of one frame: the type behind each tag, each extension header, and a
/// few fixed headers.
const MOST_READS: u32 = MAX_VLAN_TAGS + MAX_EXTENSION_HEADERS + 8;

/// A frame whose end may lie beyond what is directly readable, and that counts.
struct Counted<'a> {
    head: Linear<'a>,
    whole: u32,
    reads: Cell<u32>,
}

impl Frame for Counted<'_> {
    fn head(&self) -> u32 {
        self.head.head()
    }

    fn whole(&self) -> u32 {
        self.whole
    }

    fn header<T: Header>(&self, offset: u32) -> Option<&T> {
        self.reads.set(self.reads.get() + 1);
        self.head.header(offset)
    }
}

fuzz_target!(|data: &[u8]| {
    // The first two bytes say how much lies beyond.
    let Some((beyond, bytes)) = data.split_first_chunk::<2>() else {
        return;
    };
    let head = Linear(bytes);
    let whole = head.head() + u32::from(u16::from_le_bytes(*beyond));
    let frame = Counted { head, whole, reads: Cell::new(0) };
    if let Ok(Parsed::Ip(packet)) = parse(&frame) {
        // What lies beyond is asked for only where the headers claim it.
        let present = [head.head(), whole];
        assert!(present.contains(&packet.length), "{} of {present:?}", packet.length);
    }
    assert!(frame.reads.get() <= MOST_READS, "{} reads", frame.reads.get());
});
