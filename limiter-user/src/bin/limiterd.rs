//! The daemon: loads, attaches, serves, and takes everything off again.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum};
use limiter_user::{
    bytes::Amount,
    client::Client,
    error::{Error, Kind, Result},
    gate::Gate,
    plane::{self, Options, Plane},
    policies::Policies,
    preflight,
    rate::{Burst, PacketRate},
    server,
    service::Service,
    sizing::{Sizing, Wish},
    sockets::{self, Sockets},
};
use tokio::signal::unix::{SignalKind, signal};

const HELP: &str = "\
Examples:
  limiterd --iface eth0 --observe         count what would be dropped
  limiterd --iface eth0                   the built-in limits
  limiterd --iface eth0 --rate 5k/s       5,000 packets/s for each source
  limiterd --detach                       take everything off

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 5 permission, 6 invalid value";

/// Drops floods in the network driver: a token bucket for every source.
///
/// Without --rate, the built-in profile limits each source by the kind of its
/// packets. Ctrl-C takes the protection off; kill -9 leaves it in force.
#[derive(Parser)]
#[command(name = "limiterd", version, after_help = HELP)]
struct Arguments {
    /// Interface to protect; may be given several times
    #[arg(long = "iface", value_name = "NAME", required_unless_present = "detach")]
    interfaces: Vec<String>,

    /// One limit for every packet: packets per time and source, such as 500,
    /// 2.5k/s, 90/m or 1/day
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,

    /// Packets in a row that a source may send, such as 200 or 10k [default:
    /// one second of the rate]
    #[arg(long, value_name = "PACKETS", requires = "rate", allow_hyphen_values = true)]
    burst: Option<String>,

    /// Count what would be dropped, and drop nothing
    #[arg(long)]
    observe: bool,

    /// Where in the stack to run: native (in the driver), generic (slower), or
    /// native where the driver can
    #[arg(long, value_enum, default_value_t = XdpMode::Auto)]
    xdp_mode: XdpMode,

    /// Sources of each address family that can have a bucket at a time
    /// [default: what fits 64 MiB and 2 MiB more for each CPU]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    max_sources: Option<String>,

    /// The same as memory for both families, such as 64MiB
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, conflicts_with = "max_sources")]
    memory: Option<String>,

    /// New sources that get a bucket, per time, on the whole host [default:
    /// an eighth of the sources that fit, at most 20k/s]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    new_sources: Option<String>,

    /// Packets of all other new sources, per time, on the whole host
    /// [default: 25k/s for each CPU, at most 200k/s]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    untracked: Option<String>,

    /// Control socket; a socket for reading, ro.sock, is made beside it
    #[arg(long, value_name = "PATH", default_value = "/run/limiterd/ctl.sock")]
    socket: PathBuf,

    /// Directory for pins, on a BPF file system
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/limiterd")]
    pin_dir: PathBuf,

    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// Remove every link and pin of limiterd, also those of a killed daemon,
    /// and exit
    #[arg(long, conflicts_with_all = ["interfaces", "rate", "observe", "max_sources", "memory", "new_sources", "untracked"])]
    detach: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum XdpMode {
    Auto,
    Native,
    Generic,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let format = arguments.log_format;
    start_log(format);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = runtime
        .map_err(|error| Error::failed(format!("cannot start: {error}")))
        .and_then(|runtime| runtime.block_on(run(arguments)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match format {
                LogFormat::Text => {
                    // Nobody is left to tell if this fails.
                    let _ = writeln!(std::io::stderr(), "limiterd: {error}");
                }
                LogFormat::Json => tracing::error!("{error}"),
            }
            ExitCode::from(error.kind.exit_code())
        }
    }
}

fn start_log(format: LogFormat) {
    use std::io::IsTerminal as _;
    // When nobody reads the log any more, the shield goes on without.
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    if arguments.detach {
        return detach(&arguments).await;
    }
    // Everything that can be wrong about what was typed, before anything that
    // can be wrong about the machine.
    let policies = policies(&arguments)?;
    let interfaces = distinct(&arguments.interfaces)?;
    let sizing = sizing(&arguments, interfaces.len())?;
    preflight::check(&arguments.pin_dir)?;
    let options = Options { pin_dir: arguments.pin_dir.clone(), interfaces, sizing, fixed: None };
    let mut plane = Plane::load(&options, &policies.compile(sizing)?)?;
    let sockets = Sockets::listen(&arguments.socket)?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let reports = plane.forward_reports();
    plane.attach(match arguments.xdp_mode {
        XdpMode::Auto => plane::Wish::Auto,
        XdpMode::Native => plane::Wish::Native,
        XdpMode::Generic => plane::Wish::Generic,
    })?;
    announce(&plane, &policies, &arguments);
    let service = Service::new(plane, policies);
    let shutdown = async move {
        let name = loop {
            tokio::select! {
                _ = interrupt.recv() => break "SIGINT",
                _ = terminate.recv() => break "SIGTERM",
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: there is no configuration file to read again");
                }
            }
        };
        tracing::info!("{name}: taking the protection off");
    };
    let left = server::serve(sockets, service, shutdown).await;
    drop(reports);
    if let Some(service) = left? {
        let names = service.detach()?;
        tracing::info!("detached from {}", names.join(", "));
    }
    Ok(())
}

fn policies(arguments: &Arguments) -> Result<Policies> {
    let gate = Gate {
        new_sources: arguments.new_sources.as_deref().map(str::parse).transpose()?,
        untracked: arguments.untracked.as_deref().map(str::parse).transpose()?,
    };
    let Some(rate) = &arguments.rate else {
        return Ok(Policies::builtin(arguments.observe).with_gate(gate));
    };
    let rate: PacketRate = rate.parse()?;
    let burst = match &arguments.burst {
        Some(burst) => burst.parse::<Burst>()?,
        None => rate.one_second(),
    };
    Ok(Policies::single(rate, burst, arguments.observe).with_gate(gate))
}

fn distinct(interfaces: &[String]) -> Result<Vec<String>> {
    let mut distinct: Vec<String> = Vec::new();
    for name in interfaces {
        // It is part of file names.
        if name.is_empty() || name.contains('/') {
            return Err(Error::new(
                Kind::NotFound,
                format!("there is no network interface '{name}'"),
            )
            .hint("no interface can have that name; ip link lists those that there are"));
        }
        if !distinct.contains(name) {
            distinct.push(name.clone());
        }
    }
    Ok(distinct)
}

fn sizing(arguments: &Arguments, interfaces: usize) -> Result<Sizing> {
    let cpus = aya::util::nr_cpus()
        .map_err(|(path, error)| Error::failed(format!("cannot read {path}: {error}")))?;
    let wish = match (&arguments.max_sources, &arguments.memory) {
        (Some(text), _) => Wish::Sources(text.parse().map_err(|_| {
            Error::new(Kind::Invalid, format!("'{text}' is no number of sources"))
                .hint("--max-sources takes a whole number such as 65536")
        })?),
        (None, Some(text)) => Wish::Memory(text.parse::<Amount>()?.0),
        (None, None) => Wish::Default,
    };
    let (cpus, interfaces) = (u32::try_from(cpus), u32::try_from(interfaces));
    Sizing::new(cpus.unwrap_or(u32::MAX), interfaces.unwrap_or(u32::MAX), wish)
}

fn listen(kind: SignalKind) -> Result<tokio::signal::unix::Signal> {
    signal(kind).map_err(|error| Error::failed(format!("cannot wait for signals: {error}")))
}

fn announce(plane: &Plane, policies: &Policies, arguments: &Arguments) {
    let sizing = plane.sizing();
    tracing::info!(
        "memory: {:.1} MiB for {} IPv4 and {} IPv6 sources on {} CPUs",
        sizing.maps_bytes as f64 / f64::from(1 << 20),
        sizing.max_sources,
        sizing.max_sources,
        sizing.cpus
    );
    for attached in plane.attached() {
        tracing::info!("{}: protected, {} mode", attached.name, attached.mode);
    }
    let gate = policies.gate();
    tracing::info!(
        "new sources: {} get a bucket, the others share {}",
        gate.new_sources(sizing),
        gate.untracked(sizing)
    );
    for limit in policies.limits() {
        if let Some((rate, burst)) = limit.source.packets {
            tracing::info!("limit {}: {rate} per source, burst {burst}", limit.name);
        }
    }
    if policies.observes() {
        tracing::warn!("observing only: nothing is dropped");
    }
    tracing::info!("ready; control socket {}", arguments.socket.display());
    let _told = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
}

/// Removes everything of ours: through the daemon if one runs, directly if
/// not.
async fn detach(arguments: &Arguments) -> Result<()> {
    match Client::new(&arguments.socket).detach().await {
        Ok(detached) => {
            tracing::info!("the running daemon detached from {}", detached.interfaces.join(", "));
            return Ok(());
        }
        Err(error) if error.kind == Kind::Unreachable => {}
        Err(error) => return Err(error),
    }
    let links = plane::remove_pins(&arguments.pin_dir)?;
    sockets::remove_stale(&arguments.socket);
    match links {
        0 => tracing::info!("nothing of limiterd is attached"),
        1 => tracing::info!("detached from one interface"),
        links => tracing::info!("detached from {links} interfaces"),
    }
    Ok(())
}
