//! The table of packets on the core: no privilege needed.

use limiter_common::{
    frame::Linear,
    level::{Level, Number, limit_number},
    parse::{Kind, Parsed, parse},
    source::{Address, Key as _, Key4, Key6, SourcePrefix},
};
use limiter_tests::cases::{Case, Expected, cases, one_packet_each};

use limiter_user::machine::Machine;

const ROOM: usize = 16;
const NOW: u64 = 1_000_000_000_000_000;

fn address(text: &str) -> Address {
    match text.parse().unwrap() {
        std::net::IpAddr::V4(address) => Address::from_ipv4(address.octets()),
        std::net::IpAddr::V6(address) => Address::from_ipv6(address.octets()),
    }
}

fn parsed(case: &Case, length: usize) -> Expected {
    match parse(&Linear(&case.bytes[..length])) {
        Ok(Parsed::NotIp) => Expected::NotIp,
        Ok(Parsed::Neighbour) => Expected::Neighbour,
        Ok(Parsed::Ip(packet)) => {
            assert_eq!(packet.length as usize, length, "{}", case.name);
            // The table's text, if it names that source.
            let text = match case.expected {
                Expected::Limited(_, text) if address(text) == packet.source => text,
                _ => "another source",
            };
            Expected::Limited(packet.shape.kind, text)
        }
        Err(defect) => Expected::Malformed(defect),
    }
}

/// Number of the limit of a source's packets in the policy of its kind.
fn first_limit(kind: Kind) -> u32 {
    limit_number(Number::new(kind as u32, 0), Level::SourcePackets)
}

#[test]
fn every_case_parses_as_the_table_says() {
    for case in cases() {
        assert_eq!(parsed(&case, case.bytes.len()), case.expected, "{}", case.name);
    }
}

#[test]
fn names_of_cases_are_distinct() {
    let mut seen = std::collections::HashSet::new();
    for case in cases() {
        assert!(seen.insert((case.name, case.bytes.clone())), "{} stands twice", case.name);
    }
}

#[test]
fn every_truncation_of_a_valid_case_is_malformed() {
    for case in cases() {
        for length in 0..=case.bytes.len() {
            let found = parsed(&case, length);
            match (case.expected_of_prefix(length), found) {
                // Where the cut falls decides which of the two it is.
                (Expected::Malformed(_), Expected::Malformed(_)) => {}
                (expected, found) => {
                    assert_eq!(found, expected, "{} cut to {length} bytes", case.name);
                }
            }
        }
    }
}

#[test]
fn every_case_is_decided_and_charged_as_the_table_says() {
    for observe in [false, true] {
        for case in cases() {
            let machine = Machine::new(2, ROOM, one_packet_each(2, observe));
            for first in [true, false] {
                let expected = case.decision(case.expected, case.bytes.len(), first, observe);
                assert_eq!(machine.receive(0, NOW, &case.bytes), expected, "{}", case.name);
            }
            let (four, six) = machine.keys();
            match case.expected {
                Expected::Limited(kind, text) => match address(text) {
                    Address::V4(address) => {
                        let key = Key4::new(address, &SourcePrefix::DEFAULT, first_limit(kind));
                        assert_eq!((four, six), (vec![key], vec![]), "{}", case.name);
                    }
                    Address::V6(address) => {
                        let key = Key6::new(address, &SourcePrefix::DEFAULT, first_limit(kind));
                        assert_eq!((four, six), (vec![], vec![key]), "{}", case.name);
                    }
                },
                _ => assert!(four.is_empty() && six.is_empty(), "{} has a bucket", case.name),
            }
        }
    }
}
