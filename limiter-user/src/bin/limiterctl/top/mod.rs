//! Who sends most: once, or as a live screen.

mod model;
mod screen;

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _},
    time::Duration,
};

use limiter_user::{
    api::{ListAdd, ListAddition, Question, Rates, Top, TopQuery},
    client::Client,
    error::{Error, Result},
    lists::List,
    prefix::Prefix,
};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use tokio::{
    sync::mpsc::{self, Receiver},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use self::{
    model::{Action, Model, SORTS, Seen},
    screen::Theme,
};
use crate::{
    Output, print, show,
    text::{numbers, plain, short},
};

/// Time between two questions.
const PACE: Duration = Duration::from_secs(1);
/// Time between two pictures: a slow line carries no more.
const FRAME: Duration = Duration::from_millis(150);
/// Rows that are asked for.
const ROWS: usize = 200;
/// Rows that are printed.
const PRINTED: usize = 10;

/// What to show.
#[derive(clap::Args)]
pub(crate) struct Show {
    /// So many of each [default: 10; on a screen 200]
    #[arg(short = 'n', long = "count", value_name = "N")]
    count: Option<usize>,
    /// Print once, and end; so it is without a terminal and with -o json
    #[arg(long)]
    once: bool,
    /// What comes first
    #[arg(long, value_name = "ORDER", default_value = SORTS[0], value_parser = SORTS)]
    sort: String,
    /// Only what this policy decides
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

impl Show {
    pub(crate) async fn run(self, client: &Client, output: Output) -> Result<()> {
        let has_screen = io::stdout().is_terminal()
            && io::stdin().is_terminal()
            && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        if self.once || output != Output::Table || !has_screen {
            let query = TopQuery {
                limit: Some(self.count.unwrap_or(PRINTED)),
                sort: Some(self.sort),
                policy: self.policy,
            };
            return print(&client.top(&query).await?, output, text);
        }
        let sort = SORTS.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        let mut live = Live {
            client,
            limit: self.count.unwrap_or(ROWS),
            policy: self.policy,
            model: Model { sort, ..Model::default() },
        };
        // What cannot be shown at all is said before the screen is taken.
        let seen = live.ask().await?;
        live.model.take(seen);
        let broken = |error| Error::failed(format!("cannot use the terminal: {error}"));
        let mut terminal = ratatui::try_init().map_err(broken)?;
        let result = live.run(&mut terminal).await;
        let restored = ratatui::try_restore();
        result.and(restored).map_err(broken)
    }
}

/// The screen, and whom it asks.
struct Live<'a> {
    client: &'a Client,
    limit: usize,
    policy: Option<String>,
    model: Model,
}

impl Live<'_> {
    async fn ask(&self) -> Result<Seen> {
        let query = TopQuery {
            limit: Some(self.limit),
            sort: Some(self.model.sort_name().into()),
            policy: self.policy.clone(),
        };
        Ok(Seen {
            top: self.client.top(&query).await?,
            history: self.client.history().await?,
            status: Some(self.client.status().await?),
        })
    }

    async fn run(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let theme = Theme { colours: std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()) };
        let mut events = read_events();
        let mut ticks = interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_frame = Instant::now();
        loop {
            sleep_until(next_frame).await;
            terminal.draw(|frame| screen::draw(frame, &self.model, theme))?;
            next_frame = Instant::now() + FRAME;
            tokio::select! {
                _ = ticks.tick() => self.look().await,
                event = events.recv() => match event {
                    Some(event) => {
                        if self.obey(event?).await {
                            return Ok(());
                        }
                        // All that was typed while it was drawn.
                        while let Ok(event) = events.try_recv() {
                            if self.obey(event?).await {
                                return Ok(());
                            }
                        }
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    async fn look(&mut self) {
        match self.ask().await {
            Ok(seen) => self.model.take(seen),
            Err(error) => self.model.problem = Some(plain(&error.message)),
        }
    }

    /// Does what a key says; says whether that is the end.
    async fn obey(&mut self, event: Event) -> bool {
        let Event::Key(key) = event else {
            return false;
        };
        if key.kind == KeyEventKind::Release {
            return false;
        }
        match self.model.key(key) {
            Action::Draw => {}
            Action::Quit => return true,
            Action::Ask => self.look().await,
            Action::Ban(prefix) => {
                let addition = ListAddition {
                    prefix: prefix.clone(),
                    duration: None,
                    reason: Some("banned from limiterctl top".into()),
                };
                let add = ListAdd { entries: vec![addition], force: false };
                self.model.message = match self.client.list_add(List::Ban, &add).await {
                    Ok(_) => format!("{prefix} is banned for an hour"),
                    Err(error) => plain(&error.to_string()),
                };
            }
            Action::Explain(prefix) => {
                let address = prefix.parse::<Prefix>().map(|it| it.address().to_string());
                let source = address.unwrap_or_else(|_| prefix.clone());
                let question = Question { source, ..Question::default() };
                match self.client.explain(&question).await {
                    Ok(explanation) => {
                        let text = show::explanation(&explanation);
                        self.model.read(&format!("a packet of {prefix} now"), &text);
                    }
                    Err(error) => self.model.message = plain(&error.to_string()),
                }
            }
        }
        false
    }
}

/// What is typed, read on a thread of its own that ends with the process.
fn read_events() -> Receiver<io::Result<Event>> {
    let (send, receive) = mpsc::channel(64);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if send.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    receive
}

fn text(top: &Top) -> String {
    let total = &top.total;
    let mut text = format!(
        "passed {}/s, dropped {}/s, would drop {}/s, {}bit/s; means of {:.0} s, {} samples\n",
        short(total.passed_pps),
        short(total.dropped_pps),
        short(total.would_drop_pps),
        short(total.bytes_per_second * 8.0),
        top.window_seconds,
        top.samples,
    );
    let of_policy = |policy: &Option<String>| policy.as_deref().map(plain).unwrap_or_default();
    let mut sources = numbers(&["source", PASSED, DROPPED, WOULD, "+-", "bit/s", WHY, "policy"]);
    let mut prefixes = numbers(&["prefix", PASSED, DROPPED, WOULD, "+-", "bit/s", WHY]);
    let mut policies = numbers(&["policy", PASSED, DROPPED, WOULD, "+-", "bit/s"]);
    let mut ports = numbers(&["port", PASSED, DROPPED, WOULD, "+-", "bit/s"]);
    for it in &top.sources {
        let ends = [it.reason.clone().unwrap_or_default(), of_policy(&it.policy)];
        sources.add_row(row(&it.source, &it.rates).into_iter().chain(ends));
    }
    for it in &top.prefixes {
        let end = it.reason.clone().unwrap_or_default();
        prefixes.add_row(row(&it.source, &it.rates).into_iter().chain([end]));
    }
    for it in &top.policies {
        let name = it.policy.as_deref().map_or_else(|| "(none)".into(), plain);
        policies.add_row(row(&name, &it.rates));
    }
    for it in &top.ports {
        let port = it.port.map(|port| format!(" {port}")).unwrap_or_default();
        ports.add_row(row(&format!("{}{port}", it.protocol), &it.rates));
    }
    // Into a string, nothing can fail.
    let _ = write!(text, "{sources}\n\n{prefixes}\n\n{policies}\n\n{ports}");
    text
}

const PASSED: &str = "passed/s";
const DROPPED: &str = "dropped/s";
const WOULD: &str = "would drop/s";
const WHY: &str = "why";

fn row(name: &str, rates: &Rates) -> [String; 6] {
    [
        name.to_owned(),
        short(rates.passed_pps),
        short(rates.dropped_pps),
        short(rates.would_drop_pps),
        short(rates.error_bound),
        short(rates.bytes_per_second * 8.0),
    ]
}
