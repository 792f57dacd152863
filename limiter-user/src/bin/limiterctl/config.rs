//! Configurations.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use limiter_user::{
    api::ConfigRequest,
    client::Client,
    config::{self, Host, Report},
    error::{Error, Kind, Result},
    service::duration_of,
};
use serde::Serialize;

use crate::{Config, Output, print, show, write};

pub(crate) async fn run(client: &Client, command: Config, output: Output) -> Result<()> {
    match command {
        Config::Check { file } => {
            let checked = check(&file, output)?;
            print(&checked.report, output, |_| format!("{} is valid", checked.report.file))
        }
        Config::Diff { file } => {
            let Checked { text, report } = check(&file, output)?;
            let request = request(text, &report);
            print(&client.diff(&request).await?, output, show::differences)
        }
        Config::Apply { file, confirm, force } => {
            let Checked { text, report } = check(&file, output)?;
            let seconds = confirm.map(|text| duration_of(&text)).transpose()?;
            let confirm_seconds = seconds.map(|time| time.as_secs().max(1));
            let request = ConfigRequest { confirm_seconds, force, ..request(text, &report) };
            print(&client.apply(&request).await?, output, show::applied)
        }
        Config::Confirm => print(&client.confirm().await?, output, |state| {
            format!("rule set {} stays in force", state.generation)
        }),
        Config::Rollback => print(&client.roll_back().await?, output, |state| {
            format!("rule set {} is in force again", state.generation)
        }),
        Config::Export => {
            let export = client.export().await?;
            match output {
                Output::Table => write(export.config.as_bytes()),
                _ => print(&export, output, |_| String::new()),
            }
        }
        Config::Save => {
            print(&client.save().await?, output, |saved| format!("wrote {}", saved.file))
        }
    }
}

/// A file without errors.
struct Checked {
    text: String,
    report: Report,
}

/// Reads a file and tells all that is wrong with it.
fn check(file: &Path, output: Output) -> Result<Checked> {
    #[derive(Serialize)]
    struct Found<'a> {
        error: &'a limiter_user::api::FailureDetail,
        diagnostics: &'a [config::Diagnostic],
    }
    let (text, name) = read(file)?;
    match config::parse(&text, &name, &Host::here()) {
        Ok((_, report)) => {
            if !report.diagnostics.is_empty() {
                eprint!("{report}");
            }
            Ok(Checked { text, report })
        }
        Err(report) => {
            eprint!("{report}");
            let errors = report.errors();
            let count = if errors == 1 { "one error".into() } else { format!("{errors} errors") };
            let error = Error::new(Kind::Invalid, format!("{name} has {count}")).hint("see above");
            if output != Output::Table {
                let failure = limiter_user::api::Failure::from(&error);
                let found = Found { error: &failure.error, diagnostics: &report.diagnostics };
                print(&found, output, |_| String::new())?;
                eprintln!("limiterctl: {error}");
                std::process::exit(i32::from(error.kind.exit_code()));
            }
            Err(error)
        }
    }
}

/// The content of a file or of standard input, and what to call it.
pub(crate) fn read(file: &Path) -> Result<(String, String)> {
    let name = file.display().to_string();
    let mut text = String::new();
    let result = if name == "-" {
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    let text = result.map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            io::ErrorKind::PermissionDenied => Kind::Permission,
            io::ErrorKind::InvalidData => Kind::Invalid,
            _ => Kind::Failed,
        };
        Error::new(kind, format!("cannot read {name}: {error}"))
    })?;
    Ok((text, name))
}

fn request(config: String, report: &Report) -> ConfigRequest {
    ConfigRequest { config, name: report.file.clone(), ..ConfigRequest::default() }
}
