//! The metrics, in the text format of Prometheus.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use limiter_common::{
    lists,
    stats::Counter,
    verdict::{Reason, Verdict},
};
use prometheus::{
    Encoder, GaugeVec, IntCounterVec, Opts, TextEncoder, core::Collector, proto::MetricFamily,
};

use super::fresh::Fresh;
use crate::{plane::Mode, server::Shared, service::Figures};

/// Type of that format.
pub(super) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// What was collected last.
pub(super) struct Metrics {
    started: SystemTime,
    collected: Fresh<String>,
    errors: AtomicU64,
}

impl Metrics {
    /// Of a daemon that starts now.
    pub(super) fn new() -> Self {
        Self { started: SystemTime::now(), collected: Fresh::new(), errors: AtomicU64::new(0) }
    }

    /// All metrics, as they were within the last second.
    pub(super) async fn text(&self, shared: &Shared) -> String {
        self.collected.get(self.collect(shared)).await
    }

    async fn collect(&self, shared: &Shared) -> String {
        let figures = match shared.figures().await {
            Ok(figures) => Some(figures),
            Err(error) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("the metrics are incomplete: {error}");
                None
            }
        };
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut families = Families::default();
        let (attack, attacks) = shared.traffic.attack();
        families.gauge("attack", ATTACK, &[], [(vec![], f64::from(u8::from(attack.is_some())))]);
        families.counter("attacks_total", ATTACKS, &[], [(vec![], attacks)]);
        families.counter("events_lost_total", LOST, &[], [(vec![], shared.traffic.lost())]);
        if let Some(figures) = &figures {
            families.of(figures, started);
        }
        let errors = self.errors.load(Ordering::Relaxed);
        // At the end, where nothing that failed can have kept it from.
        families.counter("collection_errors_total", ERRORS, &[], [(vec![], errors)]);
        families.text()
    }
}

const ATTACK: &str = "Whether an attack goes on: more is dropped, or would be, than [attack] says.";
const ATTACKS: &str = "Attacks that began, since the daemon started.";
const LOST: &str = "Samples of packets that the kernel had no room for, since the load.";
const ERRORS: &str = "Collections of these metrics that failed, since the daemon started.";

/// Metrics in the order in which they are shown.
#[derive(Default)]
struct Families(Vec<MetricFamily>);

type Series<'a, T> = (Vec<&'a str>, T);

impl Families {
    fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        series: impl IntoIterator<Item = Series<'a, u64>>,
    ) {
        // Names and labels are constants, which a test has tried.
        let Ok(counters) = IntCounterVec::new(opts(name, help), labels) else {
            return;
        };
        for (values, value) in series {
            counters.with_label_values(&values).inc_by(value);
        }
        self.add(counters.collect());
    }

    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        series: impl IntoIterator<Item = Series<'a, f64>>,
    ) {
        let Ok(gauges) = GaugeVec::new(opts(name, help), labels) else {
            return;
        };
        for (values, value) in series {
            gauges.with_label_values(&values).set(value);
        }
        self.add(gauges.collect());
    }

    fn add(&mut self, families: Vec<MetricFamily>) {
        // One without a series has nothing to say.
        self.0.extend(families.into_iter().filter(|family| !family.get_metric().is_empty()));
    }

    fn text(&self) -> String {
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.0, &mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("# {error}\n"),
        }
    }

    fn of(&mut self, figures: &Figures, started: Duration) {
        self.of_packets(figures);
        self.of_interfaces(figures);
        self.of_configuration(figures);
        self.of_maps(figures);
        self.of_daemon(figures, started);
    }

    fn of_packets(&mut self, figures: &Figures) {
        let counts: Vec<_> = figures
            .interfaces
            .iter()
            .flat_map(|(name, counts)| {
                by_reason(counts).into_iter().map(|(verdict, reason, counter)| {
                    (vec![name.as_str(), verdict.name(), reason.name()], counter)
                })
            })
            .collect();
        let of = |value: fn(&Counter) -> u64| {
            counts.iter().map(move |(labels, counter)| (labels.clone(), value(counter)))
        };
        let labels = &["interface", "verdict", "reason"];
        let help = "Packets by what happened to them and why; would_drop passed because nothing \
                    is enforced.";
        self.counter("packets_total", help, labels, of(|it| it.packets));
        let help = "Bytes of the same packets, from the Ethernet header on.";
        self.counter("bytes_total", help, labels, of(|it| it.bytes));

        let of_policy = |value: fn(&crate::api::Count) -> u64| {
            figures.policies.iter().flat_map(move |policy| {
                let name = policy.name.as_str();
                let observed = value(&policy.would_drop);
                [
                    (vec![name, Verdict::Pass.name()], value(&policy.passed) - observed),
                    (vec![name, Verdict::Drop.name()], value(&policy.dropped)),
                    (vec![name, Verdict::WouldDrop.name()], observed),
                ]
            })
        };
        let labels = &["policy", "verdict"];
        let help = "Packets that a policy decided about.";
        self.counter("policy_packets_total", help, labels, of_policy(|it| it.packets));
        let help = "Bytes of the same packets, from the Ethernet header on.";
        self.counter("policy_bytes_total", help, labels, of_policy(|it| it.bytes));
    }

    fn of_interfaces(&mut self, figures: &Figures) {
        let interfaces = &figures.status.interfaces;
        let modes = interfaces.iter().flat_map(|interface| {
            Mode::ALL.into_iter().map(|mode| {
                let is = interface.attached && interface.mode == mode.name();
                (vec![interface.name.as_str(), mode.name()], number(is))
            })
        });
        let help = "1 for the mode in which the program runs: in the driver (native) or not.";
        self.gauge("xdp_mode", help, &["interface", "mode"], modes);
        let attached = interfaces.iter().map(|it| (vec![it.name.as_str()], number(it.attached)));
        let help = "Whether the program is on the interface.";
        self.gauge("attached", help, &["interface"], attached);
    }

    fn of_configuration(&mut self, figures: &Figures) {
        let status = &figures.status;
        let mut one = |name, help, value| self.gauge(name, help, &[], [(vec![], value)]);
        one("config_generation", "Number of the rule set in force.", float(status.generation));
        let help = "Whether the configuration file was applied when it was read last.";
        one("config_last_reload_successful", help, number(status.config.last_reload_successful));
        let help = "Whether the configuration file has changed since it was read.";
        one("config_changed_on_disk", help, number(status.config.changed_on_disk));
        let help = "Whether a change waits to be confirmed.";
        one("confirm_pending", help, number(status.confirm.pending));
        let help = "Whether nothing is dropped at all, whatever the policies say.";
        one("observe", help, number(status.observe));
        let origins = |listed: crate::service::Listed| {
            [
                (vec!["config"], float(listed.config as u64)),
                (vec!["operator"], float(listed.operator as u64)),
            ]
        };
        self.gauge("bans", "Banned prefixes.", &["origin"], origins(figures.bans));
        self.gauge("allows", "Allowed prefixes.", &["origin"], origins(figures.allows));
    }

    fn of_maps(&mut self, figures: &Figures) {
        let memory = figures.status.memory;
        let capacities = [
            (vec!["sources4"], f64::from(memory.max_sources)),
            (vec!["sources6"], f64::from(memory.max_sources)),
            (vec!["lists"], f64::from(lists::MAX_ENTRIES)),
        ];
        self.gauge("map_capacity", "Entries that a map has room for.", &["map"], capacities);
        let help = "Memory of all maps.";
        self.gauge("maps_bytes", help, &[], [(vec![], float(memory.maps_bytes))]);
        let met = |reason: Reason| {
            let counts = figures.interfaces.iter().flat_map(|(_, counts)| counts);
            counts.filter(|it| it.reason == reason).map(|it| it.counter.packets).sum::<u64>()
        };
        let errors = [
            (vec!["sources", "full"], met(Reason::MapFull)),
            (vec!["sources", "contended"], met(Reason::Contended)),
            (vec!["rules", "missing"], met(Reason::Internal)),
        ];
        let help = "Packets that met a map in trouble: full for a new source, contended by CPUs, \
                    or without rules.";
        self.counter("map_errors_total", help, &["map", "error"], errors);
    }

    fn of_daemon(&mut self, figures: &Figures, started: Duration) {
        let status = &figures.status;
        let build = vec![status.version.as_str(), status.object_sha256.as_str()];
        let help = "1, with the version of the daemon and the hash of its BPF object.";
        self.gauge("build_info", help, &["version", "object_sha256"], [(build, 1.0)]);
        let mut one = |name, help, value| self.gauge(name, help, &[], [(vec![], value)]);
        one("healthy", "Whether nothing is wrong with the shield.", number(status.health == "ok"));
        one(
            "start_time_seconds",
            "When the daemon started, seconds since 1970.",
            started.as_secs_f64(),
        );
    }
}

/// Sums over policies. Those that nothing was counted of are among them, so that
/// the first packet of a kind is an increase.
fn by_reason(counts: &[crate::plane::Count]) -> Vec<(Verdict, Reason, Counter)> {
    let mut sums = HashMap::<(Verdict, Reason), Counter>::new();
    for reason in Reason::ALL {
        sums.entry((reason.verdict(), reason)).or_default();
        if reason.verdict() == Verdict::Drop {
            sums.entry((Verdict::WouldDrop, reason)).or_default();
        }
    }
    for count in counts {
        let sum = sums.entry((count.verdict, count.reason)).or_default();
        sum.packets += count.counter.packets;
        sum.bytes += count.counter.bytes;
    }
    sums.into_iter().map(|((verdict, reason), sum)| (verdict, reason, sum)).collect()
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("limiterd")
}

fn number(is: bool) -> f64 {
    f64::from(u8::from(is))
}

#[expect(clippy::cast_precision_loss, reason = "a double is what the format has")]
const fn float(number: u64) -> f64 {
    number as f64
}
