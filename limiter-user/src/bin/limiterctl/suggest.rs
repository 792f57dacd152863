//! Limits that would fit.

use std::fmt::Write as _;

use limiter_user::{
    api::{NearSource, SuggestQuery, Suggestion, Suggestions},
    client::Client,
    error::Result,
};

use crate::{
    Output, print,
    text::{duration, grouped, numbers, share},
};

/// What to propose.
#[derive(clap::Args)]
pub(crate) struct Suggest {
    /// Only for this policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// So many sources of a hundred are to stay below the limit even without
    /// headroom [default: 99.9]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    quantile: Option<f64>,
    /// By how much what they need is multiplied [default: 2]
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    headroom: Option<f64>,
}

impl Suggest {
    pub(crate) async fn run(self, client: &Client, output: Output) -> Result<()> {
        let Self { policy, quantile, headroom } = self;
        let query = SuggestQuery { policy, quantile, headroom };
        print(&client.suggest(&query).await?, output, shown)
    }
}

fn shown(suggestions: &Suggestions) -> String {
    let mut text = String::new();
    for it in &suggestions.policies {
        // Into a string, nothing can fail.
        let _ = writeln!(text, "{}", one(it, suggestions));
    }
    for note in &suggestions.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if text.is_empty() {
        text.push_str("nothing was seen of any policy yet; ask again in some seconds");
    }
    text.trim_end().to_owned()
}

fn one(it: &Suggestion, of: &Suggestions) -> String {
    let seconds = it.observed_seconds;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "seconds of an hour at most"
    )]
    let observed = duration(seconds as u64);
    let looked_at = match it.one_source_in {
        1 => String::new(),
        one_in => format!(" (an estimate: one in {one_in} was looked at)"),
    };
    let present = match (it.present_rate_per_second, it.present_burst) {
        (Some(rate), Some(burst)) => format!("{rate:.0}/s, burst {}", grouped(burst.into())),
        _ => "no limit of packets per source".into(),
    };
    let mut text = format!(
        "{}: {:.0}/s, burst {}; now {present}\n  \
         {}\n  \
         {} of 100 sources stay below it even without the headroom of {}\n  \
         seen: {} sources{looked_at} in {observed}; of them it would cut {}, and {} of the packets\n",
        it.policy,
        it.rate_per_second,
        grouped(it.burst.into()),
        it.command,
        of.quantile,
        of.headroom,
        grouped(it.sources_seen),
        grouped(it.sources_cut),
        share_with_error(it.share_cut, it.share_error),
    );
    let mut table = numbers(&["nearest", "packets/s", "of the burst", "cut"]);
    for NearSource { source, rate_per_second, use_of_burst, share_cut } in &it.nearest {
        table.add_row([
            source.clone(),
            format!("{rate_per_second:.1}"),
            share(*use_of_burst),
            share(*share_cut),
        ]);
    }
    let _ = writeln!(text, "{table}");
    text
}

fn share_with_error(value: f64, error: f64) -> String {
    if error > 0.0 { format!("{} ± {}", share(value), share(error)) } else { share(value) }
}
