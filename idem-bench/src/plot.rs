//! A picture of one contest: throughput and latency against the number of callers.

use std::fmt::Write as _;

use crate::measure::{Figures, Outcome};
use crate::report::time;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 400.0;
/// Of one panel, inside its axes.
const PANEL: (f64, f64) = (360.0, 240.0);
const TOP: f64 = 64.0;

/// They differ in lightness as well, for who sees no colours. The first is ours.
const COLOURS: [&str; 4] = ["#0b5fa5", "#e07b00", "#7a7a7a", "#2a9d5c"];

/// The contest as an SVG document. Both vertical axes are logarithmic; callers stand side by side.
pub(crate) fn draw(outcome: &Outcome) -> String {
    let lines = lines(outcome);
    let callers: Vec<u32> = outcome.levels.iter().map(|level| level.callers).collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"16\">{}</text>\n<text x=\"16\" y=\"42\" fill=\"#555\">{}</text>\n",
        escape(outcome.contest),
        escape(outcome.operation),
    );
    let throughput = Panel {
        left: 80.0,
        title: "operations per second",
        unit: |value| format!("{value}"),
        callers: &callers,
    };
    let series = lines.iter().map(|line| (line, line.of(|it| it.per_second)));
    throughput.draw(&mut svg, &series.map(Series::solid).collect::<Vec<_>>());
    let latency = Panel {
        left: 560.0,
        title: "latency: p50, and p99 dashed",
        unit: time,
        callers: &callers,
    };
    let mut series = Vec::new();
    for line in &lines {
        series.push(Series::solid((line, line.of(|it| it.p50_nanos))));
        series.push(Series::dashed((line, line.of(|it| it.p99_nanos))));
    }
    latency.draw(&mut svg, &series);
    legend(&mut svg, &lines);
    svg.push_str("</svg>\n");
    svg
}

/// One contestant at all levels.
struct Line<'a> {
    colour: &'static str,
    name: String,
    points: Vec<&'a Figures>,
}

impl Line<'_> {
    fn of(&self, pick: fn(&Figures) -> f64) -> Vec<f64> {
        self.points.iter().map(|figures| pick(figures)).collect()
    }
}

fn lines(outcome: &Outcome) -> Vec<Line<'_>> {
    let Some(first) = outcome.levels.first() else {
        return Vec::new();
    };
    let mut lines = vec![Line {
        colour: COLOURS[0],
        name: format!("ours: {}", first.ours.name),
        points: outcome.levels.iter().map(|level| &level.ours).collect(),
    }];
    for (index, other) in first.others.iter().enumerate() {
        lines.push(Line {
            colour: COLOURS[(index + 1) % COLOURS.len()],
            name: format!("{}: {}", other.role, other.figures.name),
            points: outcome
                .levels
                .iter()
                .filter_map(|level| level.others.get(index))
                .map(|other| &other.figures)
                .collect(),
        });
    }
    lines
}

struct Series {
    colour: &'static str,
    dashes: &'static str,
    values: Vec<f64>,
}

impl Series {
    fn solid((line, values): (&Line<'_>, Vec<f64>)) -> Self {
        Self {
            colour: line.colour,
            dashes: "none",
            values,
        }
    }

    fn dashed(of: (&Line<'_>, Vec<f64>)) -> Self {
        Self {
            dashes: "5 4",
            ..Self::solid(of)
        }
    }
}

struct Panel<'a> {
    left: f64,
    title: &'static str,
    unit: fn(f64) -> String,
    callers: &'a [u32],
}

impl Panel<'_> {
    /// Writing to a string cannot fail, here and below.
    fn draw(&self, svg: &mut String, series: &[Series]) {
        let (lowest, highest) = decades(series);
        let bottom = TOP + PANEL.1;
        let right = self.left + PANEL.0;
        let height = |value: f64| {
            let share = (value.max(1e-9).log10() - f64::from(lowest)) / f64::from(highest - lowest);
            bottom - share * PANEL.1
        };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" fill=\"#333\">{}</text>",
            self.left,
            TOP - 6.0,
            escape(self.title)
        );
        for decade in lowest..=highest {
            let value = 10_f64.powi(decade);
            let y = height(value);
            let _ = writeln!(
                svg,
                "<line x1=\"{}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
                self.left,
                self.left - 6.0,
                y + 4.0,
                (self.unit)(value),
            );
        }
        for (index, callers) in self.callers.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{callers}</text>",
                self.across(index),
                bottom + 18.0,
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">callers</text>",
            f64::midpoint(self.left, right),
            bottom + 34.0,
        );
        for Series {
            colour,
            dashes,
            values,
        } in series
        {
            let points: Vec<(f64, f64)> = values
                .iter()
                .enumerate()
                .map(|(index, value)| (self.across(index), height(*value)))
                .collect();
            let path: Vec<String> = points
                .iter()
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
                 stroke-dasharray=\"{dashes}\"/>",
                path.join(" ")
            );
            for (x, y) in points {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
                );
            }
        }
    }

    fn across(&self, index: usize) -> f64 {
        let step = PANEL.0 / self.callers.len().max(1) as f64;
        self.left + step * (index as f64 + 0.5)
    }
}

/// The powers of ten that all values lie between.
fn decades(series: &[Series]) -> (i32, i32) {
    let logs: Vec<f64> = series
        .iter()
        .flat_map(|series| &series.values)
        .filter(|value| **value > 0.0)
        .map(|value| value.log10())
        .collect();
    let lowest = logs.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if lowest > highest {
        return (0, 1);
    }
    let lowest = lowest.floor() as i32;
    (lowest, (highest.ceil() as i32).max(lowest + 1))
}

fn legend(svg: &mut String, lines: &[Line<'_>]) {
    let mut x = 80.0;
    for line in lines {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"#333\">{}</text>",
            HEIGHT - 34.0,
            line.colour,
            x + 18.0,
            HEIGHT - 24.0,
            escape(&line.name),
        );
        x += 40.0 + 7.0 * line.name.len() as f64;
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series {
            colour: COLOURS[0],
            dashes: "none",
            values: values.to_vec(),
        }
    }

    #[test]
    fn an_axis_spans_whole_decades() {
        assert_eq!(decades(&[series(&[12.0, 950.0])]), (1, 3));
        assert_eq!(decades(&[series(&[100.0])]), (2, 3));
        assert_eq!(decades(&[series(&[0.0])]), (0, 1));
        assert_eq!(decades(&[]), (0, 1));
    }

    #[test]
    fn names_cannot_break_the_document() {
        assert_eq!(escape("a<b & c>d"), "a&lt;b &amp; c&gt;d");
    }
}
