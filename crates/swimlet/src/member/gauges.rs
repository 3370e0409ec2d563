//! What a member holds and has counted, as metrics.

use swimlet_protocol::{MemberState, Moment};
use swimlet_roles::Member;
use swimlet_telemetry::catalogue;
use swimlet_transport::Transport;

/// Brings a member's gauges and counters up to date.
pub(super) fn show(member: &Member, transport: &Transport, now: Moment) {
    let mesh = member.mesh();
    for state in [
        MemberState::Alive,
        MemberState::Suspect,
        MemberState::Down,
        MemberState::Left,
    ] {
        let count = mesh.members().filter(|m| m.state == state).count();
        metrics::gauge!(catalogue::MEMBERS, "state" => state.to_string()).set(count as f64);
    }
    metrics::gauge!(catalogue::LOCAL_HEALTH).set(f64::from(mesh.health()));
    metrics::gauge!(catalogue::PATHS).set(member.verifier().paths(now) as f64);
    metrics::gauge!(catalogue::LINKS).set(transport.links() as f64);
    for (what, count) in transport.stats().iter() {
        metrics::counter!(catalogue::TRANSPORT, "what" => what).absolute(count);
    }
    show_mesh(mesh.stats());
    let verifier = member.verifier().stats();
    let queues = member.stats();
    for (queue, count) in [
        ("unsent", queues.unsent_dropped),
        ("member_outputs", queues.outputs_dropped),
        ("verification", verifier.requests_refused),
        ("port_checks", verifier.checks_untried),
        ("baseline", verifier.baseline_overflow),
        ("verifier_outputs", verifier.outputs_overflow),
    ] {
        metrics::counter!(catalogue::QUEUE_DROPS, "queue" => queue).absolute(count);
    }
}

fn show_mesh(stats: swimlet_mesh::Stats) {
    for (result, count) in [("acked", stats.acks), ("missed", stats.misses)] {
        metrics::counter!(catalogue::PROBES, "result" => result).absolute(count);
    }
    for (reason, count) in [
        ("unknown", stats.dropped_unknown),
        ("stranger", stats.dropped_stranger),
        ("role", stats.dropped_role),
        ("generation", stats.dropped_generation),
        ("unasked", stats.dropped_unasked),
        ("stale", stats.dropped_stale),
        ("full", stats.dropped_full),
        ("busy", stats.dropped_busy),
        ("outputs", stats.dropped_outputs),
        ("claims", stats.claims_dropped),
        ("reports", stats.reports_dropped),
        ("news", stats.news_dropped),
    ] {
        metrics::counter!(catalogue::MESH_DROPS, "reason" => reason).absolute(count);
    }
}
