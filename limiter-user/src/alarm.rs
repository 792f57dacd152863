//! Tells others of attacks: by a command, by a webhook.
//!
//! One after the other, with a pause, each for a limited time: whoever is told
//! can neither be flooded nor hold anything up.

use std::{process::Stdio, time::Duration};

use serde::Serialize;
use tokio::{
    io::AsyncWriteExt as _,
    process::Command,
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
    time::{sleep, timeout},
};

use crate::{
    api::{SCHEMA_VERSION, What},
    config,
};

/// For how long a command or a webhook may run.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two alarms.
const PAUSE: Duration = Duration::from_secs(1);
/// Alarms that may wait.
const WAITING: usize = 16;

/// What is told.
#[derive(Debug, Serialize)]
struct Facts<'a> {
    schema_version: u32,
    host: String,
    #[serde(flatten)]
    what: &'a What,
}

/// An alarm, and who is told.
#[derive(Debug)]
struct Alarm {
    config: config::Attack,
    event: &'static str,
    facts: String,
}

/// Where alarms are put.
#[derive(Clone, Debug)]
pub(crate) struct Alarms(Sender<Alarm>);

/// Where they come from.
#[derive(Debug)]
pub(crate) struct Waiting(Receiver<Alarm>);

/// Both ends.
pub(crate) fn alarms() -> (Alarms, Waiting) {
    let (send, receive) = channel(WAITING);
    (Alarms(send), Waiting(receive))
}

impl Alarms {
    /// Writes a line to the log, and tells those that the configuration names.
    pub(crate) fn raise(&self, config: &config::Attack, what: &What) {
        let (event, attack) = match what {
            What::AttackBegins(attack) => ("attack_begins", attack),
            What::AttackEnds(attack) => ("attack_ends", attack),
            What::Packet(_) => return,
        };
        let reason = attack.reasons.first().map_or("", |reason| &reason.reason);
        let source = attack.sources.first().map_or("", |source| &source.source);
        let words = match (event, attack.observed) {
            ("attack_begins", false) => "attack begins",
            ("attack_begins", true) => "attack begins; it is observed, nothing is dropped",
            _ => "attack is over",
        };
        tracing::warn!(
            event,
            pps = attack.dropped_pps.round(),
            peak_pps = attack.peak_pps.round(),
            packets = attack.packets,
            seconds = attack.duration_seconds,
            reason,
            source,
            "{words}"
        );
        if config.command.is_empty() && config.webhook.is_none() {
            return;
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let facts = Facts { schema_version: SCHEMA_VERSION, host, what };
        let facts = serde_json::to_string(&facts).unwrap_or_default();
        match self.0.try_send(Alarm { config: config.clone(), event, facts }) {
            Err(TrySendError::Full(_)) => {
                tracing::warn!("too many alarms wait; nobody is told of this one");
            }
            // Without a receiver, the daemon is about to end.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
        }
    }
}

/// Tells of each alarm, for ever.
pub(crate) async fn tell(mut alarms: Waiting) {
    while let Some(alarm) = alarms.0.recv().await {
        if let Some((program, arguments)) = alarm.config.command.split_first()
            && let Err(problem) = run(&program.0, arguments, alarm.event, &alarm.facts).await
        {
            tracing::warn!("the command for attacks, {}: {problem}", program.0);
        }
        if let Some(url) = &alarm.config.webhook
            && let Err(problem) = post(url.0.clone(), alarm.facts).await
        {
            tracing::warn!("the webhook for attacks, {}: {problem}", url.0);
        }
        sleep(PAUSE).await;
    }
    std::future::pending::<()>().await;
}

/// Runs a command with the facts on its standard input.
async fn run(
    program: &str,
    arguments: &[config::Argument],
    event: &str,
    facts: &str,
) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments.iter().map(|argument| &argument.0)).env("LIMITERD_EVENT", event);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| error.to_string())?;
    let input = child.stdin.take();
    let work = async {
        if let Some(mut input) = input {
            // Whoever does not want to know need not read.
            let _ = input.write_all(facts.as_bytes()).await;
        }
        child.wait().await
    };
    let status = timeout(TIMEOUT, work).await;
    let late = |_| format!("has not ended within {} s, and was killed", TIMEOUT.as_secs());
    match status.map_err(late)?.map_err(|error| error.to_string())? {
        status if status.success() => Ok(()),
        status => Err(status.to_string()),
    }
}

/// Sends the facts to a URL.
async fn post(url: String, facts: String) -> Result<(), String> {
    let work = move || -> Result<(), ureq::Error> {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT));
        let agent: ureq::Agent = config.build().into();
        agent.post(url).content_type("application/json").send(facts).map(|_| ())
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}
