//! What an alert is.

/// Whom an alert calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Wakes somebody: nodes are dead and not written, or were written wrongly, or will be.
    Critical,
    /// Waits for the morning: swimlet sees less than it should, Kubernetes' own detection is on.
    Warning,
    /// Worth a look some day.
    Info,
}

/// One alert. It needs no job's name: swimlet's series say themselves what they come from.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// Its name, which is also its runbook's heading.
    pub name: &'static str,
    /// Whom it calls.
    pub severity: Severity,
    /// How long the expression must hold, as Prometheus writes it; empty for at once.
    pub holds: &'static str,
    /// The expression; each of its lines becomes one of the rule, the first without indent.
    pub expr: &'static [&'static str],
    /// One line; may use Prometheus' templates.
    pub summary: &'static str,
    /// What that means, without templates.
    pub description: &'static str,
    /// Where it must fire, and where it must not.
    pub cases: &'static [Case],
}

/// A unit test of an alert.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What is the matter.
    pub about: &'static str,
    /// Series and their values, as `promtool test rules` writes them, one every 30 s.
    pub series: &'static [(&'static str, &'static str)],
    /// When to look, as Prometheus writes durations.
    pub at: &'static str,
    /// What fires then; `None` for nothing.
    pub fires: Option<Firing>,
}

/// A firing alert.
#[derive(Clone, Copy, Debug)]
pub struct Firing {
    /// Labels, without name and severity.
    pub labels: &'static [(&'static str, &'static str)],
    /// The summary with its templates filled in.
    pub summary: &'static str,
}

/// Where the runbooks are; an alert's section bears its name.
pub const RUNBOOKS: &str = "https://github.com/swimlet/swimlet/blob/main/docs/operate/alerts.md";

impl Severity {
    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

impl Alert {
    /// Where its runbook is.
    #[must_use]
    pub fn runbook(&self) -> String {
        format!("{RUNBOOKS}#{}", self.name.to_ascii_lowercase())
    }

    /// The expression as one text.
    #[must_use]
    pub fn expression(&self) -> String {
        self.expr.join("\n")
    }
}
