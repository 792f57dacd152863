//! Rules on what counts as a source, and on the memory of all.

use super::Rules;
use crate::{
    bytes::Amount,
    config::Host,
    sizing::{Sizing, Wish},
};

/// A host owns a whole prefix of this length.
const IPV6_HOST: u8 = 64;

impl Rules<'_> {
    pub(super) fn sources(&mut self, host: &Host) {
        let sources = &self.config.sources;
        if sources.ipv6_prefix > IPV6_HOST {
            self.warning(
                self.tree.value("sources.ipv6_prefix"),
                format!("one host is many sources of /{}", sources.ipv6_prefix),
                "a host owns a /64 and can send from each address in it; write 64 or less",
            );
        }
        let wish = match (sources.max_sources, sources.memory) {
            (Some(_), Some(_)) => {
                let [one, other] =
                    ["sources.max_sources", "sources.memory"].map(|place| self.tree.key(place));
                let later = if one.start > other.start { one } else { other };
                let message = "`max_sources` and `memory` say the same in two ways";
                return self.error(later, message, "keep one of them");
            }
            (Some(sources), None) => Wish::Sources(sources),
            (None, Some(Amount(bytes))) => Wish::Memory(bytes),
            (None, None) => Wish::Default,
        };
        let place = match wish {
            Wish::Sources(_) => "sources.max_sources",
            Wish::Memory(_) => "sources.memory",
            Wish::Default => "sources",
        };
        let span = self.tree.value(place);
        let interfaces = u32::try_from(self.config.daemon.interfaces.len()).unwrap_or(u32::MAX);
        let sizing = match Sizing::new(host.cpus, interfaces.max(1), wish) {
            Ok(sizing) => sizing,
            Err(error) => {
                // Its mend names the options of the command line.
                let hint = error.hint.unwrap_or_default().replace("--max-sources", "`max_sources`");
                let hint = hint.replace("--memory", "`memory`");
                return self.error(span, error.message, hint);
            }
        };
        let Some(memory) = host.memory_bytes else { return };
        if sizing.maps_bytes > memory / 2 {
            let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
            self.error(
                span,
                format!(
                    "{} sources of each family take {} MiB, more than half of this machine's \
                     {} MiB",
                    sizing.max_sources,
                    mebibytes(sizing.maps_bytes),
                    memory >> 20
                ),
                "set `max_sources` or `memory` in [sources] to less",
            );
        }
    }
}
