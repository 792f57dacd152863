//! The daemon: loads, attaches, serves, and takes everything off again.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, ValueEnum};
use limiter_user::{
    access::Groups,
    client::Client,
    config::{self, Config, Host},
    doctor,
    error::{Error, Kind, Result},
    gate::Gate,
    numbers::Numbers,
    plane::{self, Options, Plane},
    policies::Policies,
    rate::{Burst, PacketRate},
    server,
    service::{self, Overrides, Service, Startup},
    sizing::{self, Sizing, Wish},
    sockets::{self, Sockets},
};
use tokio::signal::unix::{SignalKind, signal};
use tracing_appender::non_blocking::WorkerGuard;

/// Read if it is there and nothing else is said.
const DEFAULT_CONFIG: &str = "/etc/limiterd/limiterd.toml";

const HELP: &str = "\
Examples:
  limiterd --print-default-config         a configuration to begin with
  limiterd --config limiterd.toml --check what is wrong with it
  limiterd --iface eth0 --observe         count what would be dropped
  limiterd --iface eth0                   the built-in limits
  limiterd --iface eth0 --rate 5k/s       5,000 packets/s for each source
  limiterd --detach                       take everything off

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 5 permission, 6 invalid value";

/// Drops floods in the network driver: a token bucket for every source.
///
/// Without a configuration and without --rate, the built-in profile limits each
/// source by the kind of its packets. Ctrl-C takes the protection off, unless
/// the configuration says on_stop = "keep"; kill -9 leaves it in force. SIGHUP
/// reads the configuration again.
#[derive(Parser)]
#[command(name = "limiterd", version, after_help = HELP)]
struct Arguments {
    /// Interface to protect; may be given several times [default: those of the
    /// configuration]
    #[arg(long = "iface", value_name = "NAME")]
    interfaces: Vec<String>,

    /// Configuration file; what the command line says is in place of it
    /// [default: /etc/limiterd/limiterd.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// One limit for every packet, in place of a configuration: packets per
    /// time and source, such as 500, 2.5k/s, 90/m or 1/day
    #[arg(long, value_name = "RATE", allow_hyphen_values = true, conflicts_with = "config")]
    rate: Option<String>,

    /// Packets in a row that a source may send, such as 200 or 10k [default:
    /// one second of the rate]
    #[arg(long, value_name = "PACKETS", requires = "rate", allow_hyphen_values = true)]
    burst: Option<String>,

    /// Count what would be dropped, and drop nothing
    #[arg(long)]
    observe: bool,

    /// Where in the stack to run: native (in the driver), generic (slower), or
    /// native where the driver can [default: auto]
    #[arg(long, value_enum)]
    xdp_mode: Option<XdpMode>,

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

    /// Say what is wrong with the configuration, and exit
    #[arg(long)]
    check: bool,

    /// Print a configuration in which every key is explained, and exit
    #[arg(long, exclusive = true)]
    print_default_config: bool,

    /// Print the JSON Schema of the configuration, and exit
    #[arg(long, exclusive = true)]
    print_config_schema: bool,

    /// Remove every link and pin of limiterd, also those of a killed daemon,
    /// and exit
    #[arg(long, conflicts_with_all = ["interfaces", "config", "check", "rate", "observe", "max_sources", "memory", "new_sources", "untracked"])]
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
    // Written until the end of this function.
    let _log = start_log(format);
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

/// Starts the log, which is written as long as the returned value lives. When
/// nobody reads it any more, or not fast enough, the shield goes on without.
fn start_log(format: LogFormat) -> WorkerGuard {
    use std::io::IsTerminal as _;
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    let log =
        tracing_subscriber::fmt().with_writer(writer).with_target(false).log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    guard
}

async fn run(arguments: Arguments) -> Result<()> {
    if arguments.print_default_config {
        return print(&config::default_text());
    }
    if arguments.print_config_schema {
        return print(&format!("{:#}\n", config::json_schema()));
    }
    if arguments.detach {
        return detach(&arguments).await;
    }
    // Everything that can be wrong about what was typed, before anything that
    // can be wrong about the machine.
    let startup = startup(&arguments)?;
    let policies = policies(&arguments, &startup)?;
    let settings = startup.overrides.over(policies.config());
    if arguments.check {
        tracing::info!("the configuration is valid: {} policies", policies.all().len());
        return Ok(());
    }
    let interfaces = distinct(&settings.daemon.interfaces)?;
    let sizing = sizing(&settings, interfaces.len())?;
    let groups = Groups::named(
        settings.daemon.admin_group.as_deref(),
        settings.daemon.view_group.as_deref(),
    )?;
    let mut numbers = Numbers::default();
    let (numbered, _) = numbers.assign(policies.names());
    let rules = policies.compile_as(&numbered, sizing, &interfaces)?;
    doctor::require(&arguments.pin_dir)?;
    let options = Options { pin_dir: arguments.pin_dir.clone(), interfaces, sizing, fixed: None };
    let mut plane = Plane::load(&options, &rules)?;
    let sockets = Sockets::listen(&arguments.socket, groups)?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let hangup = listen(SignalKind::hangup())?;
    let reports = plane.forward_reports();
    plane.attach(match settings.daemon.xdp_mode {
        config::XdpMode::Auto => plane::Wish::Auto,
        config::XdpMode::Native => plane::Wish::Native,
        config::XdpMode::Generic => plane::Wish::Generic,
    })?;
    // What it was kept for has been done.
    let _ = std::fs::remove_file(&startup.previous);
    announce(&plane, &policies, &arguments);
    let service = Service::new(plane, policies, numbers, startup);
    let shutdown = async move {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        tracing::info!("{name}: stopping");
    };
    let left = server::serve(sockets, service, hangup, shutdown).await;
    drop(reports);
    match left? {
        Some(service) if service.keeps_protection() => {
            tracing::info!("the protection stays in force; limiterd --detach takes it off");
        }
        Some(service) => {
            let names = service.detach()?;
            tracing::info!("detached from {}", names.join(", "));
        }
        None => {}
    }
    Ok(())
}

fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever read has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => {
            result.map_err(|error| Error::failed(format!("cannot write the output: {error}")))
        }
    }
}

/// What the command line says.
fn startup(arguments: &Arguments) -> Result<Startup> {
    let max_sources = arguments.max_sources.as_deref().map(sizing::sources);
    let default = Path::new(DEFAULT_CONFIG);
    let is_default = arguments.rate.is_none() && default.exists();
    let file = arguments.config.clone().or_else(|| is_default.then(|| default.to_owned()));
    let overrides = Overrides {
        interfaces: arguments.interfaces.clone(),
        xdp_mode: arguments.xdp_mode.map(|mode| match mode {
            XdpMode::Auto => config::XdpMode::Auto,
            XdpMode::Native => config::XdpMode::Native,
            XdpMode::Generic => config::XdpMode::Generic,
        }),
        metrics: None,
        max_sources: max_sources.transpose()?,
        memory: arguments.memory.as_deref().map(str::parse).transpose()?,
        gate: Gate {
            new_sources: arguments.new_sources.as_deref().map(str::parse).transpose()?,
            untracked: arguments.untracked.as_deref().map(str::parse).transpose()?,
        },
    };
    let previous = arguments.socket.with_file_name("previous.toml");
    Ok(Startup { file, overrides, observe: arguments.observe, previous })
}

/// The policies to begin with: of the command line, of the file, or the
/// built-in ones; but of what was in force before, if what came after it was
/// never confirmed.
fn policies(arguments: &Arguments, startup: &Startup) -> Result<Policies> {
    let observe = arguments.observe;
    let policies = match (&arguments.rate, &startup.file) {
        (Some(rate), _) => {
            let rate: PacketRate = rate.parse()?;
            let burst = arguments.burst.as_deref().map(str::parse::<Burst>).transpose()?;
            Policies::single(rate, burst.unwrap_or_else(|| rate.one_second()), observe)
        }
        (None, Some(file)) => Policies::new(configuration(file)?, observe),
        (None, None) => Policies::builtin(observe),
    };
    let has_interface = |policies: &Policies| {
        let settings = startup.overrides.over(policies.config());
        !settings.daemon.interfaces.is_empty()
    };
    if !has_interface(&policies) && !arguments.check {
        return Err(Error::new(Kind::Usage, "no interface is named")
            .hint("name one with --iface, or in the configuration; ip link lists them"));
    }
    let policies = policies.with_gate(startup.overrides.gate);
    if arguments.check || !plane::left_unconfirmed(&arguments.pin_dir) {
        return Ok(policies);
    }
    match configuration(&startup.previous) {
        Ok(config) => {
            let before = Policies::new(config, observe).with_gate(startup.overrides.gate);
            tracing::warn!("nobody confirmed the last change: the rules before it are in force");
            Ok(if has_interface(&before) { before } else { policies })
        }
        Err(error) => {
            tracing::warn!(
                "nobody confirmed the last change, and the rules before it are lost: {error}"
            );
            Ok(policies)
        }
    }
}

/// Reads a configuration; warnings go to the log, all errors to the terminal.
fn configuration(file: &Path) -> Result<Config> {
    let text = service::read_text(file)?;
    let name = file.display().to_string();
    match config::parse(&text, &name, &Host::here()) {
        Ok((config, report)) => {
            if !report.diagnostics.is_empty() {
                eprint!("{report}");
            }
            Ok(config)
        }
        Err(report) => {
            eprint!("{report}");
            let errors = report.errors();
            let count = if errors == 1 { "one error".into() } else { format!("{errors} errors") };
            Err(Error::new(Kind::Invalid, format!("{name} has {count}")).hint("see above"))
        }
    }
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

fn sizing(config: &Config, interfaces: usize) -> Result<Sizing> {
    let wish = match (config.sources.max_sources, config.sources.memory) {
        (Some(sources), _) => Wish::Sources(sources),
        (None, Some(memory)) => Wish::Memory(memory.0),
        (None, None) => Wish::Default,
    };
    Sizing::new(Host::here().cpus, u32::try_from(interfaces).unwrap_or(u32::MAX), wish)
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
        for warning in doctor::warnings([(&*attached.name, attached.mode)]) {
            tracing::warn!("{}", warning.text());
        }
    }
    let gate = policies.gate();
    tracing::info!(
        "new sources: {} get a bucket, the others share {}",
        gate.new_sources(sizing),
        gate.untracked(sizing)
    );
    for policy in policies.all() {
        if let Some((rate, burst)) = policy.source().packets {
            tracing::info!("policy {}: {rate} per source, burst {burst}", policy.name);
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
