//! Every metric that swimlet exposes. A name that is not here does not exist.

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// Counter, gauge or histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution.
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its labels; each has few values, none is a peer's name.
    pub labels: &'static [&'static str],
    /// What it means, and its unit.
    pub help: &'static str,
}

macro_rules! catalogue {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(#[doc = $help] pub const $constant: &str = $name;)+

        /// All metrics, in the order of the reference page.
        pub const ALL: &[Metric] = &[$(Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        }),+];
    };
}

catalogue! {
    BUILD_INFO = Gauge "swimlet_build_info" ["version"] "Always 1; the label is this process's version.";
    MEMBERS = Gauge "swimlet_mesh_members" ["state"] "Members of the mesh as this member holds them, by state.";
    LOCAL_HEALTH = Gauge "swimlet_mesh_local_health" [] "Lifeguard's local health multiplier: 0 is healthy, 8 is sick.";
    LINKS = Gauge "swimlet_mesh_links" [] "Open QUIC links.";
    PROBES = Counter "swimlet_mesh_probes_total" ["result"] "Direct probes by result.";
    MESH_DROPS = Counter "swimlet_mesh_dropped_total" ["reason"] "Frames, news and claims that the mesh dropped, by reason.";
    TRANSPORT = Counter "swimlet_transport_total" ["what"] "What the transport sent, received, refused and dropped.";
    PATHS = Gauge "swimlet_baseline_paths" [] "Kubelet ports that this member has reached within the baseline window: only there does its no count.";
    CERTIFICATE_EXPIRY = Gauge "swimlet_certificate_expiry_timestamp_seconds" [] "When this member's certificate expires, as Unix time in seconds.";
    SELF_CHECK = Gauge "swimlet_agent_check_passing" ["check"] "1 if the agent's own check of its node passes, 0 if not.";
    QUEUE_DROPS = Counter "swimlet_queue_dropped_total" ["queue"] "Items dropped because a bounded queue inside the process was full.";
    LEADER = Gauge "swimlet_aggregator_leader" [] "1 on the aggregator that holds the Lease.";
    NODES = Gauge "swimlet_nodes" ["verdict"] "Nodes by verdict.";
    DECISIONS = Counter "swimlet_decisions_total" ["verdict"] "Decisions of the judge by verdict.";
    WRITES = Counter "swimlet_condition_writes_total" ["outcome"] "Decisions to write Ready=Unknown, by what became of them.";
    PODS_MARKED = Counter "swimlet_pods_marked_total" [] "Pods of written nodes that were set NotReady.";
    BRAKE = Gauge "swimlet_brake_engaged" ["brake"] "1 while the brake holds writes back.";
    NOTICES = Counter "swimlet_notices_total" ["kind"] "What the judge wants a person to know, by kind.";
    DETECTION = Histogram "swimlet_detection_seconds" ["verdict"] "Seconds from the earliest unanswered probe to the decision.";
    API_REQUESTS = Counter "swimlet_api_requests_total" [] "Requests to the Kubernetes API.";
    API_FAILURES = Counter "swimlet_api_failures_total" ["kind"] "Requests to the Kubernetes API that were throttled, met an unavailable server, or stayed unanswered.";
}

/// Upper bounds of [`DETECTION`]'s buckets in seconds: the three profiles' targets, and
/// in-tree detection's 40 to 60 s.
pub const DETECTION_BUCKETS: [f64; 12] = [
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 40.0, 60.0, 120.0,
];

/// Describes every metric to the installed recorder.
pub fn describe() {
    for metric in ALL {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Histogram => describe_histogram!(metric.name, metric.help),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_has_every_metric() {
        let page = include_str!("../../../docs/reference/metrics.md");
        for Metric {
            name, kind, help, ..
        } in ALL
        {
            let row = format!("| `{name}` | {} |", format!("{kind:?}").to_lowercase());
            let row = page.lines().find(|line| line.starts_with(&row));
            let row = row.unwrap_or_else(|| panic!("no row for {name}, a {kind:?}"));
            let help = help.split([':', ',']).next().unwrap();
            assert!(row.contains(help), "{row}\nlacks: {help}");
        }
        let rows = page.lines().filter(|line| line.starts_with("| `swimlet_"));
        assert_eq!(
            rows.count(),
            ALL.len(),
            "the page has a metric that does not exist"
        );
    }

    #[test]
    fn names_follow_the_conventions() {
        for metric in ALL {
            let Metric { name, kind, .. } = metric;
            assert!(name.starts_with("swimlet_"), "{name}");
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.help.ends_with('.'), "{name}");
            assert!(!metric.labels.contains(&"peer"), "{name}");
            assert_eq!(ALL.iter().filter(|m| m.name == *name).count(), 1, "{name}");
        }
    }
}
