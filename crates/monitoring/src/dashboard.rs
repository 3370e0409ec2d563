//! Every row, panel and query of the dashboard.
//!
//! Each series is selected by the variable `cluster`, which matches everything where
//! Prometheus adds no such label. What nodes are by verdict comes from the aggregator that
//! leads, as in the alerts.

mod glance;
mod members;
mod work;

/// A dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Dashboard {
    /// What Grafana knows it by; never changed, so that links stay.
    pub uid: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Its rows, the most urgent first.
    pub rows: &'static [Row],
}

/// Panels under a heading.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The heading.
    pub title: &'static str,
    /// Its panels, from left to right.
    pub panels: &'static [Panel],
}

/// A panel.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    /// Its title.
    pub title: &'static str,
    /// What it means, and what is right and wrong.
    pub about: &'static str,
    /// How it is drawn.
    pub kind: Kind,
    /// The values' unit.
    pub unit: Unit,
    /// Its width in columns, of which there are 24.
    pub width: u32,
    /// What stands there where there is no data.
    pub empty: &'static str,
    /// What it asks.
    pub queries: &'static [Query],
}

/// How a panel is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The newest value, coloured from the first bound on that it reaches.
    Stat(&'static [Bound]),
    /// Lines over time.
    Lines,
    /// Areas over time, one upon the other.
    Stacked,
    /// The newest values, a bar each.
    Ranked,
}

/// From this value on, this colour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound(pub f64, pub Colour);

/// A colour that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Says nothing of right or wrong.
    Neutral,
    /// As it should be.
    Right,
    /// Worth a look.
    Doubtful,
    /// Wrong.
    Wrong,
}

/// A unit, as Grafana names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Seconds.
    Seconds,
    /// Things a second.
    PerSecond,
    /// A share of 1.
    Share,
    /// 1 for yes, 0 for no.
    YesNo,
    /// Milliseconds since 1970, shown as how long from now.
    FromNow,
}

/// A question to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// In PromQL, with Grafana's variables.
    pub expr: &'static str,
    /// What each series is called.
    pub legend: &'static str,
}

/// The one dashboard.
pub const SWIMLET: Dashboard = Dashboard {
    uid: "swimlet",
    title: "swimlet",
    rows: &[
        glance::GLANCE,
        work::DETECTION,
        members::MESH,
        members::AGENTS,
        work::API,
    ],
};

/// The query's series by a label.
const fn by(expr: &'static str, legend: &'static str) -> Query {
    Query { expr, legend }
}

impl Unit {
    /// Grafana's name for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::Seconds => "s",
            Self::PerSecond => "ops",
            Self::Share => "percentunit",
            Self::YesNo => "bool_on_off",
            Self::FromNow => "dateTimeFromNow",
        }
    }
}

impl Colour {
    /// Grafana's name for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Neutral => "text",
            Self::Right => "green",
            Self::Doubtful => "orange",
            Self::Wrong => "red",
        }
    }
}

/// Every query with the panel that asks it.
pub fn queries(dashboard: &Dashboard) -> impl Iterator<Item = (&'static Panel, Query)> {
    let panels = dashboard.rows.iter().flat_map(|row| row.panels);
    panels.flat_map(|panel| panel.queries.iter().map(move |query| (panel, *query)))
}
