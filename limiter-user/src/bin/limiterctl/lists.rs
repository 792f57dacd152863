//! Bans and allowed prefixes.

use limiter_user::{
    api::{ListAdd, ListAddition, ListEntry, ListRemove},
    client::Client,
    error::{Error, Kind, Result},
    lists::List as Which,
};

use crate::{Listing, Output, config::read, print, show, watched, write};

pub(crate) async fn run(
    client: &Client,
    which: Which,
    command: Listing,
    output: Output,
) -> Result<()> {
    match command {
        Listing::Add { prefixes, time, reason, force } => {
            let entry =
                |prefix| ListAddition { prefix, duration: time.clone(), reason: reason.clone() };
            let entries = prefixes.into_iter().map(entry).collect();
            add(client, which, ListAdd { entries, force }, output).await
        }
        Listing::Del { prefixes } => {
            let changed = client.list_remove(which, &ListRemove { prefixes }).await?;
            print(&changed, output, |changed| show::list_changed("removed", changed))
        }
        Listing::List { watch } => {
            watched(&watch, async || match output {
                Output::Ndjson => client.list_lines(which, write).await,
                _ => print(&client.list(which).await?, output, show::list),
            })
            .await
        }
        Listing::Import { file, force } => {
            let (text, name) = read(&file)?;
            let lines = (1..).zip(text.lines()).filter_map(|(number, line)| {
                let line = line.split('#').next().unwrap_or_default().trim();
                (!line.is_empty()).then_some((number, line))
            });
            let entry = |(number, line)| {
                entry(line).map_err(|error: Error| Error {
                    message: format!("{name}, line {number}: {}", error.message),
                    ..error
                })
            };
            let entries = lines.map(entry).collect::<Result<Vec<_>>>()?;
            add(client, which, ListAdd { entries, force }, output).await
        }
        Listing::Export => {
            let list = client.list(which).await?;
            let own = list.entries.iter().filter(|entry| entry.origin != "config");
            match output {
                Output::Table => {
                    write(own.map(|entry| line(entry) + "\n").collect::<String>().as_bytes())
                }
                _ => print(&list, output, |_| String::new()),
            }
        }
    }
}

async fn add(client: &Client, which: Which, request: ListAdd, output: Output) -> Result<()> {
    let changed = client.list_add(which, &request).await?;
    for warning in &changed.warnings {
        eprintln!("limiterctl: {warning}");
    }
    print(&changed, output, |changed| show::list_changed("added", changed))
}

/// An entry in the form of a file: prefix, time, reason.
fn line(entry: &ListEntry) -> String {
    let time = match entry.expires_in_seconds {
        Some(seconds) => format!("{seconds}s"),
        None => "forever".into(),
    };
    let line = format!("{} {time}", entry.prefix);
    match &entry.reason {
        Some(reason) => format!("{line} {}", reason.replace('#', "")),
        None => line,
    }
}

fn entry(line: &str) -> Result<ListAddition> {
    let mut words = line.splitn(3, char::is_whitespace).map(str::trim);
    let prefix = words.next().unwrap_or_default();
    // Checked here so that the error can name the line.
    let _: limiter_user::prefix::Prefix = prefix.parse().map_err(Error::from)?;
    let duration = words.next().map(str::to_owned);
    if let Some(duration) = duration.as_deref().filter(|text| *text != "forever") {
        limiter_user::service::duration_of(duration)
            .map_err(|error| Error { kind: Kind::Invalid, ..error })?;
    }
    let reason = words.next().filter(|reason| !reason.is_empty()).map(str::to_owned);
    Ok(ListAddition { prefix: prefix.into(), duration, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        for (text, duration, reason) in [
            ("192.0.2.7", None, None),
            ("192.0.2.0/24 90s", Some("90s"), None),
            ("2001:db8::/48 forever of many words", Some("forever"), Some("of many words")),
        ] {
            let read = entry(text).unwrap();
            assert_eq!(read.duration.as_deref(), duration, "{text}");
            assert_eq!(read.reason.as_deref(), reason, "{text}");
        }
        for text in ["nonsense", "192.0.2.7/24", "192.0.2.7 soon"] {
            assert_eq!(entry(text).unwrap_err().kind, Kind::Invalid, "{text}");
        }
    }
}
