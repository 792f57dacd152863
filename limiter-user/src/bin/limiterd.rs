//! The daemon: loads, attaches, serves, and takes everything off again.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::{CommandFactory as _, Parser, ValueEnum};
use limiter_user::{
    access::Groups,
    client::Client,
    config::{self, Config, Host},
    doctor,
    error::{Error, Kind, Result},
    gate::Gate,
    log,
    plane::{self, Options, Plane, Reports, Samples},
    policies::Policies,
    privileges,
    rate::{Burst, PacketRate},
    server::{self, Doors},
    service::{self, Overrides, Parts, Service, Startup},
    sizing::{self, Sizing, Wish},
    sockets::{self, Sockets},
    state::{State, Store},
    traffic::Traffic,
    web,
};
use tokio::{
    runtime::{Handle, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};
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

    /// Address at which metrics are served over HTTP, such as 127.0.0.1:9898 or
    /// [::]:9898; off for none [default: 127.0.0.1:9898]
    #[arg(long, value_name = "ADDR|off")]
    metrics: Option<String>,

    /// Directory for pins, on a BPF file system
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/limiterd")]
    pin_dir: PathBuf,

    /// Directory in which bans and changes made at run time are kept over
    /// restarts and reboots; off for none
    #[arg(long, value_name = "DIR", default_value = "/var/lib/limiterd")]
    state_dir: PathBuf,

    /// Drop limits and interfaces that were changed at run time before
    #[arg(long)]
    forget: bool,

    /// Interfaces that can be protected in addition while it runs
    #[arg(long, value_name = "N", default_value_t = plane::DEFAULT_SPARES, value_parser = clap::value_parser!(u32).range(0..=16))]
    spare_interfaces: u32,

    /// Packets of each reason that are shown, per second on the whole host: by
    /// events, top, capture and suggest; 0 for none
    #[arg(long, value_name = "N", default_value_t = plane::DEFAULT_SAMPLES, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    samples: u32,

    /// Form of the log on standard error
    #[arg(long, value_enum, default_value_t = log::Format::Text)]
    log_format: log::Format,

    /// Say what is wrong with the configuration, and exit
    #[arg(long)]
    check: bool,

    /// Print a configuration in which every key is explained, and exit
    #[arg(long, exclusive = true)]
    print_default_config: bool,

    /// Print the JSON Schema of the configuration, and exit
    #[arg(long, exclusive = true)]
    print_config_schema: bool,

    /// Print the manual page, and exit
    #[arg(long, exclusive = true)]
    print_manual: bool,

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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let format = arguments.log_format;
    let (result, _log) = if arguments.detach {
        // The pins may be another user's.
        let log = log::start(format);
        let result = runtime().and_then(|runtime| runtime.block_on(detach(&arguments)));
        (result, log)
    } else {
        run(arguments, format)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match format {
                log::Format::Text => {
                    // Nobody is left to tell if this fails.
                    let _ = writeln!(std::io::stderr(), "limiterd: {error}");
                }
                log::Format::Json => tracing::error!("{error}"),
            }
            ExitCode::from(error.kind.exit_code())
        }
    }
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("cannot start: {error}")))
}

/// Starts on a thread of its own, the only one that ever has privileges; it
/// ends before the first request is served. Gives the log back, which is to be
/// written until the end.
fn run(arguments: Arguments, format: log::Format) -> (Result<()>, WorkerGuard) {
    let (send, receive) = std::sync::mpsc::channel::<Handle>();
    let starter = std::thread::Builder::new().name("start".into()).spawn(move || {
        let lost = |_| Error::failed("cannot start: the runtime is gone");
        let handle = receive.recv().map_err(lost)?;
        let _inside = handle.enter();
        start(&arguments)
    });
    let unprivileged = privileges::give_up();
    let log = log::start(format);
    let work = || {
        unprivileged.map_err(|error| {
            Error::failed(format!("cannot give up the privileges of this process: {error}"))
        })?;
        let starter = starter.map_err(|error| Error::failed(format!("cannot start: {error}")))?;
        let runtime = runtime()?;
        // It listens until it has it.
        let _ = send.send(runtime.handle().clone());
        let started = starter.join();
        match started.unwrap_or_else(|_| Err(Error::failed("the start gave up")))? {
            Some(started) => runtime.block_on(serve(started)),
            None => Ok(()),
        }
    };
    (work(), log)
}

/// What runs, once it is started.
struct Started {
    service: Service,
    traffic: Arc<Traffic>,
    samples: Samples,
    doors: Doors,
    reports: Reports,
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

fn manual() -> Result<String> {
    let mut page = Vec::new();
    let manual = clap_mangen::Man::new(Arguments::command()).section("8");
    manual
        .render(&mut page)
        .map_err(|error| Error::failed(format!("cannot make the manual page: {error}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Does all that needs privileges. Gives nothing if that was all.
fn start(arguments: &Arguments) -> Result<Option<Started>> {
    if arguments.print_default_config {
        return print(&config::default_text()).map(|()| None);
    }
    if arguments.print_config_schema {
        return print(&format!("{:#}\n", config::json_schema())).map(|()| None);
    }
    if arguments.print_manual {
        return print(&manual()?).map(|()| None);
    }
    // Everything that can be wrong about what was typed, before anything that
    // can be wrong about the machine.
    let (startup, policies) = configured(arguments)?;
    let settings = startup.overrides.over(policies.config());
    if arguments.check {
        tracing::info!("the configuration is valid: {} policies", policies.all().len());
        return Ok(None);
    }
    let named = distinct(&settings.daemon.interfaces)?;
    sizing(&settings, named.len())?;
    let groups = Groups::named(
        settings.daemon.admin_group.as_deref(),
        settings.daemon.view_group.as_deref(),
    )?;
    doctor::require(&arguments.pin_dir)?;
    let begin = plane::Start::take(&arguments.pin_dir)?;
    let (store, mut state) = if arguments.state_dir.as_os_str() == "off" {
        (Store::nowhere(), State::default())
    } else {
        Store::open(&arguments.state_dir)?
    };
    let begin = begin.look(&state)?;
    if begin.has_before() && begin.load().is_none() {
        tracing::warn!(
            "an earlier limiterd left its maps, but not what it takes to use them: buckets and \
             counters by policy begin anew; protection and sums go on, and bans as far as \
             they are known"
        );
        begin.lists_left(&mut state)?;
    }
    let plan = service::plan(&begin, &state, policies, named, &startup);
    let sizing = sizing(&settings, plan.interfaces.len() + arguments.spare_interfaces as usize)?;
    let options = Options {
        pin_dir: arguments.pin_dir.clone(),
        interfaces: plan.interfaces.clone(),
        spares: arguments.spare_interfaces,
        sizing,
        samples: arguments.samples,
        fixed: None,
    };
    let mut plane = Plane::begin(begin, &options, &state)?;
    // A start that fails shall fail before anything is attached.
    let sockets = Sockets::listen(&arguments.socket, groups)?;
    let web = match settings.daemon.metrics {
        config::Metrics::Off => None,
        config::Metrics::At(address) => Some(web::listen(address)?),
    };
    let doors = Doors { sockets, web };
    let interrupt = listen(SignalKind::interrupt())?;
    let terminate = listen(SignalKind::terminate())?;
    let hangup = listen(SignalKind::hangup())?;
    let reports = plane.forward_reports();
    let samples = plane.samples()?;
    let wish = match settings.daemon.xdp_mode {
        config::XdpMode::Auto => plane::Wish::Auto,
        config::XdpMode::Native => plane::Wish::Native,
        config::XdpMode::Generic => plane::Wish::Generic,
    };
    let service = Service::start(Parts { plane, plan, startup, store, state, wish })?;
    announce(&service, arguments);
    let traffic = Arc::new(Traffic::default());
    Ok(Some(Started { service, traffic, samples, doors, reports, interrupt, terminate, hangup }))
}

async fn serve(started: Started) -> Result<()> {
    let Started { service, traffic, samples, doors, reports, mut interrupt, mut terminate, hangup } =
        started;
    let _told = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let shutdown = async move {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        tracing::info!("{name}: stopping");
        let _told = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    };
    let left = server::serve(doors, service, (traffic, samples), hangup, shutdown).await;
    drop(reports);
    match left? {
        Some(mut service) if service.keeps_protection() => {
            service.save_state();
            tracing::info!("the protection stays in force; limiterd --detach takes it off");
        }
        Some(mut service) => {
            service.save_state();
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

/// What the command line and the configuration say.
fn configured(arguments: &Arguments) -> Result<(Startup, Policies)> {
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
        metrics: arguments.metrics.as_deref().map(str::parse).transpose()?,
        max_sources: max_sources.transpose()?,
        memory: arguments.memory.as_deref().map(str::parse).transpose()?,
        gate: Gate {
            new_sources: arguments.new_sources.as_deref().map(str::parse).transpose()?,
            untracked: arguments.untracked.as_deref().map(str::parse).transpose()?,
        },
    };
    let startup =
        Startup { file, overrides, observe: arguments.observe, base: 0, forget: arguments.forget };
    let (policies, base) = policies(arguments, &startup)?;
    Ok((Startup { base, ..startup }, policies))
}

/// The policies that the command line, the file, or nobody asks for, and the
/// checksum of what they derive from.
fn policies(arguments: &Arguments, startup: &Startup) -> Result<(Policies, u32)> {
    let observe = arguments.observe;
    let (policies, base) = match (&arguments.rate, &startup.file) {
        (Some(text), _) => {
            let rate: PacketRate = text.parse()?;
            let burst = arguments.burst.as_deref().map(str::parse::<Burst>).transpose()?;
            let burst = burst.unwrap_or_else(|| rate.one_second());
            let base = service::base_of(&format!("--rate {text} --burst {}", burst.0));
            (Policies::single(rate, burst, observe), base)
        }
        (None, Some(file)) => {
            let text = service::read_text(file)?;
            (Policies::new(configuration(file, &text)?, observe), service::base_of(&text))
        }
        (None, None) => (Policies::builtin(observe), service::base_of("built in")),
    };
    let settings = startup.overrides.over(policies.config());
    if settings.daemon.interfaces.is_empty() && !arguments.check {
        return Err(Error::new(Kind::Usage, "no interface is named")
            .hint("name one with --iface, or in the configuration; ip link lists them"));
    }
    Ok((policies.with_gate(startup.overrides.gate), base))
}

/// Reads a configuration; warnings go to the log, all errors to the terminal.
fn configuration(file: &Path, text: &str) -> Result<Config> {
    let name = file.display().to_string();
    match config::parse(text, &name, &Host::here()) {
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

fn listen(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Error::failed(format!("cannot wait for signals: {error}")))
}

fn announce(service: &Service, arguments: &Arguments) {
    let (plane, policies) = (service.plane(), service.policies());
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
