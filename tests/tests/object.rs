//! What the object promises to whoever loads it: no privilege needed.

use std::collections::BTreeMap;

use aya_obj::Object;
use limiter_common::{
    bucket::Bucket,
    class::{CLASSES, PrefixKey, Set},
    control::Control,
    gate::{CELLS, TOTALS},
    lists::{self, ExactKey, Listing},
    policy::{GENERATIONS, Ruleset},
    sample::{Budget, RING_BYTES},
    source::{Key4, Key6},
    stats::{ROWS, Row},
    tracked::WORDS,
};
use limiter_user::{object::LIMITER, plane::PROGRAM};

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const LRU_PERCPU_HASH: u32 = 10;
const LPM_TRIE: u32 = 11;
const RINGBUF: u32 = 27;
/// The kernel cuts longer names.
const LONGEST_NAME: usize = 15;

fn object() -> Object {
    Object::parse(LIMITER.expect("a build with a BPF compiler: cargo xtask build")).expect("ELF")
}

#[test]
fn maps_have_the_types_and_sizes_of_the_core() {
    let size = |bytes: usize| u32::try_from(bytes).unwrap();
    let expected = BTreeMap::from([
        ("SOURCES4", (LRU_PERCPU_HASH, size(size_of::<Key4>()), size(size_of::<Bucket>()))),
        ("SOURCES6", (LRU_PERCPU_HASH, size(size_of::<Key6>()), size(size_of::<Bucket>()))),
        ("TOTALS", (PERCPU_ARRAY, 4, size(size_of::<Bucket>()))),
        ("TRACKED", (ARRAY, 4, 16)),
        ("CELLS", (ARRAY, 4, 8)),
        ("RULES", (ARRAY, 4, size(size_of::<Ruleset>()))),
        ("CONTROL", (ARRAY, 4, size(size_of::<Control>()))),
        ("CLASSES", (ARRAY, 4, size(size_of::<Set>()))),
        ("CLASS_PREFIX", (LPM_TRIE, size(4 + size_of::<PrefixKey>()), size(size_of::<Set>()))),
        ("LISTS_EXACT", (HASH, size(size_of::<ExactKey>()), size(size_of::<Listing>()))),
        ("LISTS_PREFIX", (LPM_TRIE, 4 + 16, size(size_of::<Listing>()))),
        ("LISTED", (ARRAY, 4, 8)),
        ("STATS", (PERCPU_ARRAY, 4, size(size_of::<Row>()))),
        ("REPORTED", (PERCPU_ARRAY, 4, 8)),
        ("EVENTS", (RINGBUF, 0, 0)),
        ("BUDGETS", (PERCPU_ARRAY, 4, size(size_of::<Budget>()))),
    ]);
    let object = object();
    for (name, shape) in expected {
        let map = object.maps.get(name).unwrap_or_else(|| panic!("no map {name}"));
        assert_eq!((map.map_type(), map.key_size(), map.value_size()), shape, "{name}");
        assert!(name.len() <= LONGEST_NAME, "{name}");
    }
    assert_eq!(object.maps["RULES"].max_entries(), GENERATIONS);
    assert_eq!(object.maps["TOTALS"].max_entries(), TOTALS);
    assert_eq!(object.maps["TRACKED"].max_entries(), WORDS);
    assert_eq!(object.maps["CELLS"].max_entries(), CELLS);
    assert_eq!(object.maps["CLASSES"].max_entries(), CLASSES * GENERATIONS);
    assert_eq!(object.maps["LISTED"].max_entries(), lists::WORDS);
    assert_eq!(object.maps["STATS"].max_entries(), ROWS);
    assert_eq!(object.maps["EVENTS"].max_entries(), RING_BYTES);
    assert_eq!(object.maps["BUDGETS"].max_entries(), Budget::COUNT);
    assert_eq!(object.programs.keys().collect::<Vec<_>>(), [PROGRAM]);
    assert_eq!(object.license.to_str(), Ok("Dual MIT/GPL"));
}

/// The object is the same from every checkout and on every machine.
#[test]
fn the_object_names_no_path_of_a_machine() {
    let bytes = LIMITER.expect("a build with a BPF compiler: cargo xtask build");
    let text = String::from_utf8_lossy(bytes);
    let here = env!("CARGO_MANIFEST_DIR").trim_end_matches("tests");
    for path in [here, "/root/", "/home/", ".cargo/registry"] {
        assert!(!text.contains(path), "{path} is in the object");
    }
}
