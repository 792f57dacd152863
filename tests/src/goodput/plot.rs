//! Curves over the flood's rate, drawn by gnuplot.

use std::{fmt::Write as _, path::Path, process::Command};

use super::{
    flood::Kind,
    report::{Cell, Report},
    shield::{Shield, feed},
};

/// Draws requests answered and the 99th percentile of their latency, a column
/// for each flood, into an SVG file.
///
/// # Panics
/// If gnuplot is missing or fails.
pub fn draw(report: &Report, file: &Path) {
    // A name could hold quotes: it stays out of the script.
    let mut gnuplot = Command::new("gnuplot");
    feed(gnuplot.env("GOODPUT_PLOT", file), &script(report));
}

fn script(report: &Report) -> String {
    let floods = Kind::ALL.into_iter().filter(|kind| of(report, *kind).next().is_some());
    let floods: Vec<_> = floods.collect();
    let mut text = format!(
        "set terminal svg size {},620 font 'sans-serif,13' background '#ffffff'\n\
         set output system('printf %s \"$GOODPUT_PLOT\"')\n\
         set datafile missing '-'\n",
        420 * floods.len()
    );
    for (number, flood) in floods.iter().enumerate() {
        for shield in Shield::ALL {
            let _ = writeln!(text, "${shield:?}{number} << END");
            let mut points: Vec<_> = report
                .cells
                .iter()
                .filter(|cell| cell.shield == shield)
                .filter(|cell| cell.flood.is_none_or(|kind| kind == *flood))
                .collect();
            points.sort_by(|a, b| a.flood_sent_per_second.total_cmp(&b.flood_sent_per_second));
            for cell in points {
                let p99 = cell.p99_ms.map_or("-".to_owned(), |ms| ms.to_string());
                let rate = cell.flood_sent_per_second / 1e3;
                let _ = writeln!(text, "{rate} {} {p99}", 100.0 * cell.success_ratio);
            }
            text += "END\n";
        }
    }
    let _ = writeln!(text, "set multiplot layout 2,{}", floods.len());
    text += "set grid\nset key bottom left\nset xlabel 'flood, 1000 frames/s sent'\n\
             set xrange [0:*]\nset yrange [-3:103]\nset ylabel 'requests answered, %'\n";
    panels(&mut text, &floods, 2);
    text += "set key bottom right\nset logscale y\nset yrange [0.1:3000]\n\
             set ylabel 'p99 of those, ms'\n";
    panels(&mut text, &floods, 3);
    text + "unset multiplot\n"
}

fn of(report: &Report, kind: Kind) -> impl Iterator<Item = &Cell> {
    report.cells.iter().filter(move |cell| cell.flood == Some(kind))
}

fn panels(text: &mut String, floods: &[Kind], column: u32) {
    for (number, flood) in floods.iter().enumerate() {
        let _ = writeln!(text, "set title '{}'", flood.name());
        let curves = Shield::ALL.iter().zip(["#999999", "#d95f02", "#1b66b0"]);
        let curves = curves.map(|(shield, colour)| {
            format!(
                "${shield:?}{number} using 1:{column} with linespoints linewidth 2 pointtype 7 \
                 pointsize 0.6 linecolor '{colour}' title '{}'",
                shield.name()
            )
        });
        let _ = writeln!(text, "plot {}", curves.collect::<Vec<_>>().join(", "));
    }
}
