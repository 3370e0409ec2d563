//! Every metric that swimlet exposes. A name that is not here does not exist.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use swimlet_protocol::Role;

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

/// Which members expose a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Agents and aggregators.
    All,
    /// Agents alone.
    Agents,
    /// Aggregators alone.
    Aggregators,
}

/// A label, and what it may say.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values; none where they are not the catalogue's to say (a version, the transport's counters).
    pub values: &'static [&'static str],
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Who exposes it.
    pub on: On,
    /// Its labels; each has few values, none is a peer's name.
    pub labels: &'static [Label],
    /// What it means, and its unit.
    pub help: &'static str,
}

/// The judge's verdicts.
const VERDICTS: &[&str] = &[
    "Alive",
    "Unreachable",
    "KubeletDown",
    "ApiCutOff",
    "HeartbeatSilent",
    "MeshCutOff",
    "AgentMissing",
    "Left",
    "Unverifiable",
    "Unmonitored",
    "Withheld",
];
/// Those of them that are written.
const WRITTEN: &[&str] = &["Unreachable", "KubeletDown", "ApiCutOff", "HeartbeatSilent"];
const NOTICES_OF_THE_JUDGE: &[&str] = &[
    "brake_on",
    "brake_off",
    "agent_missing",
    "mesh_cut_off",
    "unverifiable",
    "withheld",
    "covered_by_none",
    "taken_back",
    "api_cut_off_many",
];
const QUEUES: &[&str] = &[
    "unsent",
    "member_events",
    "member_outputs",
    "baseline",
    "verification",
    "port_checks",
    "verifier_outputs",
    "aggregator_outputs",
    "decisions",
    "events",
    "nodes",
    "lease_reads",
];
/// Values that are said elsewhere: by the version, by `mesh::Stats`, by `transport::Stats`.
const OPEN: &[&str] = &[];

macro_rules! catalogue {
    ($($constant:ident = $on:ident $kind:ident $name:literal { $($label:literal: $values:expr),* } $help:literal;)+) => {
        $(#[doc = $help] pub const $constant: &str = $name;)+

        /// All metrics, in the order of the reference page.
        pub const ALL: &[Metric] = &[$(Metric {
            name: $name,
            kind: Kind::$kind,
            on: On::$on,
            labels: &[$(Label { name: $label, values: $values }),*],
            help: $help,
        }),+];
    };
}

catalogue! {
    BUILD_INFO = All Gauge "swimlet_build_info" { "version": OPEN, "role": &["agent", "aggregator"] } "Always 1; the labels are this process's version and role.";
    START_TIME = All Gauge "swimlet_start_time_seconds" {} "When this process started, as Unix time in seconds.";
    MEMBERS = All Gauge "swimlet_mesh_members" { "state": &["alive", "suspect", "down", "left"] } "The other members of the mesh as this member holds them, by state.";
    LOCAL_HEALTH = All Gauge "swimlet_mesh_local_health" {} "Lifeguard's local health multiplier: 0 is healthy, 8 is sick.";
    LINKS = All Gauge "swimlet_mesh_links" {} "Open QUIC links.";
    PROBES = All Counter "swimlet_mesh_probes_total" { "result": &["acked", "missed"] } "Direct probes by result.";
    MESH_DROPS = All Counter "swimlet_mesh_dropped_total" { "reason": OPEN } "Frames, news and claims that the mesh dropped, by reason.";
    TRANSPORT = All Counter "swimlet_transport_total" { "what": OPEN } "What the transport sent, received, refused and dropped.";
    PATHS = All Gauge "swimlet_baseline_paths" {} "Kubelet ports that this member has reached within the baseline window (25 min): only there does its no count.";
    CERTIFICATE_EXPIRY = All Gauge "swimlet_certificate_expiry_timestamp_seconds" {} "When this member's certificate expires, as Unix time in seconds.";
    SELF_CHECK = Agents Gauge "swimlet_agent_check_passing" { "check": &["kubelet_healthz", "kubelet_port", "api"] } "1 if the agent's own check of its node passes, 0 if not. 0 also for a check that is not configured.";
    QUEUE_DROPS = All Counter "swimlet_queue_dropped_total" { "queue": QUEUES } "Items dropped because a bounded queue inside the process was full.";
    LEADER = Aggregators Gauge "swimlet_aggregator_leader" {} "1 on the aggregator that holds the Lease, 0 on the others.";
    NODES = Aggregators Gauge "swimlet_nodes" { "verdict": VERDICTS } "Nodes by verdict.";
    DECISIONS = Aggregators Counter "swimlet_decisions_total" { "verdict": VERDICTS } "Decisions of the judge by verdict.";
    WRITES = Aggregators Counter "swimlet_condition_writes_total" { "outcome": &["written", "would_write", "aged", "superseded", "conflict", "gone", "failed"] } "Decisions to write Ready=Unknown, by what became of them.";
    PODS_MARKED = Aggregators Counter "swimlet_pods_marked_total" {} "Pods of written nodes that were set NotReady.";
    BRAKE = Aggregators Gauge "swimlet_brake_engaged" { "brake": &["minority", "share", "graded", "covered-by-none"] } "1 while the brake holds writes back.";
    NOTICES = Aggregators Counter "swimlet_notices_total" { "kind": NOTICES_OF_THE_JUDGE } "What the judge wants a person to know, by kind.";
    DETECTION = Aggregators Histogram "swimlet_detection_seconds" { "verdict": WRITTEN } "Seconds from the earliest unanswered probe to the decision.";
    API_REQUESTS = Aggregators Counter "swimlet_api_requests_total" {} "Requests to the Kubernetes API.";
    API_FAILURES = Aggregators Counter "swimlet_api_failures_total" { "kind": &["throttled", "unavailable", "unanswered"] } "Requests to the Kubernetes API that were throttled, met an unavailable server, or stayed unanswered.";
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

/// Shows what an aggregator counts from the start, at 0.
///
/// A counter that first appears at 1 has not grown by one in the eyes of Prometheus, so the
/// first verdict, write or notice of a process would not show in any rate. Agents need
/// none of this, and there are thousands of them.
pub fn start_at_zero(role: Role) {
    if role != Role::Aggregator {
        return;
    }
    for metric in ALL.iter().filter(|metric| metric.on == On::Aggregators) {
        match metric.labels {
            [] => show_zero(metric.kind, metric.name, Vec::new()),
            [label] => {
                for value in label.values {
                    let labels = vec![metrics::Label::new(label.name, *value)];
                    show_zero(metric.kind, metric.name, labels);
                }
            }
            // No metric of an aggregator alone has two labels, and none needs them.
            _ => {}
        }
    }
}

fn show_zero(kind: Kind, name: &'static str, labels: Vec<metrics::Label>) {
    match kind {
        Kind::Counter => counter!(name, labels).increment(0),
        Kind::Gauge => gauge!(name, labels).set(0.0),
        // To ask for it is to show it, empty.
        Kind::Histogram => drop(histogram!(name, labels)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for metric in ALL {
            let Metric { name, kind, .. } = metric;
            assert!(name.starts_with("swimlet_"), "{name}");
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.help.ends_with('.'), "{name}");
            assert!(metric.labels.iter().all(|l| l.name != "peer"), "{name}");
            assert_eq!(ALL.iter().filter(|m| m.name == *name).count(), 1, "{name}");
        }
    }

    /// What an aggregator shows at 0 must be all of its own, or a rate misses its first.
    #[test]
    fn what_starts_at_zero_has_one_closed_label_at_most() {
        for metric in ALL.iter().filter(|metric| metric.on == On::Aggregators) {
            assert!(metric.labels.len() <= 1, "{}", metric.name);
            let open = |label: &Label| label.values.is_empty();
            assert!(!metric.labels.iter().any(open), "{}", metric.name);
        }
    }
}
