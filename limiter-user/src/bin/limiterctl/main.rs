//! The control tool: asks the daemon and shows what it says.

mod caller;
mod capture;
mod config;
mod doctor;
mod events;
mod lists;
mod man;
mod show;
mod suggest;
mod text;
mod top;

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use limiter_user::{
    api::{Detached, Failure, LevelChange, LimitChange, Question, SCHEMA_VERSION},
    client::Client,
    error::{Error, Kind, Result},
    lists::List as Which,
    plane, sockets,
};
use serde::Serialize;

const SOCKET: &str = "/run/limiterd/ctl.sock";
const HELP: &str = "\
Examples:
  limiterctl stats --watch                packets by reason, every 2 seconds
  limiterctl top                          who sends most, as a live screen
  limiterctl events --follow              what is dropped, and why
  limiterctl capture -w drops.pcapng --seconds 10
  limiterctl suggest                      limits that fit what was seen
  limiterctl limit set udp --rate 5k/s --burst 10k
  limiterctl config apply limiterd.toml --confirm 60s
  limiterctl ban add 203.0.113.0/24 --for 10m --reason scan
  limiterctl explain 198.51.100.7 --proto udp --dport 53
  limiterctl doctor --iface eth0          what stands in the way, before a start
  limiterctl -o json status               for scripts

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 daemon unreachable,
5 permission, 6 invalid value, 7 a change waits to be confirmed, 8 refused
because it would lock you out";

/// Shows what limiterd does, and changes its limits while it runs.
#[derive(Parser)]
#[command(name = "limiterctl", version, after_help = HELP)]
struct Arguments {
    /// Control socket of the daemon
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "LIMITERD_SOCKET",
        default_value = SOCKET,
        value_parser = clap::builder::OsStringValueParser::new()
    )]
    socket: OsString,

    /// Form of the output
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,

    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// One JSON document
    Json,
    /// One JSON document per line
    Ndjson,
}

#[derive(Subcommand)]
enum Command {
    /// Version, interfaces, memory and health
    Status {
        #[command(flatten)]
        watch: Watch,
    },
    /// Packets by reason and by policy
    Stats {
        /// Only this interface
        #[arg(long, value_name = "NAME")]
        iface: Option<String>,
        /// Only this policy
        #[arg(long, value_name = "NAME")]
        policy: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
    /// Read and change limits
    #[command(subcommand)]
    Limit(Limit),
    /// Drop everything from prefixes, whatever a policy says
    #[command(subcommand)]
    Ban(Listing),
    /// Let everything from prefixes pass, whatever a policy or a ban says
    #[command(subcommand)]
    Allow(Listing),
    /// Try, apply, keep and take back configurations
    #[command(subcommand)]
    Config(Config),
    /// Say what would happen to a packet now, and why, at no cost to its source
    Explain(Explain),
    /// Show who sends most, and what becomes of it
    Top(top::Show),
    /// Show sampled packets that were dropped, or would be, and attacks
    Events(events::Show),
    /// Write sampled packets to a file for Wireshark and tshark
    Capture(capture::Capture),
    /// Propose limits that fit what was seen, with what they would have cut
    Suggest(suggest::Suggest),
    /// Protect interfaces, and take the protection off them, at run time
    #[command(subcommand)]
    Iface(Iface),
    /// Say what stands in the way of protection, and the mend; needs no daemon
    Doctor(doctor::Doctor),
    /// Take the protection off everywhere
    Detach {
        /// Pin directory of a daemon that no longer runs
        #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/limiterd")]
        pin_dir: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man(man::Manual),
}

#[derive(Subcommand)]
enum Limit {
    /// Show the limits in force
    Show {
        /// Only this policy
        policy: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
    /// Change a limit; what is not named stays, and `off` takes a limit away
    Set {
        /// The policy
        policy: String,
        #[command(flatten)]
        change: Box<Set>,
    },
}

/// What a configuration can be used for.
#[derive(Subcommand)]
enum Config {
    /// Say what is wrong with a file; needs no daemon
    Check {
        /// The file, or - for standard input
        file: PathBuf,
    },
    /// Show what a file would change
    Diff {
        /// The file, or - for standard input
        file: PathBuf,
    },
    /// Put a file in force
    Apply {
        /// The file, or - for standard input
        file: PathBuf,
        /// Take it back after this time, such as 60s, unless it is confirmed:
        /// also if the daemon or this connection is gone by then
        #[arg(long, value_name = "TIME")]
        confirm: Option<String>,
        /// Even if it locks you out
        #[arg(long)]
        force: bool,
    },
    /// Keep what waits to be confirmed
    Confirm,
    /// Take back what waits to be confirmed
    Rollback,
    /// Print the configuration in force, with all changes made at run time
    Export,
    /// Write the configuration in force to the daemon's file; comments stay
    Save,
}

/// What can be done with a list.
#[derive(Subcommand)]
enum Listing {
    /// Add prefixes, all or none
    Add {
        /// Addresses and prefixes
        #[arg(required = true, value_name = "PREFIX")]
        prefixes: Vec<String>,
        /// For how long, such as 90s, 1h or forever [default: bans 1h, allowed
        /// prefixes forever]
        #[arg(long = "for", value_name = "TIME")]
        time: Option<String>,
        /// Why
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Even if it locks you out
        #[arg(long)]
        force: bool,
    },
    /// Remove prefixes, all or none
    Del {
        /// Addresses and prefixes
        #[arg(required = true, value_name = "PREFIX")]
        prefixes: Vec<String>,
    },
    /// Show all
    List {
        #[command(flatten)]
        watch: Watch,
    },
    /// Add those of a file, all or none: a prefix on each line, then for how
    /// long and why if that is to be said; # begins a comment
    Import {
        /// The file, or - for standard input
        file: PathBuf,
        /// Even if it locks you out
        #[arg(long)]
        force: bool,
    },
    /// Print all in the form that import reads
    Export,
}

/// A packet.
#[derive(clap::Args)]
struct Explain {
    /// Who sends it
    source: String,
    /// Who it is sent to
    #[arg(long, value_name = "ADDRESS")]
    dst: Option<String>,
    /// tcp, udp, icmp or a number
    #[arg(long, value_name = "PROTOCOL")]
    proto: Option<String>,
    /// Port that it is sent to [default: 443]
    #[arg(long, value_name = "PORT")]
    dport: Option<u16>,
    /// It opens a TCP connection
    #[arg(long)]
    syn: bool,
    /// Bytes of the frame [default: 100]
    #[arg(long, value_name = "BYTES")]
    len: Option<u32>,
    /// VLAN
    #[arg(long, value_name = "ID")]
    vlan: Option<u16>,
    /// Interface that it arrives at [default: the first]
    #[arg(long, value_name = "NAME")]
    iface: Option<String>,
}

impl From<Explain> for Question {
    fn from(packet: Explain) -> Self {
        Self {
            source: packet.source,
            destination: packet.dst,
            protocol: packet.proto,
            port: packet.dport,
            syn: packet.syn,
            length: packet.len,
            vlan: packet.vlan,
            interface: packet.iface,
        }
    }
}

/// What to change.
#[derive(clap::Args)]
struct Set {
    /// Packets per time and source, such as 500, 2.5k/s, 90/m or 1/day
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    /// Packets in a row that a source may send, such as 200 or 10k
    #[arg(long, value_name = "PACKETS", allow_hyphen_values = true)]
    burst: Option<String>,
    /// Bytes per time and source, such as 10MB/s or 80Mbit/s
    #[arg(long, value_name = "BANDWIDTH", allow_hyphen_values = true)]
    bandwidth: Option<String>,
    /// Bytes in a row that a source may send, such as 1MiB; a larger packet
    /// never passes
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    bandwidth_burst: Option<String>,
    /// The same for each wider prefix (IPv4 /24, IPv6 /48)
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    per_prefix_rate: Option<String>,
    /// Packets in a row of one prefix
    #[arg(long, value_name = "PACKETS", allow_hyphen_values = true)]
    per_prefix_burst: Option<String>,
    /// Bytes per time and prefix
    #[arg(long, value_name = "BANDWIDTH", allow_hyphen_values = true)]
    per_prefix_bandwidth: Option<String>,
    /// Bytes in a row of one prefix
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    per_prefix_bandwidth_burst: Option<String>,
    /// The same for everybody together
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    total_rate: Option<String>,
    /// Packets in a row of everybody
    #[arg(long, value_name = "PACKETS", allow_hyphen_values = true)]
    total_burst: Option<String>,
    /// Bytes per time of everybody
    #[arg(long, value_name = "BANDWIDTH", allow_hyphen_values = true)]
    total_bandwidth: Option<String>,
    /// Bytes in a row of everybody
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    total_bandwidth_burst: Option<String>,
    /// Whether a limit is kept without any excess, for more work per packet
    #[arg(long, value_name = "true|false")]
    strict: Option<bool>,
    /// enforce, observe or off
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Even if it locks you out
    #[arg(long)]
    force: bool,
}

impl From<Set> for LimitChange {
    fn from(set: Set) -> Self {
        Self {
            rate: set.rate,
            burst: set.burst,
            bandwidth: set.bandwidth,
            bandwidth_burst: set.bandwidth_burst,
            per_prefix: LevelChange {
                rate: set.per_prefix_rate,
                burst: set.per_prefix_burst,
                bandwidth: set.per_prefix_bandwidth,
                bandwidth_burst: set.per_prefix_bandwidth_burst,
            },
            total: LevelChange {
                rate: set.total_rate,
                burst: set.total_burst,
                bandwidth: set.total_bandwidth,
                bandwidth_burst: set.total_bandwidth_burst,
            },
            strict: set.strict,
            mode: set.mode,
            force: set.force,
        }
    }
}

#[derive(clap::Args)]
struct Watch {
    /// Show again every so many seconds
    #[arg(
        long = "watch",
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    seconds: Option<u64>,
}

#[derive(Subcommand)]
enum Iface {
    /// Protect one more interface
    Attach {
        /// Its name
        name: String,
    },
    /// Take the protection off one interface
    Detach {
        /// Its name
        name: String,
    },
    /// Show the interfaces
    List {
        #[command(flatten)]
        watch: Watch,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let output = arguments.output;
    match run(arguments).await {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "limiterctl: {error}");
            if output != Output::Table {
                // Nobody is left to tell if this fails.
                let _ = print(&Failure::from(&error), output, |_| String::new());
            }
            ExitCode::from(error.kind.exit_code())
        }
    }
}

/// Help, or what is wrong with the command line; as JSON too if that is what
/// it asks for, as far as can be seen.
fn usage(error: &clap::Error) -> ExitCode {
    // Nobody is left to tell if this fails.
    let _ = error.print();
    if error.exit_code() == 0 {
        return ExitCode::SUCCESS;
    }
    let words: Vec<_> = std::env::args().collect();
    let asks = |form: &str| {
        words.windows(2).any(|pair| matches!(&*pair[0], "-o" | "--output") && pair[1] == form)
            || words
                .iter()
                .any(|word| *word == format!("--output={form}") || *word == format!("-o{form}"))
    };
    let output = match (asks("json"), asks("ndjson")) {
        (true, _) => Output::Json,
        (_, true) => Output::Ndjson,
        _ => Output::Table,
    };
    let text = error.to_string();
    let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let error = Error::new(Kind::Usage, message).hint("see limiterctl --help");
    if output != Output::Table {
        let _ = print(&Failure::from(&error), output, |_| String::new());
    }
    ExitCode::from(error.kind.exit_code())
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { socket, output, command } = arguments;
    // An empty variable in the environment is none.
    let socket = PathBuf::from(if socket.is_empty() { SOCKET.into() } else { socket });
    let client = Client::new(&socket).on_behalf_of(caller::find());
    let done = match command {
        Command::Doctor(doctor) => return doctor.run(output),
        Command::Status { watch } => {
            watched(&watch, async || print(&client.status().await?, output, show::status)).await
        }
        Command::Stats { iface, policy, watch } => {
            watched(&watch, async || {
                let stats = client.stats(iface.as_deref(), policy.as_deref()).await?;
                print(&stats, output, show::stats)
            })
            .await
        }
        Command::Limit(Limit::Show { policy, watch }) => {
            watched(&watch, async || {
                print(&client.limits(policy.as_deref()).await?, output, show::limits)
            })
            .await
        }
        Command::Limit(Limit::Set { policy, change }) => {
            let change = LimitChange::from(*change);
            print(&client.change(&policy, &change).await?, output, show::limits)
        }
        Command::Ban(list) => lists::run(&client, Which::Ban, list, output).await,
        Command::Allow(list) => lists::run(&client, Which::Allow, list, output).await,
        Command::Config(config) => config::run(&client, config, output).await,
        Command::Explain(packet) => {
            print(&client.explain(&packet.into()).await?, output, show::explanation)
        }
        Command::Top(top) => top.run(&client, output).await,
        Command::Events(events) => events.run(&client, output).await,
        Command::Capture(capture) => capture.run(&client).await,
        Command::Suggest(suggest) => suggest.run(&client, output).await,
        Command::Iface(Iface::Attach { name }) => {
            print(&client.attach_interface(&name).await?, output, show::interfaces)
        }
        Command::Iface(Iface::Detach { name }) => {
            print(&client.detach_interface(&name).await?, output, show::interfaces)
        }
        Command::Iface(Iface::List { watch }) => {
            watched(&watch, async || print(&client.interfaces().await?, output, show::interfaces))
                .await
        }
        Command::Detach { pin_dir } => {
            let detached = match client.detach().await {
                Err(error) if error.kind == Kind::Unreachable => {
                    let _links = plane::remove_pins(&pin_dir)?;
                    sockets::remove_stale(&socket);
                    Detached { schema_version: SCHEMA_VERSION, interfaces: Vec::new() }
                }
                result => result?,
            };
            print(&detached, output, show::detached)
        }
        Command::Man(manual) => manual.run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "limiterctl", &mut script);
            write(&script)
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Shows once, or again and again until somebody ends it.
async fn watched(watch: &Watch, mut show: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let Some(seconds) = watch.seconds else {
        return show().await;
    };
    let mut ticks = tokio::time::interval(Duration::from_secs(seconds));
    loop {
        ticks.tick().await;
        if io::stdout().is_terminal() {
            // Clear the screen and go to its upper left corner.
            write(b"\x1b[2J\x1b[H")?;
        }
        show().await?;
    }
}

fn print<T: Serialize>(value: &T, output: Output, table: impl Fn(&T) -> String) -> Result<()> {
    let json = |json: serde_json::Result<String>| {
        json.map_err(|error| Error::failed(format!("cannot write JSON: {error}")))
    };
    let mut text = match output {
        Output::Table => table(value),
        Output::Json => json(serde_json::to_string_pretty(value))?,
        Output::Ndjson => json(serde_json::to_string(value))?,
    };
    text.push('\n');
    write(text.as_bytes())
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // Whoever read has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Error::failed(format!("cannot write the output: {error}"))),
        Ok(()) => Ok(()),
    }
}
