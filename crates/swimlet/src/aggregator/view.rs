//! What the judge holds, for `/v1` and for the metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use swimlet_cluster::edge::EdgeStats;
use swimlet_protocol::Moment;
use swimlet_roles::aggregator::Stats;
use swimlet_telemetry::catalogue;
use swimlet_verdict::{Brake, Brakes, Judge, Notice, Verdict};
use tokio::sync::{mpsc, oneshot};

/// A request for what the judge holds now.
pub(crate) struct Question {
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// What the judge holds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) seen_alive: u32,
    pub(crate) seen_of: u32,
    pub(crate) brakes: Vec<&'static str>,
    pub(crate) nodes: Vec<NodeView>,
}

/// Where one node stands.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) verdict: &'static str,
    pub(crate) rule: &'static str,
    pub(crate) since_ms: u64,
    pub(crate) suspected: bool,
    pub(crate) accusers: usize,
    pub(crate) heard_ms_ago: Option<u64>,
    pub(crate) summary: String,
}

/// Asks the judge's task; `None` if it has stopped.
pub(crate) async fn ask(questions: &mpsc::Sender<Question>) -> Option<Answer> {
    let (reply, answer) = oneshot::channel();
    questions.send(Question { reply }).await.ok()?;
    answer.await.ok()
}

/// What `judge` holds at `now`.
pub(crate) fn answer(judge: &Judge, now: Moment) -> Answer {
    let brakes = judge.brakes();
    let ms = |at: Moment| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
    let paused = ("paused", brakes.paused);
    let on = states_of(&brakes).map(|(brake, on)| (brake.as_str(), on));
    Answer {
        seen_alive: brakes.seen.alive,
        seen_of: brakes.seen.of,
        brakes: on
            .into_iter()
            .chain([paused])
            .filter(|(_, on)| *on)
            .map(|(name, _)| name)
            .collect(),
        nodes: judge
            .standings()
            .map(|standing| NodeView {
                name: standing.node.name.to_string(),
                uid: standing.node.uid.to_string(),
                verdict: standing.verdict.as_str(),
                rule: standing.rule.as_str(),
                since_ms: ms(standing.since),
                suspected: standing.suspected,
                accusers: standing.accusers,
                heard_ms_ago: standing.heard.map(ms),
                summary: standing.summary,
            })
            .collect(),
    }
}

/// Every brake, and whether it is on.
const fn states_of(brakes: &Brakes) -> [(Brake, bool); 4] {
    [
        (Brake::Minority, brakes.minority),
        (Brake::Share, brakes.share),
        (Brake::Graded, brakes.graded),
        (Brake::CoveredByNone, brakes.covered_by_none),
    ]
}

/// Shows the nodes by verdict, and the brakes.
pub(crate) fn show_gauges(judge: &Judge) {
    let mut by_verdict: BTreeMap<&'static str, u32> = BTreeMap::new();
    for standing in judge.standings() {
        *by_verdict.entry(standing.verdict.as_str()).or_default() += 1;
    }
    for verdict in Verdict::ALL {
        let count = by_verdict.get(verdict.as_str()).copied().unwrap_or(0);
        metrics::gauge!(catalogue::NODES, "verdict" => verdict.as_str()).set(f64::from(count));
    }
    for (brake, on) in states_of(&judge.brakes()) {
        metrics::gauge!(catalogue::BRAKE, "brake" => brake.as_str()).set(f64::from(u8::from(on)));
    }
}

/// Shows what the Kubernetes edge has done.
pub(crate) fn show_edge(stats: &EdgeStats) {
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let client = &stats.client;
    metrics::counter!(catalogue::API_REQUESTS).absolute(value(&client.requests));
    for (kind, counter) in [
        ("throttled", &client.throttled),
        ("unavailable", &client.unavailable),
        ("unanswered", &client.unanswered),
    ] {
        metrics::counter!(catalogue::API_FAILURES, "kind" => kind).absolute(value(counter));
    }
    let writer = &stats.writer;
    for (outcome, counter) in [
        ("written", &writer.written),
        ("would_write", &writer.would_write),
        ("aged", &writer.aged),
        ("superseded", &writer.superseded),
        ("conflict", &writer.conflicts),
        ("gone", &writer.gone),
        ("failed", &writer.failed),
    ] {
        metrics::counter!(catalogue::WRITES, "outcome" => outcome).absolute(value(counter));
    }
    metrics::counter!(catalogue::PODS_MARKED).absolute(value(&stats.pods.marked));
    for (queue, counter) in [
        ("decisions", &writer.overflow),
        ("events", &stats.events.overflow),
        ("nodes", &stats.watch.overflow),
        ("lease_reads", &stats.leases.overflow),
    ] {
        metrics::counter!(catalogue::QUEUE_DROPS, "queue" => queue).absolute(value(counter));
    }
}

/// Shows what the aggregator had no room for.
pub(crate) fn show_drops(stats: Stats, orders_dropped: u64) {
    metrics::counter!(catalogue::QUEUE_DROPS, "queue" => "aggregator_outputs")
        .absolute(stats.outputs_dropped + orders_dropped);
}

/// Counts what people should know.
pub(crate) fn count(notice: &Notice) {
    let kind = match notice {
        Notice::BrakeOn { .. } => "brake_on",
        Notice::BrakeOff { .. } => "brake_off",
        Notice::AgentMissing { .. } => "agent_missing",
        Notice::MeshCutOff { .. } => "mesh_cut_off",
        Notice::Unverifiable { .. } => "unverifiable",
        Notice::Withheld { .. } => "withheld",
        Notice::CoveredByNone { .. } => "covered_by_none",
        Notice::TakenBack { .. } => "taken_back",
        Notice::ApiCutOffMany { .. } => "api_cut_off_many",
    };
    metrics::counter!(catalogue::NOTICES, "kind" => kind).increment(1);
}
