//! What the screen shows, and what each key does to it.

use limiter_user::api::{History, Rates, Status, Top};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::text::plain;

/// Orders, by their name for the daemon.
pub(super) const SORTS: [&str; 4] = ["dropped", "passed", "packets", "bytes"];

/// What the daemon has said last.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) top: Top,
    pub(super) history: History,
    pub(super) status: Option<Status>,
}

/// Whose rates are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Sources,
    Prefixes,
    Policies,
    Ports,
}

impl View {
    pub(super) const ALL: [(Self, &str); 4] = [
        (Self::Sources, "sources"),
        (Self::Prefixes, "prefixes"),
        (Self::Policies, "policies"),
        (Self::Ports, "ports"),
    ];

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|(view, _)| *view == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()].0
    }
}

/// A row of the list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) policy: String,
    pub(super) reason: String,
    pub(super) rates: Rates,
}

/// What keys mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    List,
    /// A filter is typed.
    Filter,
    /// Whether that prefix is to be banned.
    Ban(String),
    /// Something to read: a title and lines, from which line on.
    Text(String, Vec<String>, usize),
}

/// What is to be done about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing but to draw.
    Draw,
    /// To ask anew, in another order.
    Ask,
    /// To end.
    Quit,
    /// To ban that prefix.
    Ban(String),
    /// To explain what happens to packets of that source.
    Explain(String),
}

/// All that is drawn.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) seen: Seen,
    pub(super) view: View,
    pub(super) sort: usize,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) selected: usize,
    pub(super) paused: bool,
    /// What came of the last action.
    pub(super) message: String,
    /// Why the daemon does not answer, if it does not.
    pub(super) problem: Option<String>,
}

const HELP: [&str; 16] = [
    "q, Ctrl-C    quit",
    "s            sort by the next order: dropped (with what would be),",
    "             passed, packets, bytes; * marks its column",
    "v, Tab       sources, prefixes, policies, ports",
    "/            filter by what a row shows; Enter keeps, Esc clears",
    "up, down     select; also j and k",
    "b            ban the selected source for an hour; asks before",
    "e            explain what happens to packets of the source",
    "p, space     pause",
    "",
    "Rates are means of the last seconds. Those of a source come from",
    "sampled packets: +- is how far packets/s may be off (exceeded once",
    "in ten thousand times). Totals are counted exactly.",
    "would is what passes each second and would be dropped if the",
    "policy that observes it enforced its limit.",
    "",
];

impl Model {
    pub(super) fn sort_name(&self) -> &'static str {
        SORTS[self.sort % SORTS.len()]
    }

    /// The rows of the view that fit the filter.
    pub(super) fn rows(&self) -> Vec<Row> {
        let top = &self.seen.top;
        let policy = |policy: &Option<String>| policy.as_deref().map(plain).unwrap_or_default();
        let source = |it: &limiter_user::api::TopSource| Row {
            name: it.source.clone(),
            policy: policy(&it.policy),
            reason: it.reason.clone().unwrap_or_default(),
            rates: it.rates,
        };
        let rows: Vec<_> = match self.view {
            View::Sources => top.sources.iter().map(source).collect(),
            View::Prefixes => top.prefixes.iter().map(source).collect(),
            View::Policies => top
                .policies
                .iter()
                .map(|it| Row {
                    name: it.policy.as_deref().map_or_else(|| "(none)".into(), plain),
                    policy: String::new(),
                    reason: String::new(),
                    rates: it.rates,
                })
                .collect(),
            View::Ports => top
                .ports
                .iter()
                .map(|it| Row {
                    name: match it.port {
                        Some(port) => format!("{} {port}", it.protocol),
                        None => it.protocol.clone(),
                    },
                    policy: String::new(),
                    reason: String::new(),
                    rates: it.rates,
                })
                .collect(),
        };
        let wanted = self.filter.to_lowercase();
        let fits = |row: &Row| {
            [&row.name, &row.policy, &row.reason]
                .iter()
                .any(|text| text.to_lowercase().contains(&wanted))
        };
        rows.into_iter().filter(fits).collect()
    }

    /// Takes up what the daemon says.
    pub(super) fn take(&mut self, seen: Seen) {
        self.problem = None;
        if !self.paused {
            self.seen = seen;
        }
        self.keep_selection();
    }

    fn keep_selection(&mut self) {
        self.selected = self.selected.min(self.rows().len().saturating_sub(1));
    }

    /// Shows something to read.
    pub(super) fn read(&mut self, title: &str, text: &str) {
        let lines = text.lines().map(plain).collect();
        self.mode = Mode::Text(title.into(), lines, 0);
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        match std::mem::take(&mut self.mode) {
            Mode::List => self.key_in_list(key.code),
            Mode::Filter => self.key_in_filter(key.code),
            Mode::Ban(prefix) => match key.code {
                KeyCode::Char('y' | 'Y') => Action::Ban(prefix),
                _ => {
                    self.message = "not banned".into();
                    Action::Draw
                }
            },
            Mode::Text(title, lines, from) => {
                let last = lines.len().saturating_sub(1);
                let from = match key.code {
                    KeyCode::Down | KeyCode::Char('j') => (from + 1).min(last),
                    KeyCode::Up | KeyCode::Char('k') => from.saturating_sub(1),
                    _ => return Action::Draw,
                };
                self.mode = Mode::Text(title, lines, from);
                Action::Draw
            }
        }
    }

    fn key_in_list(&mut self, key: KeyCode) -> Action {
        self.message.clear();
        let last = self.rows().len().saturating_sub(1);
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('s') => {
                self.sort = (self.sort + 1) % SORTS.len();
                return Action::Ask;
            }
            KeyCode::Char('v') | KeyCode::Tab => {
                self.view = self.view.next();
                self.selected = 0;
            }
            KeyCode::Char('/' | 'f') => self.mode = Mode::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected = (self.selected + 10).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.read("keys", &HELP.join("\n")),
            KeyCode::Char('b') => match self.selected_source() {
                Some(prefix) => self.mode = Mode::Ban(prefix),
                None => self.message = "select a source or a prefix to ban it".into(),
            },
            KeyCode::Char('e') => match self.selected_source() {
                Some(prefix) => return Action::Explain(prefix),
                None => self.message = "select a source to explain what happens to it".into(),
            },
            _ => {}
        }
        Action::Draw
    }

    fn key_in_filter(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Enter => return Action::Draw,
            KeyCode::Esc => {
                self.filter.clear();
                return Action::Draw;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if !letter.is_control() => self.filter.push(letter),
            _ => {}
        }
        self.mode = Mode::Filter;
        self.keep_selection();
        Action::Draw
    }

    /// The prefix of the selected row, where rows are prefixes.
    fn selected_source(&self) -> Option<String> {
        let is_prefix = matches!(self.view, View::Sources | View::Prefixes);
        let row = self.rows().into_iter().nth(self.selected).filter(|_| is_prefix);
        row.map(|row| row.name)
    }
}

#[cfg(test)]
mod tests {
    use limiter_user::api::TopSource;

    use super::*;

    fn model(sources: &[&str]) -> Model {
        let sources = sources.iter().map(|source| TopSource {
            source: (*source).into(),
            policy: Some("web".into()),
            ..TopSource::default()
        });
        let top = Top { sources: sources.collect(), ..Top::default() };
        Model { seen: Seen { top, ..Seen::default() }, ..Model::default() }
    }

    fn press(model: &mut Model, keys: &str) -> Action {
        let mut action = Action::Draw;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                letter => KeyCode::Char(letter),
            };
            action = model.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        action
    }

    #[test]
    fn a_ban_is_asked_for_and_only_y_says_yes() {
        let mut model = model(&["192.0.2.1", "192.0.2.2"]);
        assert_eq!(press(&mut model, "jb"), Action::Draw);
        assert_eq!(model.mode, Mode::Ban("192.0.2.2".into()));
        assert_eq!(press(&mut model, "n"), Action::Draw);
        assert_eq!(press(&mut model, "b\n"), Action::Draw);
        assert_eq!(press(&mut model, "by"), Action::Ban("192.0.2.2".into()));
        assert_eq!(press(&mut model, "vvb"), Action::Draw);
        assert_eq!(model.mode, Mode::List);
        assert!(model.message.contains("select"));
    }

    #[test]
    fn a_filter_takes_letters_that_are_keys_elsewhere() {
        let mut model = model(&["192.0.2.1", "198.51.100.7", "2001:db8:babe::/64"]);
        press(&mut model, "/babq");
        assert_eq!(model.mode, Mode::Filter);
        assert_eq!(model.rows(), []);
        press(&mut model, "\x08\n");
        assert_eq!(model.rows().len(), 1);
        assert_eq!(press(&mut model, "e"), Action::Explain("2001:db8:babe::/64".into()));
        press(&mut model, "\x1b");
        assert_eq!(model.rows().len(), 3);
        press(&mut model, "/WEB\n");
        assert_eq!(model.rows().len(), 3);
    }

    #[test]
    fn what_is_paused_stays_and_a_selection_that_is_gone_moves() {
        let mut model = model(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        press(&mut model, "jjp");
        let fewer = Seen { top: Top::default(), ..Seen::default() };
        model.take(fewer.clone());
        assert_eq!((model.rows().len(), model.selected), (3, 2));
        press(&mut model, "p");
        model.take(fewer);
        assert_eq!((model.rows().len(), model.selected), (0, 0));
        assert_eq!(press(&mut model, "be"), Action::Draw);
    }

    #[test]
    fn orders_are_asked_for_one_after_the_other() {
        let mut model = model(&[]);
        let mut seen = vec![model.sort_name()];
        for _ in 0..4 {
            assert_eq!(press(&mut model, "s"), Action::Ask);
            seen.push(model.sort_name());
        }
        assert_eq!(seen, ["dropped", "passed", "packets", "bytes", "dropped"]);
    }
}
