//! What drivers announce about XDP: the generic netlink family `netdev`, of
//! Linux 6.3 and later.

use std::collections::BTreeMap;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, Nla as _, NlasIterator,
    Parseable as _, ParseableParametrized,
};
use netlink_packet_generic::{
    GenlFamily, GenlHeader, GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::netlink;

/// Numbers of include/uapi/linux/netdev.h.
const FAMILY: &str = "netdev";
const DEV_GET: u8 = 1;
const IFINDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
/// Bits of the features: programs at all, and frames of several buffers.
const BASIC: u64 = 1;
const RX_SG: u64 = 1 << 5;

/// What a driver announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    /// Native XDP, with its present settings.
    pub(super) native: bool,
    /// Native XDP on frames that need several buffers.
    pub(super) jumbo: bool,
}

/// A question about devices, or what is said of one.
#[derive(Debug)]
struct Device(Vec<DefaultNla>);

/// By the index of the interface; empty if this kernel does not say.
pub(super) fn features() -> BTreeMap<u32, Features> {
    family().and_then(devices).unwrap_or_default()
}

/// Number of the family.
fn family() -> Option<u16> {
    let question = GenlMessage::from_payload(GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(FAMILY.into())],
    });
    let answers = netlink::request(NETLINK_GENERIC, NLM_F_ACK, question).ok()?;
    answers.into_iter().flat_map(|answer| answer.payload.nlas).find_map(|fact| match fact {
        GenlCtrlAttrs::FamilyId(number) => Some(number),
        _ => None,
    })
}

fn devices(family: u16) -> Option<BTreeMap<u32, Features>> {
    let mut question = GenlMessage::from_payload(Device(Vec::new()));
    question.set_resolved_family_id(family);
    let answers = netlink::request(NETLINK_GENERIC, NLM_F_DUMP, question).ok()?;
    Some(answers.iter().filter_map(|answer| answer.payload.features()).collect())
}

impl Device {
    fn features(&self) -> Option<(u32, Features)> {
        let value = |kind| self.0.iter().find(|fact| fact.kind() == kind).map(value_of);
        let index = u32::from_ne_bytes(value(IFINDEX)?.try_into().ok()?);
        let bits = u64::from_ne_bytes(value(XDP_FEATURES)?.try_into().ok()?);
        let has = |bit: u64| bits & bit != 0;
        Some((index, Features { native: has(BASIC), jumbo: has(BASIC) && has(RX_SG) }))
    }
}

fn value_of(fact: &DefaultNla) -> Vec<u8> {
    let mut value = vec![0; fact.value_len()];
    fact.emit_value(&mut value);
    value
}

impl GenlFamily for Device {
    fn family_name() -> &'static str {
        FAMILY
    }

    fn command(&self) -> u8 {
        DEV_GET
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Device {
    fn buffer_len(&self) -> usize {
        self.0.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Device {
    fn parse_with_param(bytes: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        let facts = NlasIterator::new(bytes).map(|fact| DefaultNla::parse(&fact?));
        Ok(Self(facts.collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(bytes: &[u8]) -> Option<(u32, Features)> {
        let header = GenlHeader { cmd: DEV_GET, version: 1 };
        Device::parse_with_param(bytes, header).ok()?.features()
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let facts = Device(vec![DefaultNla::new(kind, value.to_vec())]);
        let mut bytes = vec![0; facts.buffer_len()];
        facts.emit(&mut bytes);
        bytes
    }

    #[test]
    fn features_are_read_or_unknown() {
        let index = attribute(IFINDEX, &7u32.to_ne_bytes());
        let features = |bits: u64| attribute(XDP_FEATURES, &bits.to_ne_bytes());
        for (bits, native, jumbo) in [
            (0, false, false),
            (BASIC, true, false),
            (BASIC | RX_SG, true, true),
            (RX_SG, false, false),
        ] {
            let bytes = [index.clone(), features(bits), attribute(99, &[1])].concat();
            assert_eq!(device(&bytes), Some((7, Features { native, jumbo })));
        }
        for bytes in [Vec::new(), index.clone(), features(1), vec![1], vec![0xff; 7]] {
            assert_eq!(device(&bytes), None, "{bytes:?}");
        }
        let short = [index, attribute(XDP_FEATURES, &[1])].concat();
        assert_eq!(device(&short), None);
    }

    #[test]
    fn the_kernel_is_asked() {
        // Loopback, the first interface everywhere, has no native XDP.
        if let Some(loopback) = features().get(&1) {
            assert!(!loopback.native);
        }
    }
}
