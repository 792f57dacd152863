//! Manual pages, made of what the command line says about itself.

use std::{fs, io, path::PathBuf};

use clap::CommandFactory as _;
use clap_mangen::Man;
use limiter_user::error::{Error, Result};

use crate::{Arguments, write};

/// Which pages, and where to.
#[derive(clap::Args)]
pub(crate) struct Manual {
    /// Write a page for each command into this directory instead of printing
    /// the first one
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

impl Manual {
    pub(crate) fn run(self) -> Result<()> {
        let command = Arguments::command().disable_help_subcommand(true);
        match self.to {
            Some(directory) => fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(command, &directory))
                .map_err(|error| {
                    Error::failed(format!("cannot write to {}: {error}", directory.display()))
                }),
            None => {
                write(&page(&Man::new(command)).map_err(|error| {
                    Error::failed(format!("cannot make the manual page: {error}"))
                })?)
            }
        }
    }
}

fn page(man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    Ok(page)
}
