//! The edge as one thing: every task of it under one `run()`.

mod handle;

use std::sync::Arc;
use std::time::Duration;

use swimlet_protocol::ClusterId;
use swimlet_verdict::{ApiHealth, Input, WatchHealth};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::handle::{EdgeHandle, EdgeStats, Readiness};
use crate::access::{self, Access};
use crate::authority::Authority;
use crate::backoff::Backoff;
use crate::client::Clients;
use crate::election::{Candidate, ElectionConfig, Leadership, Notices, Wish};
use crate::events::{Announcer, EventSender, EventSink};
use crate::fallen::Fallen;
use crate::leases::{LeaseQuestions, LeaseReader};
use crate::mode::Mode;
use crate::nodes::{self, NodeWatch};
use crate::pods::{PodContext, PodMarker};
use crate::roster::Roster;
use crate::writer::{Queue, Writer, WriterContext};

/// Inputs that wait for the judge. When it is full the watch waits, and with it the server's
/// stream: nothing is lost, and a picture that lags behind counts as stale in the end.
const INPUTS_MAX: usize = 1024;
/// How long the tasks have to end: the election's release takes at most three calls of 3 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What the edge is configured with.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// The cluster, for the members' keys.
    pub cluster: ClusterId,
    /// Whether anything is written.
    pub mode: Mode,
    /// Where and as whom to stand for election.
    pub election: ElectionConfig,
    /// Seeds every jitter.
    pub seed: u64,
}

/// The edge, ready to run.
#[must_use = "the edge does nothing before `run`"]
pub struct Edge {
    clients: Clients,
    config: EdgeConfig,
    candidate: Candidate,
    watch: NodeWatch,
    writer: Writer,
    marker: PodMarker,
    events: EventSender,
    leases: LeaseReader,
    out: mpsc::Sender<Input>,
    board: Board,
}

/// Why the edge ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// A task ended that never should: the process has lost a part and must be restarted.
    #[error("the task {task:?} ended unexpectedly; restart the process")]
    TaskEnded {
        /// Which.
        task: &'static str,
    },
    /// A task panicked.
    #[error("a task of the Kubernetes edge panicked: {0}")]
    Panicked(#[source] tokio::task::JoinError),
}

/// Where the tasks post what others read.
struct Board {
    api: watch::Sender<ApiHealth>,
    watch: watch::Sender<WatchHealth>,
    access: watch::Sender<Option<Arc<[Access]>>>,
    leadership: watch::Receiver<Leadership>,
    pause: watch::Receiver<Option<Arc<str>>>,
    stats: EdgeStats,
}

impl Edge {
    /// Builds the edge: it does nothing before [`Edge::run`]. The receiver yields what the judge
    /// is to be told, in order.
    pub fn new(clients: Clients, config: EdgeConfig) -> (Self, EdgeHandle, mpsc::Receiver<Input>) {
        let (out, inputs) = mpsc::channel(INPUTS_MAX);
        let stats = EdgeStats {
            client: Arc::clone(&clients.stats),
            ..EdgeStats::default()
        };
        let wish = watch::Sender::new(Wish {
            standing: true,
            step_downs: 0,
        });
        let api = watch::Sender::new(ApiHealth::Failing);
        let notices = Notices {
            leadership: watch::Sender::new(Leadership::default()),
            pause: watch::Sender::new(None),
            holder: watch::Sender::new(None),
            uid: watch::Sender::new(None),
            api: api.clone(),
        };
        let board = Board {
            api,
            watch: watch::Sender::new(WatchHealth::Stale),
            access: watch::Sender::new(None),
            leadership: notices.leadership.subscribe(),
            pause: notices.pause.subscribe(),
            stats: stats.clone(),
        };
        let parts = Parts {
            clients: &clients,
            config: &config,
            stats: &stats,
            authority: Authority::new(board.leadership.clone(), board.pause.clone()),
            fallen: Arc::default(),
            roster: Arc::default(),
            decisions: Arc::new(Queue::new(Arc::clone(&stats.writer))),
            backlog: watch::Sender::new(0),
        };
        let (sink, events) = parts.events();
        let (lease_reads, leases) = parts.leases(out.clone());
        let handle = EdgeHandle {
            decisions: Arc::clone(&parts.decisions),
            lease_reads,
            announcer: parts.announcer(sink.clone(), notices.uid.subscribe()),
            wish: wish.clone(),
            leadership: board.leadership.clone(),
            pause: board.pause.clone(),
            holder: notices.holder.subscribe(),
            api: board.api.subscribe(),
            watch: board.watch.subscribe(),
            access: board.access.subscribe(),
            stats: stats.clone(),
        };
        let edge = Self {
            candidate: parts.candidate(wish.subscribe(), notices),
            watch: parts.watch(out.clone()),
            writer: parts.writer(sink.clone(), out.clone()),
            marker: parts.marker(sink),
            leases,
            events,
            out,
            board,
            config,
            clients,
        };
        (edge, handle, inputs)
    }

    /// Runs every task until `stop`, then stops writing, releases the Lease, and returns.
    ///
    /// An API server that is away is no error: everything here keeps trying, and
    /// [`EdgeHandle::readiness`] says so.
    ///
    /// # Errors
    /// If a task ends by itself or panics.
    pub async fn run(self, stop: CancellationToken) -> Result<(), EdgeError> {
        let mut tasks = JoinSet::new();
        let heard = self.watch.heard();
        let Board {
            api,
            watch,
            access,
            leadership,
            pause,
            stats,
        } = self.board;
        tasks.spawn(named("election", self.candidate.run(stop.clone())));
        tasks.spawn(named("node watch", self.watch.run(stop.clone())));
        let health = nodes::tell_health(
            heard,
            self.out.clone(),
            watch,
            Arc::clone(&stats.watch),
            stop.clone(),
        );
        tasks.spawn(named("watch health", health));
        tasks.spawn(named("writer", self.writer.run(stop.clone())));
        tasks.spawn(named("pod marker", self.marker.run(stop.clone())));
        tasks.spawn(named("events", self.events.run(stop.clone())));
        tasks.spawn(named("lease reads", self.leases.run(stop.clone())));
        let relay = relay(
            self.out.clone(),
            leadership,
            pause,
            api.subscribe(),
            stop.clone(),
        );
        tasks.spawn(named("relay", relay));
        let check = check_access(self.clients, self.config, access, stop.clone());
        tasks.spawn(named("access check", check));
        drop(self.out);

        let mut ended = Ok(());
        tokio::select! {
            // A task that has already ended for the stop's sake is not missed.
            biased;
            () = stop.cancelled() => {}
            Some(joined) = tasks.join_next() => {
                ended = Err(match joined {
                    Ok(task) => EdgeError::TaskEnded { task },
                    Err(error) => EdgeError::Panicked(error),
                });
                // The others end in order: the Lease is released even now.
                stop.cancel();
            }
        }
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, all).await.is_err() {
            tracing::warn!("tasks of the Kubernetes edge did not end within {STOP_TIMEOUT:?}");
        }
        ended
    }
}

/// What the parts are built from.
struct Parts<'a> {
    clients: &'a Clients,
    config: &'a EdgeConfig,
    stats: &'a EdgeStats,
    authority: Authority,
    fallen: Arc<Fallen>,
    roster: Arc<Roster>,
    decisions: Arc<Queue>,
    backlog: watch::Sender<usize>,
}

impl Parts<'_> {
    fn candidate(&self, wish: watch::Receiver<Wish>, notices: Notices) -> Candidate {
        Candidate::new(
            self.clients.election.clone(),
            self.config.election.clone(),
            wish,
            notices,
            Arc::clone(&self.stats.election),
            self.config.seed,
        )
    }

    fn watch(&self, out: mpsc::Sender<Input>) -> NodeWatch {
        NodeWatch::new(
            self.clients.main.clone(),
            self.config.cluster.clone(),
            out,
            Arc::clone(&self.fallen),
            Arc::clone(&self.roster),
            Arc::clone(&self.stats.watch),
            self.config.seed.wrapping_add(1),
        )
    }

    fn writer(&self, events: EventSink, out: mpsc::Sender<Input>) -> Writer {
        let context = WriterContext {
            api: kube::Api::all(self.clients.main.clone()),
            cluster: self.config.cluster.clone(),
            mode: self.config.mode,
            authority: self.authority.clone(),
            fallen: Arc::clone(&self.fallen),
            roster: Arc::clone(&self.roster),
            events,
            stats: Arc::clone(&self.stats.writer),
        };
        let seed = self.config.seed.wrapping_add(2);
        let decisions = Arc::clone(&self.decisions);
        Writer::new(context, decisions, out, self.backlog.clone(), seed)
    }

    fn marker(&self, events: EventSink) -> PodMarker {
        let context = PodContext {
            client: self.clients.main.clone(),
            nodes: kube::Api::all(self.clients.main.clone()),
            authority: self.authority.clone(),
            fallen: Arc::clone(&self.fallen),
            events,
            stats: Arc::clone(&self.stats.pods),
        };
        let seed = self.config.seed.wrapping_add(3);
        PodMarker::new(context, self.config.mode, self.backlog.subscribe(), seed)
    }

    fn events(&self) -> (EventSink, EventSender) {
        EventSink::new(
            self.clients.main.clone(),
            &self.config.election.identity,
            Arc::clone(&self.stats.events),
        )
    }

    fn announcer(
        &self,
        events: EventSink,
        lease_uid: watch::Receiver<Option<Arc<str>>>,
    ) -> Announcer {
        let roster = Arc::clone(&self.roster);
        Announcer::new(events, roster, &self.config.election, lease_uid)
    }

    fn leases(&self, out: mpsc::Sender<Input>) -> (LeaseQuestions, LeaseReader) {
        LeaseReader::new(
            self.clients.main.clone(),
            out,
            Arc::clone(&self.roster),
            Arc::clone(&self.stats.leases),
        )
    }
}

/// A task's future that tells which one it was when it ends.
async fn named(name: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    name
}

/// Tells the judge of leadership, pause and the API server's health, when they change.
async fn relay(
    out: mpsc::Sender<Input>,
    mut leadership: watch::Receiver<Leadership>,
    mut pause: watch::Receiver<Option<Arc<str>>>,
    mut api: watch::Receiver<ApiHealth>,
    stop: CancellationToken,
) {
    let mut told = (None, None, None);
    loop {
        let now = *leadership.borrow_and_update();
        let leads = now.leads();
        let paused = pause.borrow_and_update().is_some();
        let health = *api.borrow_and_update();
        let mut news = Vec::new();
        // What forbids comes before what permits.
        if told.0.replace(health) != Some(health) {
            news.push(Input::Api(health));
        }
        if told.1.replace(paused) != Some(paused) {
            news.push(Input::Paused(paused));
        }
        if told.2.replace(leads) != Some(leads) {
            news.push(Input::Leadership(leads));
        }
        for input in news {
            if out.send(input).await.is_err() {
                return;
            }
        }
        // Leadership runs out by the clock, also when the election's task is stuck in a call.
        let expiry = now.remaining().map(|left| Instant::now() + left);
        tokio::select! {
            Ok(()) = leadership.changed() => {}
            Ok(()) = pause.changed() => {}
            Ok(()) = api.changed() => {}
            () = async {
                match expiry {
                    Some(expiry) => tokio::time::sleep_until(expiry).await,
                    None => std::future::pending().await,
                }
            } => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Finds out what RBAC lets us do, says what is missing, and looks again while anything is.
async fn check_access(
    clients: Clients,
    config: EdgeConfig,
    board: watch::Sender<Option<Arc<[Access]>>>,
    stop: CancellationToken,
) {
    let (first, most) = (Duration::from_secs(1), Duration::from_secs(30));
    let mut backoff = Backoff::new(first, most, config.seed.wrapping_add(4));
    let check = async {
        loop {
            let election = &config.election;
            let needed = access::needed(config.mode, &election.namespace, &election.lease);
            let mut asked_for = None;
            match access::missing(&clients.main, needed).await {
                Ok(missing) => {
                    for access in &missing {
                        tracing::error!(
                            "RBAC does not let the aggregator {access}; apply the ClusterRole and \
                             Roles that come with swimlet"
                        );
                    }
                    let complete = missing.is_empty();
                    board.send_replace(Some(missing.into()));
                    if complete {
                        return;
                    }
                }
                Err(crate::Fault::NotFound) => {
                    tracing::warn!("the API server reviews no access: not checked");
                    board.send_replace(Some(Arc::default()));
                    return;
                }
                Err(fault) => {
                    asked_for = fault.retry_after();
                    tracing::warn!("the access check got no answer: {fault}");
                }
            }
            tokio::time::sleep(backoff.next(asked_for)).await;
        }
    };
    if stop.run_until_cancelled(check).await.is_some() {
        // Done; the task stays, so that its end means the same as every other task's.
        stop.cancelled().await;
    }
}
