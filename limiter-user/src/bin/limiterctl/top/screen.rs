//! How it is drawn. What colour says, words say too.

use limiter_user::api::{History, Status};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span, Text},
    widgets::{Block, Clear, Paragraph, RenderDirection, Row as TableRow, Sparkline, Table},
};

use super::model::{Mode, Model, View};
use crate::text::{duration, plain, short};

/// Colours, unless there are to be none (no-color.org).
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    pub(super) colours: bool,
}

impl Theme {
    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

pub(super) fn draw(frame: &mut Frame, model: &Model, theme: Theme) {
    let [head, sums, lines, reasons, list, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(heading(model, theme), head);
    frame.render_widget(totals(model, theme), sums);
    sparklines(frame, model, theme, lines);
    frame.render_widget(reason_line(&model.seen.history, theme), reasons);
    table(frame, model, theme, list);
    frame.render_widget(footer(model, theme), foot);
    if let Mode::Text(title, text, from) = &model.mode {
        popup(frame, title, text, *from);
    }
}

fn heading(model: &Model, theme: Theme) -> Line<'_> {
    if let Some(problem) = &model.problem {
        let text = format!("{problem}; asking again");
        return Line::styled(text, theme.colour(Color::Red).patch(REVERSED));
    }
    let Some(status) = &model.seen.status else {
        return Line::raw("asking the daemon");
    };
    let mut spans = vec![Span::styled("limiterd", BOLD)];
    let mut add = |text: String, style: Style| {
        spans.push(Span::raw("  "));
        spans.push(Span::styled(text, style));
    };
    if let Some(attack) = &status.attack {
        let text = format!(" ATTACK for {} ", duration(attack.duration_seconds));
        add(text, theme.colour(Color::Red).patch(REVERSED).patch(BOLD));
    }
    if status.observe {
        add("observing: nothing is dropped".into(), theme.colour(Color::Yellow).patch(BOLD));
    }
    if model.paused {
        add(" paused ".into(), REVERSED);
    }
    if let Some(seconds) = status.confirm.deadline_seconds {
        let text = format!("confirm within {seconds} s");
        add(text, theme.colour(Color::Yellow).patch(BOLD));
    }
    if status.health != "ok" {
        let text = status.problems.first().map_or_else(|| status.health.clone(), |it| plain(it));
        add(text, theme.colour(Color::Yellow));
    }
    add(interfaces(status), Style::new());
    add(format!("up {}", up(status.uptime_seconds)), Style::new());
    Line::from(spans)
}

/// Such as `eth0 native, eth1 generic off`.
fn interfaces(status: &Status) -> String {
    let one = |it: &limiter_user::api::InterfaceStatus| {
        let off = if it.attached { "" } else { " OFF" };
        format!("{} {}{off}", plain(&it.name), it.mode)
    };
    let all: Vec<_> = status.interfaces.iter().map(one).collect();
    if all.is_empty() { "no interface".into() } else { all.join(", ") }
}

/// The two largest units.
fn up(seconds: u64) -> String {
    let long = duration(seconds);
    let units: Vec<_> = long.split(' ').take(2).collect();
    units.join(" ")
}

fn totals(model: &Model, theme: Theme) -> Line<'static> {
    let total = &model.seen.top.total;
    let number = |value: f64, unit: &str| format!("{}{unit}", short(value));
    let mut spans = Vec::new();
    for (name, value, style) in [
        ("passed", number(total.passed_pps, "/s"), theme.colour(Color::Green)),
        ("dropped", number(total.dropped_pps, "/s"), theme.colour(Color::Red)),
        ("would drop", number(total.would_drop_pps, "/s"), theme.colour(Color::Yellow)),
        ("all", number(total.bytes_per_second * 8.0, "bit/s"), Style::new()),
    ] {
        spans.push(Span::raw(format!("{name} ")));
        spans.push(Span::styled(format!("{value:<11}"), style.patch(BOLD)));
    }
    Line::from(spans)
}

/// The last minutes, the newest at the right.
fn sparklines(frame: &mut Frame, model: &Model, theme: Theme, area: Rect) {
    let history = &model.seen.history;
    let sum = |series: &std::collections::BTreeMap<String, Vec<f64>>| -> Vec<f64> {
        let mut sums = vec![0.0; history.passed.len()];
        for values in series.values() {
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        sums
    };
    let (dropped, would) = (sum(&history.dropped), sum(&history.would_drop));
    let observes = dropped.iter().sum::<f64>() == 0.0 && would.iter().sum::<f64>() > 0.0;
    let lower = if observes {
        ("would drop/s", would, Color::Yellow)
    } else {
        ("dropped/s", dropped, Color::Red)
    };
    let parts =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(2), Constraint::Fill(1)]);
    let [left, _, right] = parts.areas(area);
    let series = [("passed/s", history.passed.clone(), Color::Green), lower];
    for ((name, values, colour), area) in series.into_iter().zip([left, right]) {
        let [title, bars] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        let width = usize::from(bars.width);
        let shown = &values[values.len().saturating_sub(width)..];
        let most = shown.iter().copied().fold(0.0, f64::max);
        let title_text = format!("{name}, last {} s, at most {}", shown.len(), short(most));
        frame.render_widget(
            Line::styled(title_text, Style::new().add_modifier(Modifier::DIM)),
            title,
        );
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates")]
        let bars_data: Vec<_> = shown.iter().rev().map(|value| value.round() as u64).collect();
        let sparkline = Sparkline::default()
            .data(bars_data)
            .direction(RenderDirection::RightToLeft)
            .style(theme.colour(colour));
        frame.render_widget(sparkline, bars);
    }
}

/// Reasons of the last seconds, the most frequent first.
fn reason_line(history: &History, theme: Theme) -> Line<'static> {
    const SECONDS: usize = 5;
    let mut reasons = Vec::new();
    for (series, would) in [(&history.dropped, ""), (&history.would_drop, "would ")] {
        for (reason, values) in series {
            let last = &values[values.len().saturating_sub(SECONDS)..];
            #[expect(clippy::cast_precision_loss, reason = "five")]
            let mean = last.iter().sum::<f64>() / last.len().max(1) as f64;
            if mean > 0.0 {
                reasons.push((mean, format!("{would}{reason}")));
            }
        }
    }
    reasons.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut spans = vec![Span::styled("why: ", Style::new().add_modifier(Modifier::DIM))];
    if reasons.is_empty() {
        spans.push(Span::raw("nothing is dropped"));
    }
    for (mean, name) in reasons {
        let colour = if name.starts_with("would") { Color::Yellow } else { Color::Red };
        spans.push(Span::styled(name, theme.colour(colour)));
        spans.push(Span::raw(format!(" {}/s  ", short(mean))));
    }
    Line::from(spans)
}

/// Characters of a name that there is always room for.
const LEAST_NAME: u16 = 15;
/// Characters of a number.
const NUMBER: u16 = 7;
const NUMBER_COLUMNS: u16 = 5;
/// Characters that a long name leaves for words.
const WHY: u16 = 22;

fn table(frame: &mut Frame, model: &Model, theme: Theme, area: Rect) {
    let name = View::ALL.iter().find(|(view, _)| *view == model.view).map_or("", |(_, name)| name);
    let of_sources = matches!(model.view, View::Sources | View::Prefixes);
    let rows = model.rows();
    let mark = |column: &str, sort: &str| {
        let star = if model.sort_name() == sort { "*" } else { "" };
        format!("{column}{star}")
    };
    // Where there is no room, who it is comes before how much.
    let fit = area.width.saturating_sub(LEAST_NAME) / (NUMBER + 1);
    let fit = usize::from(fit.min(NUMBER_COLUMNS));
    let line = |name: String, numbers: [String; NUMBER_COLUMNS as usize], why: String| {
        let right = |text: String| Text::from(text).right_aligned();
        let numbers = numbers.into_iter().take(fit).map(right);
        let cells = std::iter::once(Text::from(name)).chain(numbers).chain([Text::from(why)]);
        TableRow::new(cells)
    };
    let header = line(
        format!("{name} ({})", rows.len()),
        [
            mark("pass/s", "passed"),
            mark("drop/s", "dropped"),
            "would".into(),
            "+-".into(),
            mark("bit/s", "bytes"),
        ],
        if of_sources { "why, policy" } else { "" }.into(),
    );
    let header = header.style(BOLD.patch(Style::new().add_modifier(Modifier::UNDERLINED)));
    let visible = usize::from(area.height.saturating_sub(1));
    let first = (model.selected + 1).saturating_sub(visible.max(1));
    let shown = rows.iter().enumerate().skip(first).take(visible).map(|(at, row)| {
        let rates = &row.rates;
        let (over, why) = (rates.dropped_pps + rates.would_drop_pps > 0.0, &row.reason);
        let why = [why.as_str(), row.policy.as_str()].map(str::to_owned).join(" ");
        let style = if over && rates.dropped_pps > 0.0 {
            theme.colour(Color::Red)
        } else if over {
            theme.colour(Color::Yellow)
        } else {
            Style::new()
        };
        let numbers = [
            rates.passed_pps,
            rates.dropped_pps,
            rates.would_drop_pps,
            rates.error_bound,
            rates.bytes_per_second * 8.0,
        ];
        let cells = line(row.name.clone(), numbers.map(short), why.trim().to_owned()).style(style);
        if at == model.selected { cells.style(style.patch(REVERSED)) } else { cells }
    });
    let longest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let longest = u16::try_from(longest).unwrap_or(area.width);
    let others = NUMBER_COLUMNS * (NUMBER + 1) + 1 + WHY;
    let most = area.width.saturating_sub(others).max(LEAST_NAME);
    let widths = std::iter::once(longest.clamp(LEAST_NAME, most)).chain([NUMBER].repeat(fit));
    let widths = widths.map(Constraint::Length).chain([Constraint::Fill(1)]);
    frame.render_widget(Table::new(shown, widths).header(header), area);
}

fn footer(model: &Model, theme: Theme) -> Line<'_> {
    match &model.mode {
        Mode::Filter => Line::styled(format!("filter: {}_  (Enter, Esc)", model.filter), BOLD),
        Mode::Ban(prefix) => Line::styled(
            format!("ban {prefix} for an hour? y/n"),
            theme.colour(Color::Red).patch(BOLD).patch(REVERSED),
        ),
        _ if !model.message.is_empty() => Line::styled(model.message.as_str(), BOLD),
        _ => {
            let filter = match model.filter.as_str() {
                "" => String::new(),
                filter => format!("[filter {filter}]  "),
            };
            let sort = model.sort_name();
            Line::styled(
                format!(
                    "{filter}q quit  s sort: {sort}  v view  / filter  b ban  e explain  p pause  ? help"
                ),
                Style::new().add_modifier(Modifier::DIM),
            )
        }
    }
}

fn popup(frame: &mut Frame, title: &str, text: &[String], from: usize) {
    let all = frame.area();
    let height = u16::try_from(text.len() + 2).unwrap_or(u16::MAX).min(all.height);
    let widest = text.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = u16::try_from(widest + 4).unwrap_or(u16::MAX).clamp(40.min(all.width), all.width);
    let area = Rect { x: (all.width - width) / 2, y: (all.height - height) / 2, width, height };
    let lines: Vec<_> = text.iter().skip(from).map(|line| Line::raw(line.as_str())).collect();
    let block = Block::bordered().title(format!(" {title} ")).title_bottom(" any key closes ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
