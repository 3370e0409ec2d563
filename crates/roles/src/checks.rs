//! An agent's word about its own node: what its checks found, over time.

use std::time::Duration;

use swimlet_protocol::frame::{Check, PortAnswer, SelfReport};
use swimlet_protocol::{Generation, MemberKey, Moment};

/// Between two reports. They are the aggregators' steady proof that this agent lives.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Between two reports while something fails, so that a recovery is seen soon.
pub const INTERVAL_FAILING: Duration = Duration::from_secs(2);
/// For each check. A kubelet under load answers slowly; the verdict needs 50 s of failure.
pub const TIMEOUT: Duration = Duration::from_secs(3);

/// Turns what an agent finds at its own node into its reports.
///
/// It asks for a look ([`Output::Look`]), is told what was found ([`Input::Looked`]) and
/// makes a report of it. What never worked says nothing when it fails: a kubelet without
/// `:10248`, an API server behind a proxy.
#[derive(Clone, Debug)]
pub struct SelfChecks {
    me: MemberKey,
    healthz: Standing,
    port: Standing,
    api: Standing,
    /// When to look next; `None` while a look is under way.
    due: Option<Moment>,
    output: Option<Output>,
}

/// What the machine is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The answer to [`Output::Look`].
    Looked(Looked),
    /// Time passed. Due at [`SelfChecks::next_wake`].
    Wake,
}

/// What it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Do the three checks, each for [`TIMEOUT`] at most, and tell what they found. Never
    /// asked twice before it is answered.
    Look,
    /// Hand this to the mesh as [`swimlet_mesh::Input::SelfReport`], which fills in its own
    /// generation.
    Report(SelfReport),
}

/// What one look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Whether the kubelet's own health check answered that it is well.
    pub healthz: bool,
    /// What the kubelet's port did.
    pub port: PortAnswer,
    /// Whether the API server took a TCP connection; `None` if it is not configured.
    pub api: Option<bool>,
}

/// One check over time.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    ever_worked: bool,
}

impl SelfChecks {
    /// The checks of the agent `me`; the first look is due at once.
    #[must_use]
    pub fn new(now: Moment, me: MemberKey) -> Self {
        Self {
            me,
            healthz: Standing::default(),
            port: Standing::default(),
            api: Standing::default(),
            due: Some(now),
            output: None,
        }
    }

    /// Takes one piece of news.
    pub fn handle(&mut self, now: Moment, input: Input) {
        match input {
            Input::Looked(looked) => {
                let report = self.report(looked);
                let interval = if is_failing(&report) {
                    INTERVAL_FAILING
                } else {
                    INTERVAL
                };
                self.due = Some(now + interval);
                self.output = Some(Output::Report(report));
            }
            Input::Wake => {
                if self.due.is_some_and(|due| due <= now) {
                    self.due = None;
                    self.output = Some(Output::Look);
                }
            }
        }
    }

    /// The next thing to be done, if any.
    pub fn poll(&mut self) -> Option<Output> {
        self.output.take()
    }

    /// When to feed [`Input::Wake`]; `None` while a look is under way.
    #[must_use]
    pub const fn next_wake(&self) -> Option<Moment> {
        self.due
    }

    fn report(&mut self, looked: Looked) -> SelfReport {
        let works = matches!(looked.port, PortAnswer::Tls { .. });
        SelfReport {
            node: self.me,
            // The mesh fills in its own.
            generation: Generation::default(),
            age_ms: 0,
            kubelet_healthz: self.healthz.note(looked.healthz),
            kubelet_port: self.port.note(works),
            api: looked
                .api
                .map_or(Check::Unknown, |works| self.api.note(works)),
        }
    }
}

impl Standing {
    fn note(&mut self, works: bool) -> Check {
        self.ever_worked |= works;
        match (works, self.ever_worked) {
            (true, _) => Check::Passing,
            (false, true) => Check::Failing,
            (false, false) => Check::NeverWorked,
        }
    }
}

fn is_failing(report: &SelfReport) -> bool {
    let checks = [report.kubelet_healthz, report.kubelet_port, report.api];
    checks.contains(&Check::Failing)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: PortAnswer = PortAnswer::Tls { names_node: true };

    fn checks() -> SelfChecks {
        SelfChecks::new(Moment::ORIGIN, MemberKey(1))
    }

    fn look(checks: &mut SelfChecks, healthz: bool, port: PortAnswer) -> (SelfReport, Duration) {
        let now = checks.next_wake().unwrap();
        checks.handle(now, Input::Wake);
        assert_eq!(checks.poll(), Some(Output::Look));
        assert_eq!(checks.next_wake(), None, "one look at a time");
        let looked = Looked {
            healthz,
            port,
            api: None,
        };
        checks.handle(now, Input::Looked(looked));
        let Some(Output::Report(report)) = checks.poll() else {
            panic!("a look makes a report");
        };
        (report, checks.next_wake().unwrap().since(now))
    }

    /// Scenario 14 and its counterpart: a kubelet that never served `:10248` is no failing one.
    #[test]
    fn what_never_worked_does_not_fail() {
        let mut checks = checks();
        let (report, pause) = look(&mut checks, false, WELL);
        assert_eq!(report.kubelet_healthz, Check::NeverWorked);
        assert_eq!(report.kubelet_port, Check::Passing);
        assert_eq!(report.api, Check::Unknown);
        assert_eq!(pause, INTERVAL);
        let (report, _) = look(&mut checks, true, WELL);
        assert_eq!(report.kubelet_healthz, Check::Passing);
    }

    #[test]
    fn what_fails_is_looked_at_again_soon() {
        let mut checks = checks();
        look(&mut checks, true, WELL);
        for failure in [
            PortAnswer::Accepts,
            PortAnswer::Refuses,
            PortAnswer::Silent,
            PortAnswer::Untried,
        ] {
            let (report, pause) = look(&mut checks, false, failure);
            assert_eq!(report.kubelet_healthz, Check::Failing);
            assert_eq!(report.kubelet_port, Check::Failing, "{failure:?}");
            assert_eq!(pause, INTERVAL_FAILING);
        }
    }
}
