//! Leader election over a Lease of our own; the holder is the one that writes.
//!
//! [`state`] decides, this module reads and writes: [`Election`] is the whole of the rules, without
//! a clock or a socket, and whoever wants to run elections in virtual time drives it as this
//! module does. The election is no fence by itself: two
//! processes may believe in their leadership at the same time when one was frozen between a look
//! at its clock and its write. The write's resourceVersion precondition is the fence.

pub mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use swimlet_verdict::ApiHealth;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::state::{Action, Election, Record, Seen, Timing};
use crate::clock::Clock;
use crate::fault::{self, Fault};
use crate::health::CallHealth;

/// The annotation on the election's Lease that stops all writes, by whoever leads.
///
/// Absent, or `false`: writes go on. Any other value, the empty one included, is the reason for
/// the pause. It is read with each renewal, so it takes effect within one.
pub const PAUSE_ANNOTATION: &str = "swimlet.dev/pause";

/// Whether this process may write, and until when.
///
/// A copy may be kept: it answers by the clock, so a stale copy never claims a leadership that
/// has run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    until: Option<Instant>,
}

/// Where the election takes place, and as whom.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub lease: String,
    /// The candidate's name, unique among processes, restarts included.
    pub identity: String,
    /// Durations.
    pub timing: Timing,
}

/// What the outside wants of the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Whether it stands at all.
    pub(crate) standing: bool,
    /// Grows with each wish to step down.
    pub(crate) step_downs: u64,
}

/// What the election makes known.
#[derive(Debug)]
pub(crate) struct Notices {
    pub(crate) leadership: watch::Sender<Leadership>,
    /// The reason of a pause; `None` while writes go on.
    pub(crate) pause: watch::Sender<Option<Arc<str>>>,
    /// Who holds the Lease, by the last look.
    pub(crate) holder: watch::Sender<Option<Arc<str>>>,
    /// The UID of the Lease, for what is said about it.
    pub(crate) uid: watch::Sender<Option<Arc<str>>>,
    /// Whether our calls are answered, by [`CallHealth`]: with one every 2 s or so, the
    /// election's show it first.
    pub(crate) api: watch::Sender<ApiHealth>,
}

/// Counters of the election.
#[derive(Debug, Default)]
pub struct ElectionStats {
    /// Times this process became the leader.
    pub acquired: AtomicU64,
    /// Times it stopped being the leader, for whatever reason.
    pub lost: AtomicU64,
    /// Renewals written.
    pub renewals: AtomicU64,
    /// Calls that failed or conflicted.
    pub failures: AtomicU64,
}

/// The election's task.
pub(crate) struct Candidate {
    api: Api<Lease>,
    config: ElectionConfig,
    clock: Clock,
    election: Election,
    /// The Lease as the API server gave it last: the base of the next write, so that labels,
    /// annotations and fields that we do not know survive.
    base: Option<Lease>,
    health: CallHealth,
    wish: watch::Receiver<Wish>,
    step_downs: u64,
    notices: Notices,
    stats: Arc<ElectionStats>,
}

impl Leadership {
    /// Leads until then.
    pub(crate) fn until(until: Instant) -> Self {
        Self { until: Some(until) }
    }

    /// Whether the holder of this value may write now.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.remaining().is_some()
    }

    /// How much longer the holder of this value may write; `None` if it may not.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

impl Candidate {
    pub(crate) fn new(
        client: kube::Client,
        config: ElectionConfig,
        wish: watch::Receiver<Wish>,
        notices: Notices,
        stats: Arc<ElectionStats>,
        seed: u64,
    ) -> Self {
        let clock = Clock::new();
        let election = Election::new(clock.now(), config.identity.clone(), config.timing, seed);
        let step_downs = wish.borrow().step_downs;
        Self {
            api: Api::namespaced(client, &config.namespace),
            config,
            clock,
            election,
            base: None,
            health: CallHealth::new(),
            wish,
            step_downs,
            notices,
            stats,
        }
    }

    /// Stands for election until `stop`, then releases the Lease and returns.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut stopping = false;
        self.take_wish();
        loop {
            if stop.is_cancelled() && !stopping {
                stopping = true;
                self.election.stop(self.clock.now());
            }
            let action = self.election.poll(self.clock.now());
            self.publish();
            match action {
                Action::Stopped => return,
                Action::Sleep(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(self.clock.instant(until)) => {}
                        () = stop.cancelled(), if !stopping => {}
                        Ok(()) = self.wish.changed() => self.take_wish(),
                    }
                }
                call => {
                    let sent = self.clock.now();
                    let seen = self.call_while_leading(call).await;
                    self.take_wish();
                    let now = self.clock.now();
                    self.election.handle(sent, now, call, seen);
                }
            }
        }
    }

    /// Makes the call, and says in time that the leadership ran out if it does so meanwhile.
    async fn call_while_leading(&mut self, action: Action) -> Seen {
        let remaining = self.notices.leadership.borrow().remaining();
        let leadership = self.notices.leadership.clone();
        let call = self.call(action);
        tokio::pin!(call);
        if let Some(remaining) = remaining {
            tokio::select! {
                seen = &mut call => return seen,
                () = tokio::time::sleep(remaining) => {
                    leadership.send_replace(Leadership::default());
                }
            }
        }
        call.await
    }

    async fn call(&mut self, action: Action) -> Seen {
        let name = self.config.lease.clone();
        let timeout = self.config.timing.call;
        let answer = match action {
            Action::Read => fault::timed(timeout, self.api.get(&name)).await,
            Action::Create => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(name),
                        namespace: Some(self.config.namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.spec(action, None)),
                };
                fault::timed(timeout, self.api.create(&PostParams::default(), &lease)).await
            }
            _ => {
                let Some(base) = &self.base else {
                    return Seen::Conflict;
                };
                let lease = Lease {
                    metadata: base.metadata.clone(),
                    spec: Some(self.spec(action, base.spec.as_ref())),
                };
                let params = PostParams::default();
                fault::timed(timeout, self.api.replace(&name, &params, &lease)).await
            }
        };
        self.seen(action, answer)
    }

    fn seen(&mut self, action: Action, answer: Result<Lease, Fault>) -> Seen {
        let answered = !matches!(&answer, Err(fault) if fault.is_passing());
        let health = self.health.note(self.clock.now(), answered);
        self.notices
            .api
            .send_if_modified(|seen| std::mem::replace(seen, health) != health);
        match answer {
            Ok(lease) => {
                if action == Action::Renew {
                    self.stats.renewals.fetch_add(1, Ordering::Relaxed);
                }
                self.notices.pause.send_if_modified(|pause| {
                    let seen = pause_reason(&lease);
                    let changed = *pause != seen;
                    *pause = seen;
                    changed
                });
                self.notices.uid.send_if_modified(|known| {
                    let seen = lease.metadata.uid.as_deref();
                    let changed = known.as_deref() != seen;
                    if changed {
                        *known = seen.map(Arc::from);
                    }
                    changed
                });
                let record = record_of(&lease);
                self.base = Some(lease);
                Seen::Record(record)
            }
            Err(Fault::NotFound) => {
                if action == Action::Create {
                    tracing::error!(
                        "the election's Lease cannot be created: there is no namespace {}; create \
                         it, or configure the one that swimlet runs in",
                        self.config.namespace,
                    );
                }
                self.base = None;
                self.notices
                    .pause
                    .send_if_modified(|pause| pause.take().is_some());
                Seen::Absent
            }
            Err(fault) => {
                self.stats.failures.fetch_add(1, Ordering::Relaxed);
                let lease = &self.config.lease;
                match fault {
                    Fault::Conflict | Fault::AlreadyExists => Seen::Conflict,
                    Fault::Forbidden { message } => {
                        tracing::error!(
                            lease,
                            "the API server forbids {action:?} of the election's Lease; grant get, \
                             create and update on leases.coordination.k8s.io in namespace {}: \
                             {message}",
                            self.config.namespace,
                        );
                        Seen::Failed { after: None }
                    }
                    other => {
                        tracing::warn!(lease, "election call {action:?} failed: {other}");
                        Seen::Failed {
                            after: other.retry_after(),
                        }
                    }
                }
            }
        }
    }

    /// The spec to write: what the base has, with the fields of the election record replaced.
    fn spec(&self, action: Action, base: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let mut spec = base.cloned().unwrap_or_default();
        let transitions = spec.lease_transitions.unwrap_or_default();
        spec.renew_time = Some(now.clone());
        if action == Action::Release {
            // As client-go: an empty holder, respected for the shortest time there is.
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.acquire_time = Some(now);
            return spec;
        }
        spec.holder_identity = Some(self.config.identity.clone());
        let seconds = self.config.timing.lease.as_secs();
        spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
        if action == Action::Acquire {
            spec.lease_transitions = Some(transitions.saturating_add(1));
        }
        if action != Action::Renew || spec.acquire_time.is_none() {
            spec.acquire_time = Some(now);
        }
        spec
    }

    fn take_wish(&mut self) {
        let wish = *self.wish.borrow_and_update();
        let now = self.clock.now();
        self.election.stand(now, wish.standing);
        if wish.step_downs != self.step_downs {
            self.step_downs = wish.step_downs;
            self.election.step_down(now);
        }
    }

    fn publish(&self) {
        let now = self.clock.now();
        let next = match self.election.leads_until(now) {
            Some(until) => Leadership::until(self.clock.instant(until)),
            None => Leadership::default(),
        };
        let before = self.notices.leadership.send_replace(next);
        if before.until.is_none() && next.leads() {
            self.stats.acquired.fetch_add(1, Ordering::Relaxed);
            tracing::info!(identity = self.config.identity, "leading");
        } else if before.until.is_some() && !next.leads() {
            self.stats.lost.fetch_add(1, Ordering::Relaxed);
            tracing::info!(identity = self.config.identity, "no longer leading");
        }
        let holder = self.election.record().map(|record| record.holder.as_str());
        self.notices.holder.send_if_modified(|seen| {
            let changed = seen.as_deref() != holder;
            if changed {
                *seen = holder.map(Arc::from);
            }
            changed
        });
    }
}

/// The reason of the pause that the Lease bears, if it bears one.
fn pause_reason(lease: &Lease) -> Option<Arc<str>> {
    let value = lease.metadata.annotations.as_ref()?.get(PAUSE_ANNOTATION)?;
    match value.as_str() {
        "false" => None,
        "" | "true" => Some(Arc::from("no reason given")),
        reason => Some(Arc::from(reason)),
    }
}

fn record_of(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let micros = |time: &MicroTime| time.0.as_microsecond();
    let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or_default());
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        renewed: spec.renew_time.as_ref().map(micros),
        acquired: spec.acquire_time.as_ref().map(micros),
        transitions: spec.lease_transitions.unwrap_or_default(),
    }
}
