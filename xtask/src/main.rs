//! Builds, runs and tests limiterd, and sets up first what that needs.

mod apt;
mod cache;
mod compiler;
mod doctor;
mod fuzz;
mod goodput;
mod install;
mod linker;
mod oldest_kernel;
mod run;
mod setup;
mod step;
mod test;
mod tools;

#[path = "../../limiter-user/bpf_toolchain.rs"]
mod bpf_toolchain;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Parser, Subcommand};
use run::Profile;

/// Builds, runs and tests limiterd, and sets up first what that needs.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what is there and what is missing, with the mend
    Doctor,
    /// Build limiterd and limiterctl into target/release
    Build {
        /// Build into target/debug instead
        #[arg(long)]
        debug: bool,
    },
    /// Show limiterd at work: in a playground, or on an interface
    Run {
        /// Protect this interface instead of a playground; needs root
        #[arg(long, value_name = "NAME")]
        iface: Option<String>,
        /// More arguments for limiterd or the playground
        #[arg(last = true)]
        more: Vec<String>,
    },
    /// Run every test; those on the kernel need root
    Test {
        /// Leave out what is slow
        #[arg(long)]
        quick: bool,
    },
    /// Measure nanoseconds per packet; needs root
    Bench {
        /// Arguments for the benchmark
        #[arg(last = true)]
        more: Vec<String>,
    },
    /// Fuzz what is parsed, guided by coverage
    Fuzz {
        /// For how long
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Measure what a polite client gets under floods; needs root
    Goodput {
        /// Arguments for the measurement
        #[arg(last = true)]
        more: Vec<String>,
    },
    /// Take the pictures in this repository of what limiterd shows; needs root
    Pictures,
    /// Run on Linux 6.1 in software emulation; needs root and some minutes
    OldestKernel,
    /// Install the release binaries, shell completions, manual pages and a unit for systemd
    Install {
        /// Where to
        #[arg(long, value_name = "DIR", default_value = "/usr/local")]
        prefix: PathBuf,
    },
    /// Remove what install has put there
    Uninstall {
        /// Where from
        #[arg(long, value_name = "DIR", default_value = "/usr/local")]
        prefix: PathBuf,
    },
}

fn main() -> ExitCode {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match dispatch(workspace, Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(workspace: &Path, command: Command) -> Result<()> {
    match command {
        Command::Doctor => doctor::doctor(workspace),
        Command::Build { debug } => {
            run::build(workspace, if debug { Profile::Debug } else { Profile::Release })
        }
        Command::Run { iface, more } => run::run(workspace, iface.as_deref(), &more),
        Command::Test { quick } => test::test(workspace, quick),
        Command::Bench { more } => run::bench(workspace, &more),
        Command::Fuzz { seconds } => fuzz::fuzz(workspace, seconds),
        Command::Goodput { more } => goodput::goodput(workspace, &more),
        Command::Pictures => run::pictures(workspace),
        Command::OldestKernel => oldest_kernel::run(workspace),
        Command::Install { prefix } => install::install(workspace, &prefix),
        Command::Uninstall { prefix } => install::uninstall(&prefix),
    }
}
