//! The polite client: oha, open-loop, each request over a new connection.

use std::{collections::BTreeMap, process::Stdio};

use serde::Deserialize;

use crate::{
    goodput::place::SERVER_CPU,
    host::{Host, Running},
    net::SERVER4,
    web::PORT,
};

/// Requests per second, from all users together.
pub const REQUESTS: u32 = 200;
/// Longer than that, and a person has gone away.
const PATIENCE: u32 = 2;

/// What became of the requests.
#[derive(Clone, Copy, Debug)]
pub struct Answers {
    /// Requests made.
    pub requests: u32,
    /// Those answered in time with the page.
    pub answered: u32,
    /// Median latency of those, connecting included, in seconds.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// The slowest.
    pub max: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    summary: Summary,
    latency_percentiles: Percentiles,
    status_code_distribution: BTreeMap<String, u32>,
}

#[derive(Deserialize)]
struct Summary {
    slowest: Option<f64>,
}

#[derive(Deserialize)]
struct Percentiles {
    p50: Option<f64>,
    p99: Option<f64>,
}

/// Makes requests from a host for so many seconds, at their due times whatever
/// becomes of those before, and waits for the last.
///
/// # Panics
/// If oha fails.
#[must_use]
pub fn ask(host: &Host, seconds: u32) -> Answers {
    let requests = REQUESTS * seconds;
    let mut command = host.command("taskset");
    command.args(["-c", &others(SERVER_CPU), "oha", "--no-tui", "--output-format", "json"]);
    command.args(["--disable-keepalive", "--latency-correction", "--worker-threads", "1"]);
    command.args(["-n", &requests.to_string(), "-q", &REQUESTS.to_string()]);
    // More connections than can be open at a time, so that none is waited for.
    command.args(["-c", &(REQUESTS * (PATIENCE + 1)).to_string()]);
    command.args(["-t", &format!("{PATIENCE}s"), &format!("http://{SERVER4}:{PORT}/")]);
    let output = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped())).wait();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "oha: {}\n{errors}", output.status);
    let output: Output = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("what oha printed is not understood: {error}"));
    let answered = output.status_code_distribution.get("200").copied().unwrap_or(0);
    let known = |value: Option<f64>| value.filter(|_| answered > 0);
    Answers {
        requests,
        answered,
        p50: known(output.latency_percentiles.p50),
        p99: known(output.latency_percentiles.p99),
        max: known(output.summary.slowest),
    }
}

/// All CPUs but one, as a list for taskset.
fn others(cpu: usize) -> String {
    let all = std::thread::available_parallelism().expect("the number of CPUs").get();
    let others = (0..all).filter(|other| *other != cpu).map(|other| other.to_string());
    others.collect::<Vec<_>>().join(",")
}
