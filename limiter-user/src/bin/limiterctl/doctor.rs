//! What stands in the way of protection; no daemon is asked.

use std::{path::PathBuf, process::ExitCode};

use limiter_user::{
    doctor::{self, Options},
    error::Result,
    sizing::{self, Wish},
};

use crate::{Output, print, show};

/// What to look at.
#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Interface to protect; may be given several times [default: all that are
    /// up, loopback apart]
    #[arg(long = "iface", value_name = "NAME")]
    interfaces: Vec<String>,
    /// Pin directory of the daemon
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/limiterd")]
    pin_dir: PathBuf,
    /// Sources of each family that the daemon would be told to track
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    max_sources: Option<String>,
}

impl Doctor {
    /// Prints the findings; fails without a further word if one is an error.
    pub(crate) fn run(self, output: Output) -> Result<ExitCode> {
        let sources = self.max_sources.as_deref().map(sizing::sources).transpose()?;
        let options = Options {
            interfaces: self.interfaces,
            pin_dir: self.pin_dir,
            sources: sources.map_or(Wish::Default, Wish::Sources),
        };
        let doctor = doctor::examine(&options)?;
        print(&doctor, output, show::doctor)?;
        Ok(if doctor.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
