//! The table of the metrics' reference page.

use std::fmt::Write;

use swimlet_telemetry::catalogue::{ALL, Kind, Label, Metric, On};

const HEAD: &str = "| name | kind | labels | on | meaning |\n| --- | --- | --- | --- | --- |\n";
/// More values than this are listed under the table.
const INLINE_MAX: usize = 12;

/// The page with its table made anew; `None` if it has none.
#[must_use]
pub fn renewed(page: &str) -> Option<String> {
    let (before, rest) = page.split_once(HEAD)?;
    let after = rest.find("\n\n").map_or("", |end| &rest[end + 1..]);
    let mut table = String::new();
    for metric in ALL {
        // Writing to a String cannot fail.
        let _ = row(&mut table, metric);
    }
    Some(format!("{before}{HEAD}{table}{after}"))
}

fn row(table: &mut String, metric: &Metric) -> std::fmt::Result {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let on = match metric.on {
        On::All => "all",
        On::Agents => "agents",
        On::Aggregators => "aggregators",
    };
    let labels: Vec<_> = metric.labels.iter().map(values).collect();
    let labels = labels.join("; ");
    let space = if labels.is_empty() { "" } else { " " };
    let Metric { name, help, .. } = metric;
    writeln!(
        table,
        "| `{name}` | {kind} |{space}{labels} | {on} | {help} |"
    )
}

fn values(label: &Label) -> String {
    let Label { name, values } = label;
    match values.len() {
        0 if *name == "version" => format!("`{name}`"),
        1..=INLINE_MAX => format!("`{name}`: {}", values.join(", ")),
        _ => format!("`{name}`: see below"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_is_renewed() {
        let page = format!("before\n\n{HEAD}| `old` | gauge | | all | Gone. |\n\nafter\n");
        let new = renewed(&page).unwrap();
        assert!(new.starts_with("before\n\n| name |"), "{new}");
        assert!(new.ends_with("|\n\nafter\n"), "{new}");
        assert!(!new.contains("`old`"), "{new}");
        assert_eq!(renewed(&new).unwrap(), new);
        assert_eq!(renewed("no table"), None);
    }
}
